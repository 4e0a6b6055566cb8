//! Items are copied ahead of the program, in order and within bounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::stream::{self, Stream, StreamExt};
use late_backend::{Call, LateConfig};
use proptest::prelude::*;
use support::{Drops, Kernel, PATIENCE, bytes_of, given_time, in_time, late, no_violations, two};
use transship_core::backend::StreamPriority;
use transship_core::{
    CopyOptions, Device, Error, Lent, Prefetch, PrefetchError, PrefetchOptions, PrefetchStream, Tensor, Value,
};

fn options() -> PrefetchOptions {
    PrefetchOptions::default()
}

fn item(number: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![number as u8; 100]), Tensor::from(vec![number as u32])]
}

fn number(item: &[Tensor]) -> usize {
    let number = usize::from(bytes_of(&item[0])[0]);
    assert_eq!(bytes_of(&item[0]), vec![number as u8; 100]);
    assert_eq!(bytes_of(&item[1]), (number as u32).to_le_bytes());
    number
}

/// What cannot be copied.
fn too_deep() -> Value {
    (0..5000).fold(Value::from(Tensor::from(vec![7_u8])), |inner, _| Value::List(vec![inner].into()))
}

/// catches: 170-handed-out-in-another-order
#[test]
fn items_come_in_order() {
    for device in [Device::host(), late().1] {
        for depth in [0, 1, 2, 7, 100] {
            let items = (0..20).map(item).prefetch(&device, options().depth(depth));
            assert_eq!(items.size_hint(), (20, Some(20)));
            let numbers: Vec<_> = items.map(|item| number(&item.unwrap())).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
            let items = stream::iter((0..20).map(item)).prefetch(&device, options().depth(depth));
            let numbers = block_on(items.map(|item| number(&item.unwrap())).collect::<Vec<_>>());
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        }
    }
}

/// catches: 171-one-item-less-ahead
#[test]
fn so_many_items_are_ahead_of_the_one_that_the_program_has() {
    for depth in 0..5 {
        let asked = Cell::new(0);
        let source = (0..20).map(|number| {
            asked.set(asked.get() + 1);
            item(number)
        });
        let mut items = source.prefetch(&Device::host(), options().depth(depth));
        assert_eq!(asked.get(), 0, "nothing is asked for before the program asks");
        for had in 1..=20 {
            assert_eq!(number(&items.next().unwrap().unwrap()), had - 1);
            assert_eq!(asked.get(), (had + depth).min(20));
        }
        assert!(items.next().is_none() && items.next().is_none());
        assert_eq!(items.stats().items, 20);
    }
}

proptest! {
    /// catches: 172-bytes-of-items-that-left-count
    #[test]
    fn so_many_bytes_are_ahead(sizes in proptest::collection::vec(0_usize..200, 1..30), most in 0_usize..500, depth in 0_usize..6) {
        let asked = Cell::new(0);
        let source = sizes.iter().map(|bytes| {
            asked.set(asked.get() + 1);
            Tensor::from(vec![*bytes as u8; *bytes])
        });
        let mut items = source.prefetch(&Device::host(), options().depth(depth).max_bytes(most));
        for had in 0..sizes.len() {
            prop_assert_eq!(items.next().unwrap().unwrap().to_bytes().unwrap(), vec![sizes[had] as u8; sizes[had]]);
            let mut ahead = had + 1;
            let mut bytes = 0;
            while ahead < sizes.len() && ahead <= had + depth && (bytes + sizes[ahead] <= most || ahead == had + 1) {
                bytes += sizes[ahead];
                ahead += 1;
            }
            let held_back = usize::from(ahead < sizes.len() && ahead <= had + depth);
            prop_assert!(asked.get() >= ahead + held_back, "{} were asked for, {ahead} fit", asked.get());
            prop_assert!(asked.get() <= (had + 1 + depth).min(sizes.len()));
        }
        prop_assert!(items.next().is_none());
    }
}

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
    support::eventually("what was lent is given back", || drops.count() == 5);
    no_violations(&late);
}

#[test]
fn bytes_bound_what_is_ahead() {
    let asked = Cell::new(0);
    let source = (0..10).map(|_| {
        asked.set(asked.get() + 1);
        Tensor::from(vec![1_u8; 100])
    });
    let mut items = source.prefetch(&Device::host(), options().depth(8).max_bytes(250));
    for had in 1..=10 {
        items.next().unwrap().unwrap();
        assert_eq!(asked.get(), (had + 3).min(10), "two fit, and the third is held back");
    }
}

#[test]
fn errors_come_in_their_places_and_the_next_items_follow() {
    let (late, device) = late();
    let source = (0..6_u8).map(|number| match number {
        1 => Err("the disk is full"),
        3 => Ok(too_deep()),
        _ => Ok(Value::from(Tensor::from(vec![number; 10]))),
    });
    let items: Vec<_> = source.clone().try_prefetch(&device, options()).collect();
    let streamed: Vec<_> = block_on(stream::iter(source).try_prefetch(&device, options()).collect());
    for items in [items, streamed] {
        assert_eq!(items.len(), 6);
        for (number, item) in items.into_iter().enumerate() {
            match (number, item) {
                (1, Err(PrefetchError::Source(error))) => assert_eq!(error, "the disk is full"),
                (3, Err(PrefetchError::Copy(error))) => {
                    assert!(matches!(error.error(), Error::TooDeep { .. }), "{error:#}");
                    assert!(error.into_value().is_some(), "the item is given back");
                }
                (_, Ok(Value::Tensor(tensor))) => assert_eq!(bytes_of(&tensor), vec![number as u8; 10]),
                (_, other) => panic!("{number}: {other:?}"),
            }
        }
    }
    no_violations(&late);
}

#[test]
fn a_copy_that_fails_on_the_device_is_an_error_in_its_place() {
    let (late, device) = late();
    device.prepare(1024).unwrap();
    late.fail_next(Call::Submit, 2);
    let items: Vec<_> = (0..6).map(item).prefetch(&device, options()).collect();
    let failed: Vec<_> = items.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, true, false, false, false]);
    let error = items.into_iter().nth(2).unwrap().unwrap_err();
    assert!(std::error::Error::source(&error).is_some(), "{error}");
    assert!(!matches!(Error::from(error), Error::Cancelled));
    no_violations(&late);
}

#[test]
fn items_are_handed_to_a_stream_before_they_have_arrived() {
    let (late, device) = late();
    device.prepare(4096).unwrap();
    let consumer = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall();
    let mut items = (0..3).map(item).prefetch(&device, options()).hand_over(&consumer);
    let mut kernels = Vec::new();
    for _ in 0..3 {
        let item = items.next().unwrap().unwrap();
        kernels.push(Kernel::launch(&item[0], &consumer));
    }
    assert!(items.next().is_none());
    late.release();
    for (number, kernel) in kernels.into_iter().enumerate() {
        assert_eq!(kernel.result(), vec![number as u8; 100]);
    }
    no_violations(&late);
}

/// A stream that never has its second item.
fn one_and_no_more() -> impl Stream<Item = Vec<Tensor>> {
    stream::iter([item(5)]).chain(stream::pending())
}

#[test]
fn a_source_that_has_nothing_yet_holds_up_no_item_that_has_arrived() {
    let device = late().1;
    let first = in_time(move || {
        let mut items = pin!(one_and_no_more().prefetch(&device, options()));
        block_on(items.next()).unwrap().unwrap()
    });
    assert_eq!(number(&first), 5);
}

#[test]
fn dropping_waits_for_no_device() {
    let (late, device) = late();
    let drops = Drops::default();
    late.stall();
    let lent = drops.clone();
    let source = (0..9).map(move |_| lent.tensor(vec![3; 1000]));
    let mut items = stream::iter(source).prefetch(&device, options().depth(4));
    assert!(Pin::new(&mut items).poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(items.stats().items, 0);
    in_time(move || drop(items));
    late.release();
    device.drain().unwrap();
    support::eventually("what was lent is given back", || drops.count() == 5);
    no_violations(&late);
}

/// The device is slow, or the source is: the figures say which.
#[test]
fn waiting_is_told_apart() {
    let pause = Duration::from_millis(20);
    let slow_source = (0..4).map(|number| {
        thread::sleep(pause);
        item(number)
    });
    let mut items = slow_source.prefetch(&Device::host(), options());
    assert_eq!(items.by_ref().filter(Result::is_ok).count(), 4);
    let stats = items.stats();
    assert!(stats.source >= 4 * pause && stats.waited() >= stats.source, "{stats}");
    assert!(stats.to_string().starts_with("4 items, 0 in used memory, waited "), "{stats}");

    given_time(|limit| {
        let (late, device) = late();
        device.prepare(4096).unwrap();
        late.stall_for(4 * limit);
        let begin = Instant::now();
        let mut items = (0..4).map(item).prefetch(&device, options());
        items.next().unwrap().unwrap();
        let stats = items.stats();
        assert!(stats.waited() <= begin.elapsed(), "{stats}");
        (stats.link >= limit && stats.link > stats.staging).then_some(())
    });
}

#[test]
fn a_stream_counts_what_its_task_waits_for() {
    given_time(|limit| {
        let (late, device) = late();
        device.prepare(4096).unwrap();
        late.stall_for(4 * limit);
        let mut items = stream::iter((0..2).map(item)).prefetch(&device, options());
        assert!(block_on(items.next()).unwrap().is_ok());
        (items.stats().link >= limit).then_some(())
    });
    given_time(|limit| {
        let begin = Instant::now();
        let later = stream::poll_fn(move |context| match begin.elapsed() < 2 * limit {
            true => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            false => Poll::Ready(Some(item(1))),
        });
        let mut items = later.take(1).prefetch(&Device::host(), options());
        assert!(block_on(items.next()).unwrap().is_ok());
        assert!(block_on(items.next()).is_none());
        assert!(items.stats().waited() <= begin.elapsed(), "{items:?}");
        (items.stats().source >= limit).then_some(())
    });
}

#[test]
fn items_are_prefetched_on_any_thread() {
    let (late, device) = late();
    let (sender, receiver) = std::sync::mpsc::sync_channel(2);
    let reader = thread::spawn(move || (0..50).for_each(|number| sender.send(item(number)).unwrap()));
    let items =
        receiver.into_iter().prefetch(&device, options().copy(CopyOptions::default().deadline(PATIENCE)));
    let numbers = in_time(move || items.map(|item| number(&item.unwrap())).collect::<Vec<_>>());
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    reader.join().unwrap();
    no_violations(&late);
}

/// The addresses of an item.
fn addresses(item: &[Tensor]) -> Vec<Option<u64>> {
    item.iter().map(|tensor| tensor.address().unwrap()).collect()
}

/// catches: 173-lent-memory-does-not-come-back
#[test]
fn memory_that_comes_back_is_used_again() {
    let (late, simulated) = late();
    for (device, depth) in
        [Device::host(), simulated].iter().flat_map(|device| [0, 1, 3].map(|depth| (device, depth)))
    {
        let mut items = (0..20).map(item).prefetch(device, options().depth(depth)).reuse();
        let mut seen: Vec<Vec<Option<u64>>> = Vec::new();
        for turn in 0..20 {
            let item = items.next().unwrap().unwrap();
            // A copy down would have a share of the memory for a while.
            if device.id().is_host() {
                assert_eq!(item[0].as_slice::<u8>().unwrap(), [turn; 100]);
            }
            let there = addresses(&item);
            if !seen.contains(&there) {
                seen.push(there);
            }
        }
        assert!(items.next().is_none());
        assert!(seen.len() <= depth + 2, "{} places for a depth of {depth}", seen.len());
        assert_eq!(items.stats().reused, 20 - seen.len() as u64);
    }
    no_violations(&late);
}

#[test]
fn what_is_in_used_memory_is_the_next_item() {
    let (late, device) = late();
    for (turn, item) in (0..20).map(item).prefetch(&device, options()).reuse().enumerate() {
        assert_eq!(number(&item.unwrap()), turn);
    }
    let items = stream::iter((0..20).map(item)).prefetch(&device, options()).reuse();
    let numbers = block_on(items.map(|item| number(&item.unwrap())).collect::<Vec<_>>());
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    no_violations(&late);
}

/// catches: 175-a-panic-of-the-source-loses-an-item
#[test]
fn a_source_that_panics_loses_no_item() {
    let asked = Cell::new(0);
    let source = std::iter::from_fn(|| {
        asked.set(asked.get() + 1);
        assert!(asked.get() != 4, "as this test wants it to");
        (asked.get() < 9).then(|| item(asked.get()))
    });
    let mut items = source.prefetch(&Device::host(), options());
    let mut numbers = Vec::new();
    for _ in 0..10 {
        match catch_unwind(AssertUnwindSafe(|| items.next())) {
            Ok(Some(item)) => numbers.push(number(&item.unwrap())),
            Ok(None) => break,
            Err(_) => assert_eq!(asked.get(), 4),
        }
    }
    assert_eq!(numbers, [1, 2, 3, 5, 6, 7, 8]);
}

#[test]
fn memory_that_somebody_keeps_is_not_written_again() {
    let (late, device) = late();
    let mut items = (0..12).map(item).prefetch(&device, options().depth(1)).reuse();
    let mut clones = Vec::new();
    let mut kept = Vec::new();
    for turn in 0..12 {
        let item = items.next().unwrap().unwrap();
        match turn % 3 {
            0 => clones.push((turn, item[0].clone())),
            1 => kept.push((turn, Lent::into_inner(item))),
            _ => {}
        }
    }
    assert!(items.stats().reused < 12);
    drop(items);
    for (turn, tensor) in clones {
        assert_eq!(bytes_of(&tensor), vec![turn as u8; 100]);
    }
    for (turn, item) in kept {
        assert_eq!(number(&item), turn);
    }
    no_violations(&late);
}

#[test]
fn items_of_other_shapes_get_memory_of_their_own() {
    let sizes = [100, 100, 100, 100, 50, 100, 7, 7, 7, 7, 7, 0, 0, 100];
    let source = sizes.iter().enumerate().map(|(turn, bytes)| Tensor::from(vec![turn as u8; *bytes]));
    let mut items = source.prefetch(&Device::host(), options().depth(1)).reuse();
    for (turn, bytes) in sizes.into_iter().enumerate() {
        let item = items.next().unwrap().unwrap();
        assert_eq!(item.to_bytes().unwrap(), vec![turn as u8; bytes]);
    }
    assert!(items.stats().reused >= 3, "{items:?}");
}

#[test]
fn lent_items_outlive_their_iterator() {
    let (late, device) = late();
    let mut items = (0..5).map(item).prefetch(&device, options()).reuse();
    let first = items.next().unwrap().unwrap();
    let second = items.next().unwrap().unwrap();
    drop(items);
    assert_eq!(number(&first), 0);
    drop(first);
    assert_eq!(number(&Lent::into_inner(second)), 1);
    no_violations(&late);
}

/// Memory goes back while a stream still works on it: the next copy waits for that on the device.
#[test]
fn memory_is_written_again_behind_the_work_of_its_stream() {
    let (late, device) = late();
    device.prepare(4096).unwrap();
    let consumer = device.create_stream(StreamPriority::Normal).unwrap();
    let mut items = (0..6).map(item).prefetch(&device, options().depth(0)).hand_over(&consumer).reuse();
    let mut kernels = Vec::new();
    for _ in 0..6 {
        let item = items.next().unwrap().unwrap();
        kernels.push(Kernel::launch(&item[0], &consumer));
    }
    assert!(items.stats().reused > 0, "{items:?}");
    for (number, kernel) in kernels.into_iter().enumerate() {
        assert_eq!(kernel.result(), vec![number as u8; 100]);
    }
    no_violations(&late);
}

/// catches: 174-memory-that-does-not-fit-is-dropped
#[test]
fn shapes_that_alternate_find_memory_of_their_own() {
    for depth in 0..5 {
        let sizes = (0..60).map(|turn| (turn, [100, 40][turn % 2]));
        let source = sizes.clone().map(|(turn, bytes)| Tensor::from(vec![turn as u8; bytes]));
        let mut items = source.prefetch(&Device::host(), options().depth(depth)).reuse();
        for (turn, bytes) in sizes {
            assert_eq!(items.next().unwrap().unwrap().to_bytes().unwrap(), vec![turn as u8; bytes]);
        }
        assert!(items.stats().reused >= 60 - 2 * (depth as u64 + 2), "{items:?}");
    }
}

/// What does not fit gets other memory; any other failure is the item's.
#[test]
fn a_copy_into_used_memory_that_fails_is_an_error_in_its_place() {
    for in_turn in 0..12 {
        let (late, device) = late();
        device.prepare(1024).unwrap();
        late.fail_next(Call::Submit, in_turn);
        let items = (0..12).map(item).prefetch(&device, options()).reuse();
        let failed: Vec<_> = items.map(|item| item.map(drop).is_err()).collect();
        assert_eq!(failed.iter().position(|failed| *failed), Some(in_turn));
        assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
        no_violations(&late);
    }
}

#[test]
fn reused_items_share_no_memory_with_what_the_program_keeps() {
    let (late, device) = late();
    let resident: Vec<_> = (0..8_u8).map(|byte| support::on(&device, &[byte; 100])).collect();
    let mut items = resident.clone().into_iter().prefetch(&device, options()).reuse();
    for tensor in &resident {
        let item = items.next().unwrap().unwrap();
        assert_ne!(item.address().unwrap(), tensor.address().unwrap());
        assert_eq!(bytes_of(&item), bytes_of(tensor));
    }
    no_violations(&late);
}

#[test]
fn errors_of_sources_are_found_behind_those_of_items() {
    type Failure = Box<dyn std::error::Error + Send + Sync>;
    let failed = |turn: u8| match turn {
        1 => Err(std::io::Error::other("the disk is full")),
        _ => Ok(Tensor::from(vec![turn; 8])),
    };
    let host = Device::host();
    let mut items = (0..3).map(failed).try_prefetch_in_turn(&[host.clone(), late().1], options());
    assert!(items.next().unwrap().is_ok());
    let error = items.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the source failed");
    assert_eq!(format!("{error:#}"), "the source failed: the disk is full");
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some());

    let boxed = (0..3).map(|turn| failed(turn).map_err(Failure::from)).try_prefetch(&host, options());
    let failures: Vec<_> = boxed.filter_map(|item| item.map_err(PrefetchError::into_error).err()).collect();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].to_string(), "the disk is full");
}
