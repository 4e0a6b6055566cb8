//! How much is copied ahead, in which order, and what the program waits for.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::stream::{self, Stream, StreamExt};
use proptest::prelude::*;
use transship_core::backend::StreamPriority;
use transship_core::{CopyOptions, Device, Prefetch, PrefetchStream, Tensor};

use crate::support::{Drops, Kernel, PATIENCE, eventually, given_time, in_time, late, no_violations};
use crate::{item, number, options};

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
    eventually("what was lent is given back", || drops.count() == 5);
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
