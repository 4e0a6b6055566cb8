//! A copy is given up while another thread is in the middle of a call of its device, for each of these calls: nothing waits
//! for that call, and nothing is lost, freed early or left behind.
//!
//! catches: 01-entry-popped-after-submit, 11-drop-waits

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use late_backend::{LateConfig, LateHandle};
use support::{Drops, bytes_of, eventually, in_time, no_violations, on, two, with};
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, Device, Tensor, TimedWait, start_copy, start_copy_to_all,
};

/// More calls than any of the copies makes.
const MOST_CALLS: usize = 400;
/// No fewer than any of them makes: an allocation and a submission.
const FEWEST_CALLS: usize = 2;

type Handle = CopyHandle<Vec<Tensor>>;

/// What is done to a copy; what it gives back.
type GiveUp = fn(Handle) -> Option<Vec<Tensor>>;

/// Where a copy comes from and goes to.
#[derive(Debug, Clone, Copy)]
enum Way {
    Up,
    /// In several blocks, which workers fill.
    LargeUp,
    /// A page at a time.
    PacedUp,
    Down,
    LargeDown,
    Peer,
    /// Between devices of two drivers.
    OverHost,
    /// To two devices; the copy to the second one goes on.
    ToBoth,
}

const WAYS: [Way; 8] =
    [Way::Up, Way::LargeUp, Way::PacedUp, Way::Down, Way::LargeDown, Way::Peer, Way::OverHost, Way::ToBoth];

#[test]
fn a_handle_is_dropped() {
    at_every_call(|copy| {
        drop(copy);
        None
    });
}

#[test]
fn a_handle_is_dropped_that_was_polled() {
    at_every_call(|mut copy| {
        drop(Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop())));
        drop(copy);
        None
    });
}

#[test]
fn a_handle_is_dropped_that_was_waited_for() {
    at_every_call(|copy| match copy.wait_timeout(Duration::from_micros(1)).unwrap() {
        TimedWait::Pending(copy) => {
            drop(copy);
            None
        }
        TimedWait::Done(tree) => Some(tree),
    });
}

#[test]
fn a_copy_is_cancelled() {
    at_every_call(|copy| copy.cancel().value);
}

/// What a forgotten handle owns stays; nothing else does.
#[test]
fn a_handle_is_forgotten() {
    for way in WAYS {
        for_every_call(way, |trip, copy| {
            std::mem::forget(copy);
            trip.late.let_go();
            trip.devices.iter().for_each(still_works);
            no_violations(&trip.late);
        });
    }
}

/// The end of a copy whose device breaks is an error that says so, or it was done before. Later ones fail at once.
#[test]
fn the_device_breaks() {
    for way in WAYS {
        for_every_call(way, |trip, copy| {
            trip.late.break_device();
            trip.late.let_go();
            for copy in std::iter::once(copy).chain(trip.other) {
                if let Err(failed) = in_time(move || copy.wait()) {
                    assert!(failed.error().to_string().contains("the device is broken"), "{failed}");
                }
            }
            let [one, _] = &trip.devices;
            let later = start_copy(Tensor::from(vec![1_u8]), one, options());
            assert!(in_time(move || later.and_then(CopyHandle::wait)).is_err());
            no_violations(&trip.late);
        });
    }
}

fn at_every_call(give_up: GiveUp) {
    for way in WAYS {
        for_every_call(way, move |trip, copy| {
            let back = give_up(copy);
            trip.late.let_go();
            trip.check(back);
        });
    }
}

/// Starts the copy anew for each of its calls, and does `meanwhile` during that call. The last time it is done by then.
fn for_every_call(way: Way, meanwhile: impl Fn(Trip, Handle) + Copy + Send + 'static) {
    for mapped_staging in [false, true] {
        let mut calls = 0;
        while in_time(move || {
            let (trip, copy) = Trip::start(way, mapped_staging, calls);
            let is_held = trip.is_held_before_it_is_done(&copy);
            meanwhile(trip, copy);
            is_held
        }) {
            calls += 1;
            assert!(calls < MOST_CALLS, "{way:?} makes too many");
        }
        assert!(calls >= FEWEST_CALLS, "{way:?} makes {calls} only, mapped staging: {mapped_staging}");
    }
}

/// One copy.
struct Trip {
    late: LateHandle,
    devices: [Device; 2],
    drops: Drops,
    /// Tensors that `drops` counts.
    sources: usize,
    contents: Vec<Vec<u8>>,
    other: Option<Handle>,
}

impl Trip {
    /// Starts a copy whose call after so many is held up.
    fn start(way: Way, mapped_staging: bool, calls: usize) -> (Self, Handle) {
        let config = LateConfig { mapped_staging, ..LateConfig::new("late") };
        let (late, one, other) = two(config.clone());
        let other = match way {
            Way::OverHost => with(LateConfig { name: "other", ..config }).1,
            _ => other,
        };
        let large = if matches!(way, Way::LargeUp | Way::LargeDown) { 1_200_000 } else { 9000 };
        let contents = vec![vec![1; 8], vec![2; large + 1], vec![3; 24]];
        let drops = Drops::default();
        let from_host = matches!(way, Way::Up | Way::LargeUp | Way::PacedUp | Way::ToBoth);
        let source = |bytes: &Vec<u8>| match from_host {
            true => drops.tensor(bytes.clone()),
            false => on(&one, bytes),
        };
        let tree: Vec<Tensor> = contents.iter().map(source).collect();
        let sources = if from_host { tree.len() } else { 0 };
        let options = options();
        late.hold(calls);
        let mut copies = match way {
            Way::Up | Way::LargeUp => vec![start_copy(tree, &one, options).unwrap()],
            Way::PacedUp => vec![start_copy(tree, &one, options.max_bytes_in_flight(4096)).unwrap()],
            Way::Down | Way::LargeDown => vec![start_copy(tree, &Device::host(), options).unwrap()],
            Way::Peer | Way::OverHost => vec![start_copy(tree, &other, options).unwrap()],
            Way::ToBoth => start_copy_to_all(tree, &[one.clone(), other.clone()], options).unwrap(),
        };
        let copy = copies.remove(0);
        (Self { late, devices: [one, other], drops, sources, contents, other: copies.pop() }, copy)
    }

    fn is_held_before_it_is_done(&self, copy: &Handle) -> bool {
        let all_are_done = || {
            let mut copies = std::iter::once(copy).chain(&self.other);
            copies.all(|copy| copy.is_ready().unwrap())
        };
        loop {
            if self.late.is_holding() {
                return true;
            }
            if all_are_done() {
                return false;
            }
            thread::yield_now();
        }
    }

    /// What came back is what went in, and when it has gone all is given back.
    fn check(self, back: Option<Vec<Tensor>>) {
        let copied = self.other.map(|copy| copy.wait().unwrap());
        for tree in back.iter().chain(&copied) {
            assert_eq!(tree.iter().map(bytes_of).collect::<Vec<_>>(), self.contents);
        }
        drop((back, copied));
        eventually("the sources are let go of", || self.drops.count() == self.sources);
        for device in &self.devices {
            still_works(device);
            eventually("all memory is given back", || {
                device.synchronize().unwrap();
                device.counters().device_bytes == 0 && device.staging_usage().in_use == 0
            });
        }
        no_violations(&self.late);
    }
}

fn options() -> CopyOptions {
    CopyOptions::default().background(BackgroundWork::Always)
}

fn still_works(device: &Device) {
    assert_eq!(bytes_of(&on(device, &[3; 8])), [3; 8]);
}
