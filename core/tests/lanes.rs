//! Threads that copy to one device do so on streams of their own, each in order, and nothing of these streams is forgotten.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Barrier;
use std::thread;

use late_backend::LateConfig;
use support::{bytes_of, eventually, in_time, late, no_violations, on, with};
use transship_core::backend::StreamPriority;
use transship_core::{BackgroundWork, CopyHandle, CopyOptions, Device, Tensor, start_copy};

/// More than there are streams of a kind.
const THREADS: u8 = 8;

fn down(tensor: &Tensor) -> CopyHandle<Tensor> {
    start_copy(tensor.clone(), &Device::host(), CopyOptions::default()).unwrap()
}

/// What each of many threads, which all live at the same time, comes to.
fn on_many_threads<R: Send>(work: impl Fn(u8) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// More looks than there are operations: whatever may run has run then.
fn is_done(copy: &CopyHandle<Tensor>) -> bool {
    (0..64).any(|_| copy.is_ready().unwrap())
}

/// catches: 71-one-lane-for-all-threads
#[test]
fn a_thread_copies_in_order_and_holds_up_no_other() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let (first, second) = (on(&device, &[1; 8]), on(&device, &[2; 8]));
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    stream.record().unwrap();
    first.record_stream(&stream).unwrap();

    let behind_the_stream = down(&first);
    eventually("it is submitted", || behind_the_stream.report().submitted_after.is_some());
    let behind_that = down(&second);
    assert!(!is_done(&behind_the_stream) && !is_done(&behind_that), "out of order");
    let elsewhere = on_many_threads(|_| is_done(&down(&second)));
    assert!(elsewhere.contains(&true), "every thread waits for this one");

    late.release();
    assert_eq!(behind_that.wait().unwrap().to_bytes().unwrap(), [2; 8]);
    assert_eq!(behind_the_stream.wait().unwrap().to_bytes().unwrap(), [1; 8]);
    no_violations(&late);
}

/// Leaves copies in flight that nobody looks after, one for each of many threads.
fn forget_copies(device: &Device) {
    on_many_threads(|byte| {
        let copy = start_copy(Tensor::from(vec![byte; 100]), device, CopyOptions::default()).unwrap();
        eventually("it is submitted", || copy.report().submitted_after.is_some());
        std::mem::forget(copy);
    });
    assert!(device.staging_usage().in_use > 0);
}

/// catches: 72-lanes-of-threads-forgotten
#[test]
fn what_copies_of_many_threads_use_is_let_go_of_by_synchronize() {
    in_time(|| {
        let (late, device) = late();
        late.stall();
        forget_copies(&device);
        late.release();
        device.synchronize().unwrap();
        assert_eq!(device.staging_usage().in_use, 0);
        no_violations(&late);
    });
}

#[test]
fn a_shutdown_waits_for_the_copies_of_all_threads() {
    in_time(|| {
        let (late, device) = late();
        forget_copies(&device);
        device.drain().unwrap();
        assert_eq!((device.staging_usage().in_use, device.staging_usage().idle), (0, 0));
        assert_eq!(late.pending(), 0);
        no_violations(&late);
    });
}

/// catches: 73-new-lanes-not-served
#[test]
fn blocks_come_back_from_the_streams_of_all_threads() {
    let (late, device) = late();
    device.set_staging_budget(256 << 10).unwrap();
    for round in 0..4 {
        forget_copies(&device);
        // By this thread alone, which nobody helps.
        let options = || CopyOptions::default().background(BackgroundWork::Never);
        let mut copy = None;
        eventually("a block comes back", || {
            copy = start_copy(Tensor::from(vec![round; 100]), &device, options()).ok();
            copy.is_some()
        });
        assert_eq!(bytes_of(&copy.unwrap().wait().unwrap()), [round; 100]);
    }
    no_violations(&late);
}

#[test]
fn a_device_goes_with_the_streams_of_all_threads() {
    let (late, device) = late();
    on_many_threads(|byte| {
        let there = on(&device, &[byte; 100]);
        assert_eq!(bytes_of(&there), [byte; 100]);
    });
    drop(device);
    let backend = late.backend(0);
    eventually("everything is given back", || {
        backend.counters().device_bytes == 0 && backend.counters().staging_bytes == 0
    });
    no_violations(&late);
}

/// catches: 219-streams-made-beside-each-other
#[test]
fn threads_that_start_together_create_a_stream_once() {
    for _ in 0..60 {
        let (late, device) = with(LateConfig { copy_streams: 2, ..LateConfig::new("late") });
        let together = Barrier::new(THREADS.into());
        let there = on_many_threads(|byte| {
            together.wait();
            on(&device, &[byte; 100])
        });
        drop(there);
        // Those for copies up, and one each for the two other kinds.
        assert!(device.counters().streams_created <= 2 + 2);
        no_violations(&late);
    }
}

#[test]
fn streams_are_created_once_and_no_more_than_the_device_has_use_for() {
    for copy_streams in [1, 3] {
        let (late, device) = with(LateConfig { copy_streams, ..LateConfig::new("late") });
        let copies = || on_many_threads(|byte| drop(on(&device, &[byte; 100])));
        (0..4).for_each(|_| drop(copies()));
        // Those for copies up, and one each for the two other kinds.
        assert!(device.counters().streams_created <= copy_streams as u64 + 2);
        assert!(copy_streams == 1 || device.counters().streams_created > 3, "each thread has the same");
        no_violations(&late);
    }
}
