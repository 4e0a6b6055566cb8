//! What a cancelled copy has left in flight: when it is over, its memory can be used again at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::poll;
use futures::stream::{FuturesUnordered, StreamExt};
use support::held::{MODES, batch, bytes, options, ordinary, up};
use support::{Kernel, bytes_of, in_time, late, no_violations, on};
use transship_core::backend::StreamPriority;
use transship_core::{Cancelled, CopyHandle, Error, Tensor, start_copy, start_copy_into};

/// Deliberate bugs: what was submitted after the copy had failed is not waited for; it is over before workers have let go.
#[test]
fn memory_can_be_copied_into_again_as_soon_as_nothing_is_in_flight() {
    for (mode, to_host, paced, awaited) in MODES.into_iter().flat_map(|mode| {
        [
            (mode, true, false, false),
            (mode, false, false, true),
            (mode, false, true, false),
            (mode, false, true, true),
        ]
    }) {
        let (late, device) = late();
        device.prepare(1 << 16).unwrap();
        let options = if paced { options().max_bytes_in_flight(4096) } else { options().background(mode) };
        for round in 0..20 {
            let (source, there) = match to_host {
                true => (up(batch(3), &device), ordinary(&batch(1))),
                false => (batch(3), up(batch(1), &device)),
            };
            late.stall();
            let copy = start_copy_into(source, there, options.clone()).unwrap();
            let Cancelled { value, into, in_flight, .. } = in_time(move || copy.cancel());
            let (value, into) = (value.unwrap(), into.unwrap());
            let release = thread::spawn({
                let late = late.clone();
                move || {
                    thread::sleep(Duration::from_millis(round % 3));
                    late.release();
                }
            });
            in_time(move || if awaited { block_on(in_flight) } else { in_flight.wait() }).unwrap();
            let filled =
                start_copy_into(value, into, options.clone()).map_err(|failed| failed.error().clone());
            release.join().unwrap();
            let filled = filled.unwrap().wait().unwrap();
            assert_eq!(bytes(&filled), bytes(&batch(3)));
        }
        no_violations(&late);
    }
}

#[test]
fn as_long_as_the_device_stands_still_it_is_not_over() {
    let (late, device) = late();
    device.prepare(1 << 16).unwrap();
    let there = up(batch(1), &device);
    late.stall();
    let copy = start_copy_into(batch(2), there, options()).unwrap();
    let Cancelled { value, into, in_flight, .. } = copy.cancel();
    assert!(!in_flight.is_over().unwrap());
    assert!(!in_flight.wait_timeout(Duration::from_millis(5)).unwrap());
    let refused = start_copy_into(value.unwrap(), into.unwrap(), options()).unwrap_err();
    let Error::UnsuitedTensor { .. } = refused.error() else { panic!("{refused}") };
    late.release();
    assert!(in_flight.wait_timeout(support::PATIENCE).unwrap() && in_flight.is_over().unwrap());
    let (value, into) = refused.into_both();
    let filled = start_copy_into(value.unwrap(), into.unwrap(), options()).unwrap().wait().unwrap();
    assert_eq!(bytes(&filled), bytes(&batch(2)));
    no_violations(&late);
}

#[test]
fn a_copy_that_is_done_has_nothing_in_flight_and_a_broken_device_says_so() {
    let (late, device) = late();
    let mut copy = start_copy(batch(1), &device, options()).unwrap();
    block_on(transship_core::PendingCopy::done(&mut copy)).unwrap();
    assert!(copy.cancel().in_flight.is_over().unwrap());
    assert!(start_copy(on(&device, &[1]), &device, options()).unwrap().cancel().in_flight.is_over().unwrap());

    late.stall();
    let copy = start_copy(batch(1), &device, options()).unwrap();
    let in_flight = copy.cancel().in_flight;
    late.break_device();
    let failed = in_time(move || (in_flight.wait(), block_on(in_flight)));
    assert!(failed.0.is_err() && failed.1.is_err(), "{failed:?}");
}

/// Deliberate bug: the error speaks of tensors.
#[test]
fn a_handle_that_was_ready_says_that_it_is_finished() {
    let (_late, device) = late();
    let mut copy = start_copy(batch(1), &device, options()).unwrap();
    let copied = block_on(&mut copy).unwrap();
    assert_eq!(bytes(&copied), bytes(&batch(1)));
    for _ in 0..2 {
        let again = block_on(&mut copy).unwrap_err();
        assert!(matches!(again.error(), Error::Finished), "{again}");
        assert!(again.error().to_string().contains("do not poll a handle once it was ready"), "{again}");
    }
    assert!(matches!(copy.wait().unwrap_err().error(), Error::Finished));
}

/// catches: 659-a-later-stream-does-not-wait
#[test]
fn what_was_handed_to_a_stream_is_waited_for_by_another_one_and_by_the_host() {
    for mode in MODES {
        let (late, device) = late();
        device.prepare(1 << 16).unwrap();
        let streams = [StreamPriority::Normal; 2].map(|priority| device.create_stream(priority).unwrap());
        late.stall();
        let copy = start_copy(batch(2), &device, options().background(mode)).unwrap();
        let in_flight = copy.in_flight();
        let there = in_time({
            let first = streams[0].clone();
            move || copy.wait_on(&first).unwrap()
        });
        assert!(!in_flight.is_over().unwrap());
        assert!(!in_flight.wait_timeout(Duration::from_millis(5)).unwrap());
        streams[1].wait_in_flight(&in_flight).unwrap();
        let kernel = Kernel::launch(&there[3], &streams[1]);
        assert!(!streams[1].is_idle().unwrap());
        late.release();
        assert_eq!(kernel.result(), bytes_of(&batch(2)[3]));
        in_time(move || block_on(in_flight)).unwrap();
        assert!(there[3].is_ready().unwrap());
        no_violations(&late);
    }
}

/// catches: 705-all-who-look-on-have-one-waker
#[test]
fn everybody_who_awaits_what_is_in_flight_is_woken() {
    for together in [true, false] {
        let (late, device) = late();
        late.stall();
        let copy = start_copy(batch(1), &device, options()).unwrap();
        drop(copy.in_flight());
        let all = [copy.in_flight(), copy.in_flight(), copy.in_flight()];
        let (registered, are_registered) = mpsc::channel();
        let tasks: Vec<Vec<_>> =
            if together { vec![all.into()] } else { all.into_iter().map(|one| vec![one]).collect() };
        let count = tasks.len();
        let threads: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                let registered = registered.clone();
                thread::spawn(move || {
                    let mut all: FuturesUnordered<_> = task.into_iter().collect();
                    block_on(async move {
                        assert!(poll!(all.next()).is_pending());
                        registered.send(()).unwrap();
                        while let Some(over) = all.next().await {
                            over.unwrap();
                        }
                    });
                })
            })
            .collect();
        // Of a thread that has failed nothing comes.
        drop(registered);
        (0..count).for_each(|_| are_registered.recv().unwrap());
        drop(copy);
        late.release();
        in_time(move || threads.into_iter().for_each(|thread| thread.join().unwrap()));
        no_violations(&late);
    }
}

/// Asks for what the copy has in flight when it goes.
struct Asks(Arc<CopyHandle<Vec<Tensor>>>);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Asks {
    fn drop(&mut self) {
        drop(self.0.in_flight());
    }
}

/// catches: 708-wakers-of-who-has-gone-are-dropped-under-a-lock
#[test]
fn the_waker_of_who_looks_on_no_more_is_dropped_without_a_lock() {
    let (late, device) = late();
    late.stall();
    let copy = Arc::new(start_copy(batch(1), &device, options()).unwrap());
    let mut looks_on = copy.in_flight();
    let waker = Waker::from(Arc::new(Asks(copy.clone())));
    assert!(Pin::new(&mut looks_on).poll(&mut Context::from_waker(&waker)).is_pending());
    drop((looks_on, waker));
    let seen = copy.clone();
    in_time(move || seen.in_flight().is_over().unwrap());
    late.release();
    assert_eq!(bytes(&Arc::into_inner(copy).unwrap().wait().unwrap()), bytes(&batch(1)));
    no_violations(&late);
}
