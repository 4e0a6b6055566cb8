//! Copies that a budget has no room for yet: who is served, who is refused, and that nothing else stands behind them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/budget.rs"]
mod budget;
#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use budget::{BUDGET, LONG_NAP, all_comes_back, limited, options, pending, stream_of, used};
use futures::executor::block_on;
use hooked::Hooked;
use late_backend::{LateConfig, LateHandle};
use support::{bytes_of, eventually, in_time, no_violations, on, two, with};
use transship_core::fill::Filler;
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, ErrorKind, Stream, Tensor, start_copy,
    start_copy_into, start_copy_to_all,
};

const ROUNDS: u8 = if cfg!(miri) { 5 } else { 100 };

fn by_workers() -> CopyOptions {
    options().background(BackgroundWork::Always)
}

fn stalled(late: &LateHandle, device: &Device) -> Stream {
    let stream = stream_of(device);
    late.stall_stream(&**stream.backend_stream());
    stream
}

/// So many bytes that a copy fills, which waits for a stream that stands still, and which the program has dropped.
fn still_filled(late: &LateHandle, device: &Device, bytes: usize) -> Stream {
    device.prepare(64).unwrap();
    let stream = stalled(late, device);
    let at_once = options().stream(&stream).background(BackgroundWork::Never);
    let before = late.pending();
    drop(start_copy(Tensor::from(vec![2_u8; bytes]), device, at_once).unwrap());
    assert!(late.pending() > before, "it is in flight");
    stream
}

fn start(device: &Device, bytes: usize) -> CopyHandle<Tensor> {
    start_copy(Tensor::from(vec![1_u8; bytes]), device, options()).unwrap()
}

/// Runs `work` on so many threads at once, each with its number.
fn on_threads(count: u8, work: impl Fn(u8) + Send + Sync + 'static) {
    in_time(move || {
        thread::scope(|scope| {
            let work = &work;
            (0..count).for_each(|number| drop(scope.spawn(move || work(number))));
        });
    });
}

/// What all threads have at the same time fits, so there is room for each as soon as what is in flight has ended.
/// catches: 521-room-is-taken-before-those-who-wait
#[test]
fn a_large_copy_is_not_refused_for_small_ones_that_come_later() {
    let (late, device) = limited();
    let target = device.clone();
    on_threads(4, move |number| {
        let (bytes, stream) = (if number == 0 { 2500 } else { 500 }, stream_of(&target));
        for round in 0..ROUNDS {
            let copy = start_copy(Tensor::from(vec![round; bytes]), &target, options());
            drop(copy.and_then(|copy| copy.wait_on(&stream)).expect("room comes"));
        }
    });
    all_comes_back(&late, &device);
}

/// Each thread has its last result and the next one, for which there is room as soon as what is in flight has ended.
///
/// catches: 748-what-is-dropped-later-does-not-leave
#[test]
fn who_holds_one_and_copies_one_more_is_never_refused() {
    const THREADS: u8 = 6;
    for (waits, frees_behind) in [(true, true), (false, true), (true, false), (false, false)] {
        let (late, device) = with(LateConfig { frees_behind, ..LateConfig::new("late") });
        device.set_memory_budget(usize::from(THREADS) * 2 * 500).unwrap();
        let target = device.clone();
        on_threads(THREADS, move |number| {
            let (stream, mut held) = (stream_of(&target), None);
            for round in 0..ROUNDS {
                let when = if (round ^ number) % 3 == 0 { by_workers() } else { options() };
                let copy = start_copy(Tensor::from(vec![round; 500]), &target, when);
                let next = match waits {
                    true => copy.and_then(|copy| copy.wait()),
                    false => copy.and_then(|copy| copy.wait_on(&stream)),
                };
                let next = next.expect("room comes");
                next.record_stream(&stream).unwrap();
                held = Some(next);
            }
            drop(held);
        });
        all_comes_back(&late, &device);
    }
}

/// catches: 470-what-is-in-flight-is-not-waited-for, 522-waiting-copies-are-passed
#[test]
fn nobody_passes_a_copy_that_waits_for_much() {
    let (late, device) = limited();
    let (held, dropped) = (on(&device, &[7; 1000]), on(&device, &[7; 600]));
    let _stream = still_filled(&late, &device, 2000);
    let much = pending(start(&device, 2100));
    let little = pending(start(&device, 900));
    drop(dropped);
    let (much, little) = (pending(much), pending(little));
    late.release();
    let much = in_time(move || much.wait()).expect("its room was not taken");
    assert_eq!(bytes_of(&in_time(move || little.wait()).unwrap()), [1; 900]);
    drop((held, much));
    all_comes_back(&late, &device);
}

/// `Tensor::zeros` never waits, and takes what is there.
#[test]
fn what_never_waits_takes_what_is_there() {
    let (late, device) = limited();
    let _stream = still_filled(&late, &device, 3000);
    let copy = pending(start(&device, 2000));
    let zeros = Tensor::zeros(&[1000], DType::U8, &device).expect("there is room");
    assert!(Tensor::zeros(&[1000], DType::U8, &device).is_err());
    late.release();
    assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 2000]);
    assert_eq!(bytes_of(&zeros), [0; 1000]);
    drop(zeros);
    all_comes_back(&late, &device);
}

/// More copies wait than there can be workers, and none of these knows of it.
/// catches: 523-workers-wait-for-room
#[test]
fn nothing_else_stands_behind_copies_that_wait_for_room() {
    let (late, device) = limited();
    let held = on(&device, &[7; 500]);
    let _stream = still_filled(&late, &device, 3500);
    let waiting: Vec<_> = (0..20).map(|_| start(&device, 150)).collect();
    let waiting: Vec<_> = waiting.into_iter().map(pending).collect();
    let refilled = start_copy_into(Tensor::from(vec![3_u8; 500]), held, by_workers()).unwrap();
    let refilled = in_time(move || block_on(refilled)).unwrap();
    let down = start_copy(refilled.clone(), &Device::host(), by_workers()).unwrap();
    assert_eq!(in_time(move || block_on(down)).unwrap().to_bytes().unwrap(), [3; 500]);
    let waiting: Vec<_> = waiting.into_iter().map(pending).collect();
    late.release();
    for copy in waiting {
        assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 150]);
    }
    drop(refilled);
    all_comes_back(&late, &device);
}

/// The stream goes on when the copy is done: its room comes from elsewhere.
#[test]
fn a_stream_may_wait_for_a_copy_that_waits_for_room() {
    for is_awaited in [true, false] {
        let (late, device) = limited();
        let held = on(&device, &[7; 2000]);
        let stream = still_filled(&late, &device, 1000);
        let copy = pending(start(&device, 3000));
        drop(held);
        // 3,096 bytes are free now, while the stream stands still.
        let there = in_time(move || if is_awaited { block_on(copy) } else { copy.wait() }).unwrap();
        late.release_stream(&**stream.backend_stream());
        assert_eq!(bytes_of(&there), [1; 3000]);
        drop(there);
        all_comes_back(&late, &device);
    }
}

/// Nobody waits for the copies but the reactor.
/// catches: 524-nobody-goes-on-with-who-was-served, 745-who-is-served-is-not-told
#[test]
fn copies_that_wait_for_room_go_on_by_themselves() {
    let (late, device) = limited();
    let _stream = still_filled(&late, &device, 3000);
    let copies: Vec<_> = (0..2).map(|_| start(&device, 2000)).collect();
    let copies: Vec<_> = copies.into_iter().map(pending).collect();
    late.release();
    let is_ready = |copy: &CopyHandle<Tensor>| copy.is_ready().expect("room comes");
    eventually("both are done", || copies.iter().all(is_ready));
    drop(copies);
    all_comes_back(&late, &device);
}

/// It stood behind another one, and no thread waits for it.
/// catches: 744-who-has-become-the-first-is-not-told
#[test]
fn who_has_become_the_first_is_refused_where_no_room_is_to_come() {
    let (late, device) = limited();
    let held = on(&device, &[7; 1000]);
    let _stream = still_filled(&late, &device, 2000);
    let [first, second] = [2000, 3500].map(|bytes| pending(start(&device, bytes)));
    late.release();
    let refused = in_time(move || block_on(second)).expect_err("the program holds too much");
    assert!(matches!(refused.error(), Error::OverBudget { requested: 3500, .. }), "{refused}");
    assert_eq!(bytes_of(&in_time(move || first.wait()).unwrap()), [1; 2000]);
    drop(held);
    all_comes_back(&late, &device);
}

/// Its structure comes back, and who stood behind it goes on, while the stream still stands.
/// catches: 525-a-place-is-kept-by-who-was-given-up, 526-who-leaves-the-line-says-nothing
#[test]
fn a_copy_that_waits_for_room_ends_at_once_when_it_is_given_up() {
    for is_cancelled in [true, false] {
        let (late, device) = limited();
        let _stream = still_filled(&late, &device, 3000);
        let first = pending(start(&device, 2000));
        let second = pending(start(&device, 1000));
        if is_cancelled {
            let mut cancelled = first.cancel();
            assert!(cancelled.in_flight.is_over().unwrap(), "nothing of it is in flight");
            let mut back = cancelled.value.take().expect("it comes back");
            assert!(back.as_mut_bytes().is_ok(), "and nobody reads it any more");
        } else {
            drop(first);
        }
        let second = in_time(move || second.wait()).expect("there was room for it all the time");
        assert_eq!(used(&device), 4000);
        drop(second);
        late.release();
        all_comes_back(&late, &device);
    }
}

/// Each waits for what is in flight, so that none stands aside. By hand: where only who does is refused, these have missed their deadlines.
/// catches: 527-late-copies-wait-on
#[test]
fn a_copy_that_waits_for_room_ends_at_its_deadline() {
    let (late, device) = limited();
    let _stream = still_filled(&late, &device, 3000);
    let start_until = |limit| start_copy(Tensor::from(vec![1_u8; 2000]), &device, options().deadline(limit));
    let until_deadline = [LONG_NAP; 2].map(|limit| start_until(limit).unwrap());
    let last = start(&device, 1000);
    let last = in_time(move || block_on(last)).expect("those before it leave by themselves");
    for copy in until_deadline {
        let refused = copy.wait().unwrap_err();
        let is_refused = matches!(refused.error(), Error::OverBudget { requested: 2000, .. });
        assert!(is_refused && refused.into_value().is_some());
    }
    drop(last);
    late.release();
    all_comes_back(&late, &device);
}

/// A copy has failed, and the worker who carries it has its memory for a moment more: that is in flight.
/// catches: 474-copies-of-workers-are-not-waited-for, 528-memory-of-failed-copies-not-waited-for
#[test]
fn memory_that_a_worker_still_has_is_waited_for() {
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let hooked = Hooked::new(late.backend(0));
    let device = Device::from_backend(hooked.clone()).unwrap();
    device.set_memory_budget(BUDGET).unwrap();
    let (allocates, goes_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, waits) = (allocates.clone(), goes_on.clone());
    hooked.before_next_allocate(move || {
        begins.wait();
        waits.wait();
    });
    let late_one = by_workers().deadline(LONG_NAP);
    let carried = start_copy(Tensor::from(vec![2_u8; 3000]), &device, late_one).unwrap();
    allocates.wait();
    assert_eq!(carried.wait().unwrap_err().error().kind(), ErrorKind::TimedOut);
    let copy = pending(start(&device, 2000));
    goes_on.wait();
    assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [1; 2000]);
    eventually("all memory comes back", || Tensor::zeros(&[BUDGET], DType::U8, &device).is_ok());
    no_violations(&late);
}

/// What stood before it in line ends first, and may make room.
#[test]
fn nobody_is_refused_while_somebody_stands_before_him() {
    let (late, device) = limited();
    let held = on(&device, &[7; 1000]);
    let stream = still_filled(&late, &device, 2000);
    let first = pending(start(&device, 3000));
    let second = pending(start(&device, 3000));
    late.release_stream(&**stream.backend_stream());
    let first = in_time(move || first.wait()).unwrap();
    // Nothing is in flight any more, and the program holds all.
    let refused = in_time(move || second.wait()).unwrap_err();
    assert!(matches!(refused.error(), Error::OverBudget { requested: 3000, used: 4000, .. }), "{refused}");
    assert_eq!(bytes_of(&refused.into_value().expect("it comes back")), [1; 3000]);
    drop((first, held));
    all_comes_back(&late, &device);
}

/// catches: 529-a-full-device-holds-up-the-others
#[test]
fn of_several_devices_one_that_is_full_holds_up_no_other() {
    let (late, one, other) = two(LateConfig::new("late"));
    for device in [&one, &other] {
        device.set_memory_budget(BUDGET).unwrap();
    }
    let _stream = still_filled(&late, &one, 3000);
    let both = [one.clone(), other.clone()];
    let source = || vec![Tensor::from(vec![5_u8; 2000]), Tensor::from(vec![6_u8; 10])];
    let targets = both.clone();
    let mut copies = in_time(move || start_copy_to_all(source(), &targets, options())).unwrap().into_iter();
    let (first, second) = (pending(copies.next().unwrap()), copies.next().unwrap());
    let there = in_time(move || second.wait()).unwrap();
    assert_eq!(bytes_of(&there[0]), [5; 2000]);
    let mut copies = start_copy_to_all(source(), &both, by_workers()).unwrap().into_iter();
    let (cancelled, second) = (copies.next().unwrap().cancel(), copies.next().unwrap());
    assert!(cancelled.in_flight.is_over().unwrap());
    let there_too = in_time(move || second.wait()).unwrap();
    assert_eq!(bytes_of(&there_too[1]), [6; 10]);
    let first = pending(first);
    late.release();
    assert_eq!(bytes_of(&in_time(move || first.wait()).unwrap()[0]), [5; 2000]);
    drop((there, there_too, cancelled));
    all_comes_back(&late, &one);
    all_comes_back(&late, &other);
}

#[test]
fn a_loader_stands_in_the_same_line() {
    let (late, device) = limited();
    let _stream = still_filled(&late, &device, 3000);
    let before = pending(start(&device, 2000));
    let is_there = Arc::new(AtomicBool::new(false));
    let (loads, target) = (is_there.clone(), device.clone());
    let loader = thread::spawn(move || {
        let mut filler = Filler::new(&target, 64 << 10).unwrap();
        filler.allocate(1000, 1).expect("room comes");
        loads.store(true, Ordering::Relaxed);
        filler.finish().unwrap()
    });
    thread::sleep(LONG_NAP);
    assert!(!is_there.load(Ordering::Relaxed), "a copy stands before it, though 1,096 bytes are free");
    late.release();
    let before = in_time(move || before.wait()).unwrap();
    let loaded = in_time(move || loader.join().unwrap());
    assert_eq!(used(&device), 3000);
    drop((before, loaded));
    all_comes_back(&late, &device);
}
