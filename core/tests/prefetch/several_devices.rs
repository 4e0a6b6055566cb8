//! Items to several devices.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::stream::{self, Stream, StreamExt};
use late_backend::{Call, LateConfig};
use transship_core::backend::StreamPriority;
use transship_core::{CopyOptions, Device, Error, Prefetch, PrefetchError, PrefetchStream};

use crate::support::{Drops, Kernel, eventually, in_time, no_violations, two};
use crate::{item, number, options};

#[test]
fn devices_get_items_in_turn() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one, other, Device::host()];
    let items: Vec<_> = (0..7).map(item).prefetch_in_turn(&devices, options()).collect();
    let streamed = stream::iter((0..7).map(item)).prefetch_in_turn(&devices, options());
    for items in [items, block_on(streamed.collect())] {
        for (turn, item) in items.into_iter().enumerate() {
            let item = item.unwrap();
            assert_eq!(item[0].device_id().unwrap(), devices[turn % 3].id());
            assert_eq!(number(&item), turn);
        }
    }
    let nowhere: Vec<_> = (0..2).map(item).prefetch_in_turn(&[], options()).collect();
    assert_eq!(nowhere.len(), 2);
    for (turn, item) in nowhere.into_iter().enumerate() {
        let Err(PrefetchError::Copy(error)) = item else { panic!("there is no device") };
        assert!(matches!(error.error(), Error::InvalidOption { name: "to", .. }), "{error:#}");
        assert_eq!(number(&error.into_value().unwrap()), turn);
    }
    no_violations(&late);
}

/// catches: 477-devices-in-another-order
#[test]
fn each_device_gets_each_item() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one, other, Device::host()];
    for depth in [0, 1, 3, 100] {
        let items: Vec<_> = (0..7).map(item).prefetch_to_all(&devices, options().depth(depth)).collect();
        let streamed = stream::iter((0..7).map(item)).prefetch_to_all(&devices, options().depth(depth));
        for items in [items, block_on(streamed.collect())] {
            assert_eq!(items.len(), 7);
            for (turn, item) in items.into_iter().enumerate() {
                let copies = item.unwrap();
                let places: Vec<_> = copies.iter().map(|copy| copy[0].device_id().unwrap()).collect();
                assert_eq!(places, devices.each_ref().map(Device::id));
                assert!(copies.iter().all(|copy| number(copy) == turn));
            }
        }
    }
    no_violations(&late);
}

#[test]
fn an_item_to_several_devices_counts_once() {
    let (late, one, other) = two(LateConfig::new("late"));
    let asked = Cell::new(0);
    let source = (0..10).map(|number| {
        asked.set(asked.get() + 1);
        item(number)
    });
    let most = options().depth(8).max_bytes(2 * 104);
    let mut items = source.prefetch_to_all(&[one, other], most);
    assert_eq!(items.size_hint(), (10, Some(10)));
    for had in 1..=10 {
        assert_eq!(items.next().unwrap().unwrap().len(), 2);
        assert_eq!(asked.get(), (had + 3).min(10), "two fit, and the third is held back");
    }
    assert!(items.next().is_none() && items.stats().items == 10);
    no_violations(&late);
}

/// catches: 478-one-device-that-fails-is-left-out
#[test]
fn an_item_that_fails_on_one_device_is_an_error_in_its_place() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one, other];
    devices.iter().for_each(|device| device.prepare(1024).unwrap());
    late.fail_next(Call::Submit, 3);
    let items: Vec<_> = (0..4).map(item).prefetch_to_all(&devices, options()).collect();
    late.fail_next(Call::Submit, 3);
    let streamed = block_on(stream::iter((0..4).map(item)).prefetch_to_all(&devices, options()).collect());
    for items in [items, streamed] {
        let items: Vec<_> = items;
        let failed: Vec<_> = items.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false, false]);
        let Some(Err(PrefetchError::Copy(error))) = items.into_iter().nth(1) else {
            panic!("it is a copy's")
        };
        assert!(!matches!(error.error(), Error::Cancelled), "{error:#}");
    }
    let source = (0..3_u8).map(|number| if number == 1 { Err("the disk is full") } else { Ok(item(1)) });
    let items: Vec<_> = source.try_prefetch_to_all(&devices, options()).collect();
    assert!(matches!(&*items, [Ok(_), Err(PrefetchError::Source("the disk is full")), Ok(_)]));
    no_violations(&late);
}

#[test]
fn items_that_no_device_can_have_are_given_back() {
    let (late, one, other) = two(LateConfig::new("late"));
    let items = (0..2).map(item).prefetch_to_all(&[], options());
    let stream = one.create_stream(StreamPriority::Normal).unwrap();
    let misled = (0..2).map(item).prefetch_to_all(&[one, other], options()).hand_over(&[stream]);
    for (items, name) in [(items, "to"), (misled, "hand_over")] {
        let mut turn = 0;
        for item in items {
            let Err(PrefetchError::Copy(error)) = item else { panic!("it goes nowhere") };
            assert!(
                matches!(error.error(), Error::InvalidOption { name: option, .. } if *option == name),
                "{error}"
            );
            assert_eq!(number(&error.into_value().unwrap()), turn);
            turn += 1;
        }
        assert_eq!(turn, 2);
    }
    let unpaced = options().copy(CopyOptions::default().max_bytes_in_flight(1));
    let refused = (0..1).map(item).prefetch_to_all(&[Device::host()], unpaced).next();
    assert_eq!(number(&refused.unwrap().unwrap_err().into_value().unwrap()), 0, "a byte is too little");
    no_violations(&late);
}

/// The stream of one device stands still: memory that was handed to it is not given back before.
///
/// catches: 479-items-to-the-stream-of-another-device
#[test]
fn items_are_handed_to_a_stream_of_each_device() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one, other];
    let streams = devices.each_ref().map(|device| {
        device.prepare(4096).unwrap();
        device.create_stream(StreamPriority::Normal).unwrap()
    });
    late.stall_stream(&**streams[1].backend_stream());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for copies in (0..3).map(item).prefetch_to_all(&devices, options()).hand_over(&streams) {
        let copies = copies.unwrap();
        first.push(Kernel::launch(&copies[0][0], &streams[0]));
        second.push(Kernel::launch(&copies[1][0], &streams[1]));
    }
    let check = |kernels: Vec<Kernel>| {
        assert_eq!(kernels.len(), 3);
        for (number, kernel) in kernels.into_iter().enumerate() {
            assert_eq!(kernel.result(), vec![number as u8; 100]);
        }
    };
    check(first);
    thread::sleep(Duration::from_millis(20));
    late.release();
    check(second);
    no_violations(&late);
}

#[test]
fn dropping_items_to_several_devices_waits_for_none() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one, other];
    let drops = Drops::default();
    late.stall();
    let lent = drops.clone();
    let source = (0..9).map(move |_| lent.tensor(vec![3; 1000]));
    let mut items = stream::iter(source).prefetch_to_all(&devices, options().depth(4));
    assert!(Pin::new(&mut items).poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
    in_time(move || drop(items));
    late.release();
    devices.iter().for_each(|device| device.drain().unwrap());
    eventually("what was lent is given back", || drops.count() == 5);
    no_violations(&late);
}
