//! In steady state a small copy is one submission and nothing else.
//!
//! The only test of its binary: some of the counters are of the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use futures::executor::block_on;
use support::{in_time, late, no_violations};
use transship_core::backend::Counters;
use transship_core::{CopyOptions, Device, RuntimeStats, Tensor, runtime_stats, start_copy};

const COPIES: u64 = 100;

fn batch() -> Vec<Tensor> {
    (0..40).map(|length| Tensor::from(vec![0.5_f32; length * 3])).collect()
}

fn up(device: &Device, by_polling: bool) {
    let copy = start_copy(batch(), device, CopyOptions::default()).unwrap();
    while by_polling && !copy.is_ready().unwrap() {
        std::hint::spin_loop();
    }
    copy.wait().unwrap();
}

fn down(device: &Device, tensors: &[Tensor]) {
    assert_eq!(tensors[0].device_id().unwrap(), device.id());
    start_copy(tensors.to_vec(), &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
}

/// What so many copies cost.
fn cost(device: &Device, copy: impl Fn()) -> (Counters, Counters, RuntimeStats, RuntimeStats) {
    let before = (device.counters(), runtime_stats());
    (0..COPIES).for_each(|_| copy());
    (before.0, device.counters(), before.1, runtime_stats())
}

#[track_caller]
fn is_one_submission_each(
    (before, after, program_before, program): (Counters, Counters, RuntimeStats, RuntimeStats),
) {
    assert_eq!(after.submissions - before.submissions, COPIES, "submissions");
    assert_eq!(after.copies - before.copies, COPIES, "copies");
    assert_eq!(after.staging_allocations, before.staging_allocations, "staging allocations");
    assert_eq!(after.staging_bytes, before.staging_bytes, "staging bytes");
    assert_eq!(after.events_created, before.events_created, "events");
    assert_eq!(after.streams_created, before.streams_created, "streams");
    assert_eq!(program.worker_handovers, program_before.worker_handovers, "hand-overs");
    assert_eq!(program.reactor_wakes, program_before.reactor_wakes, "wakes of the reactor");
    assert_eq!(program, program_before);
}

/// Mutant: shared elements count as lent by the program, and go one by one to the threads for owners.
///
/// catches: 12-every-copy-goes-to-a-worker
#[test]
fn a_small_copy_is_one_submission_and_nothing_else() {
    in_time(|| {
        let (late, device) = late();
        let resident = start_copy(batch(), &device, CopyOptions::default()).unwrap().wait().unwrap();
        for _ in 0..8 {
            up(&device, false);
            down(&device, &resident);
        }
        is_one_submission_each(cost(&device, || up(&device, false)));
        is_one_submission_each(cost(&device, || up(&device, true)));
        is_one_submission_each(cost(&device, || down(&device, &resident)));

        let before = runtime_stats().worker_handovers;
        let shared =
            || (0..40).map(|_| Tensor::from_arc([0.5_f32; 3].into(), &[3]).unwrap()).collect::<Vec<_>>();
        block_on(start_copy(shared(), &device, CopyOptions::default()).unwrap()).unwrap();
        assert_eq!(runtime_stats().worker_handovers, before, "elements have no destructor to be afraid of");
        no_violations(&late);
    });
}
