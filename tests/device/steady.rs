//! Invariant: in a steady state a small copy allocates nothing, creates no event and wakes no thread.

use std::time::Duration;

use transship_core::backend::Counters;
use transship_core::{CopyOptions, Device, RuntimeStats, runtime_stats, start_copy};

use crate::bed::{self, bytes, down};
use crate::detection::{self, BYTES, LEAVES, Sample};
use crate::suite::Outcome;

const COPIES: u64 = 200;
const MOST_CALLS: u64 = 40;

pub(crate) fn a_copy_up_in_a_steady_state() -> Outcome {
    let device = bed::device(0);
    let batches = (0..4).map(detection::batch).collect::<Result<Vec<_>, _>>()?;
    device.prepare(1 << 20)?;
    let run = |pause| -> Outcome {
        for batch in batches.iter().cycle().take(COPIES as usize) {
            copy(batch, &device, pause)?;
        }
        Ok(())
    };
    let settled = Duration::from_millis(5);
    run(settled)?;
    run(Duration::ZERO)?;
    let own = difference(device.counters(), device.counters()).driver_calls;

    // Waiting asks the driver again and again: the calls are counted where the copy is done by then.
    let (before, programs) = (device.counters(), runtime_stats());
    run(settled)?;
    let spent = difference(before, device.counters());
    check_threads(programs);
    let before = device.counters();
    run(Duration::ZERO)?;
    let spinning = difference(before, device.counters());
    check_threads(programs);

    let calls = |spent: &Counters| (spent.driver_calls - own) as f64 / COPIES as f64;
    println!("{LEAVES} tensors, {BYTES} bytes, up, wait, drop, {COPIES} times; for each copy:");
    println!("  driver calls {:.2}, or {:.2} while it asks again and again", calls(&spent), calls(&spinning));
    println!("  {spent:?} in all");
    assert_eq!(bytes(down(bed::up(batches[1].clone(), &device))), bytes(batches[1].clone()));
    for spent in [&spent, &spinning] {
        check(spent);
    }
    assert!(spent.driver_calls - own <= MOST_CALLS * COPIES, "{:.2} driver calls", calls(&spent));
    Ok(())
}

fn copy(batch: &[Sample], device: &Device, pause: Duration) -> Outcome {
    let handle = start_copy(batch.to_vec(), device, CopyOptions::default())?;
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    drop(handle.wait()?);
    Ok(())
}

fn difference(before: Counters, after: Counters) -> Counters {
    let mut spent = Counters::default();
    spent.driver_calls = after.driver_calls - before.driver_calls;
    spent.submissions = after.submissions - before.submissions;
    spent.copies = after.copies - before.copies;
    spent.bytes_up = after.bytes_up - before.bytes_up;
    spent.bytes_down = after.bytes_down - before.bytes_down;
    spent.bytes_between = after.bytes_between - before.bytes_between;
    spent.device_bytes = after.device_bytes.abs_diff(before.device_bytes);
    spent.staging_allocations = after.staging_allocations - before.staging_allocations;
    spent.staging_bytes = after.staging_bytes.abs_diff(before.staging_bytes);
    spent.staging_high_water = after.staging_high_water - before.staging_high_water;
    spent.events_created = after.events_created - before.events_created;
    spent.streams_created = after.streams_created - before.streams_created;
    spent
}

fn check(spent: &Counters) {
    let Counters { submissions, copies, bytes_up, .. } = *spent;
    assert_eq!((submissions, copies), (COPIES, COPIES), "a batch is one submission of one copy");
    assert!(bytes_up >= COPIES * BYTES as u64);
    let mut idle = Counters::default();
    (idle.driver_calls, idle.submissions, idle.copies, idle.bytes_up) =
        (spent.driver_calls, submissions, copies, bytes_up);
    assert_eq!(*spent, idle, "something was allocated, created or copied beside");
}

fn check_threads(before: RuntimeStats) {
    let after = runtime_stats();
    assert_eq!(after.worker_handovers - before.worker_handovers, 0, "hand-overs to workers");
    assert_eq!(after.reactor_wakes - before.reactor_wakes, 0, "wakes of the reactor");
}
