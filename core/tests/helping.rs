//! Who waits for a copy that workers carry out does their work meanwhile, unless he waits for a time only.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use late_backend::{Call, LateHandle};
use serde_json::Value;
use support::{Drops, bytes_of, eventually, late, no_violations};
use transship_core::backend::StreamPriority;
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, Device, Tensor, TimedWait, Timeline, start_copy,
};

const LONG: Duration = Duration::from_secs(60);
const MOST_WORKERS: usize = 8;
const STEP: Duration = Duration::from_millis(10);
const OPERATIONS_IN_A_STEP: usize = 4;

fn options() -> CopyOptions {
    CopyOptions::default().background(BackgroundWork::Always)
}

fn tree() -> Vec<Tensor> {
    vec![Tensor::from(vec![1_u8; 3 << 20]), Tensor::from(vec![2_u8; 5])]
}

/// How many copies this thread has submitted.
fn own_submissions(late: &LateHandle) -> usize {
    let own = thread::current().id();
    late.calls().iter().filter(|call| call.call == Call::Submit && call.thread == own).count()
}

/// Mutant: nobody helps (98).
#[test]
fn who_waits_carries_units() {
    let (late, device) = late();
    carries_units(&late, &device, |copy| copy.wait().unwrap());
}

#[test]
fn who_hands_a_copy_to_a_stream_carries_units() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    carries_units(&late, &device, |copy| copy.wait_on(&stream).unwrap());
}

fn carries_units(late: &LateHandle, device: &Device, end: impl Fn(CopyHandle<Vec<Tensor>>) -> Vec<Tensor>) {
    eventually("this thread comes before the workers", || {
        late.clear_calls();
        let copied = end(start_copy(tree(), device, options()).unwrap());
        let submitted = own_submissions(late);
        assert_eq!(bytes_of(&copied[1]), [2; 5]);
        submitted > 0
    });
    no_violations(late);
}

/// A unit, or a driver that does not answer, would take longer. Mutant: whoever waits helps (99).
#[test]
fn who_waits_for_a_time_leaves_the_work_to_workers() {
    let (late, device) = late();
    for _ in 0..10 {
        late.clear_calls();
        let copy = start_copy(tree(), &device, options()).unwrap();
        assert!(matches!(copy.wait_timeout(LONG).unwrap(), TimedWait::Done(_)));
        let _ = start_copy(tree(), &device, options().deadline(LONG)).and_then(CopyHandle::wait).unwrap();
        assert_eq!(own_submissions(&late), 0);
    }
    no_violations(&late);
}

/// The worker that was called comes when all is done. Mutant: what it is called with holds the sources (100).
#[test]
fn sources_are_free_when_wait_returns_though_no_worker_has_come() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    // Each holds a worker up, and there are no more.
    let paced = || {
        start_copy(
            Tensor::from(vec![1_u8; 16 << 10]),
            &device,
            options().max_bytes_in_flight(4096).stream(&stream),
        )
    };
    let held_up: Vec<_> = (0..MOST_WORKERS + 1).map(|_| paced().unwrap()).collect();

    let drops = Drops::default();
    let copied =
        start_copy(drops.tensor(vec![7; 64]), &device, options()).and_then(CopyHandle::wait).unwrap();
    assert_eq!(drops.count(), 1, "somebody still holds the source");
    assert_eq!(bytes_of(&copied), [7; 64]);
    late.release();
    held_up.into_iter().for_each(|copy| drop(copy.wait().unwrap()));
    no_violations(&late);
}

/// catches: 704-the-threads-of-a-copy-that-is-over-help-nobody
#[test]
fn a_copy_that_has_begun_beside_another_gets_the_threads_of_that() {
    let most = thread::available_parallelism().map_or(1, usize::from).clamp(2, MOST_WORKERS);
    let (late, device) = late();
    device.set_staging_budget(4 << 20).unwrap();
    let streams = [0, 1].map(|_| device.create_stream(StreamPriority::Normal).unwrap());
    let [first, second] = streams.each_ref().map(|stream| &**stream.backend_stream());
    late.stall_stream(first);
    late.stall_stream(second);
    let large = || Tensor::from(vec![3_u8; 32 << 20]);
    let before = start_copy(large(), &device, options().stream(&streams[0])).unwrap();
    eventually("the first copy has begun", || late.pending() > 0);
    late.clear_calls();
    let timeline = Timeline::new();
    let copy = start_copy(large(), &device, options().stream(&streams[1]).timeline(&timeline)).unwrap();
    let waiting = thread::spawn(move || copy.wait().unwrap());
    eventually("the second copy begins", || late.calls().iter().any(|call| call.call == Call::Allocate));
    thread::sleep(STEP);
    late.release_stream(first);
    drop(before.wait().unwrap());
    // Step by step, so that threads have time to come. Operations run only when somebody looks, and threads that sleep may not
    // look before the stream is stalled again.
    while !waiting.is_finished() {
        late.release_stream(second);
        for _ in 0..OPERATIONS_IN_A_STEP {
            second.reached().unwrap();
        }
        late.stall_stream(second);
        thread::sleep(STEP);
    }
    drop(waiting.join().unwrap());
    let threads = threads_that_stage(&timeline);
    assert!(threads.len() > most.div_ceil(2), "no more than it had beside the first copy: {threads:?}");
    late.release();
    no_violations(&late);
}

fn threads_that_stage(timeline: &Timeline) -> HashSet<u64> {
    let json: Value = serde_json::from_str(&timeline.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["name"] == "stage").filter_map(|event| event["tid"].as_u64()).collect()
}
