//! Staging: nothing is created in a steady state, `trim` gives it back, and the budget holds.

use transship_core::{CopyOptions, Tensor, runtime_stats, start_copy};

use super::Outcome;
use crate::bed::{Program, eventually, numbers, up};
use crate::shader::Doubling;

const COPIES: u64 = 100;

pub(crate) fn a_copy_up_in_a_steady_state() -> Outcome {
    let program = Program::new();
    program.target.prepare(1 << 20)?;
    let run =
        || (0..COPIES).for_each(|seed| drop(up(Tensor::from(numbers(1000, seed as usize)), &program.target)));
    run();
    let (before, programs) = (program.target.counters(), runtime_stats());
    run();
    let (after, programs_after) = (program.target.counters(), runtime_stats());
    let mut expected = before;
    expected.driver_calls = after.driver_calls;
    expected.submissions += COPIES;
    expected.copies += COPIES;
    expected.bytes_up += COPIES * 4000;
    assert_eq!(after, expected, "something was allocated or copied beside");
    println!(
        "calls of wgpu for each copy: {:.2}",
        (after.driver_calls - before.driver_calls) as f64 / COPIES as f64
    );
    assert_eq!(programs, programs_after, "a thread was woken");
    Ok(())
}

pub(crate) fn trim_gives_all_staging_back() -> Outcome {
    let program = Program::new();
    let there = up(Tensor::from(numbers(3 << 20, 1)), &program.target);
    let back = up(there, &transship_core::Device::host());
    assert!(program.target.counters().staging_bytes >= 12 << 20);
    drop(back);
    assert!(eventually(|| program.target.staging_usage().in_use + program.target.result_usage().in_use == 0));
    assert!(program.target.trim() >= 12 << 20);
    assert_eq!(program.target.counters().staging_bytes, 0);
    assert!(eventually(|| program.target.counters().device_bytes == 0), "{:?}", program.target.counters());
    Ok(())
}

pub(crate) fn copies_in_flight_stay_within_the_budget() -> Outcome {
    const BUDGET: usize = 4 << 20;
    let program = Program::new();
    program.target.set_staging_budget(BUDGET)?;
    Doubling::new(&program).stall(&program);
    let start =
        |seed| start_copy(Tensor::from(numbers(100_000, seed)), &program.target, CopyOptions::default());
    let handles = (0..100).map(start).collect::<Result<Vec<_>, _>>()?;
    for (seed, handle) in handles.into_iter().enumerate() {
        assert_eq!(crate::bed::floats(handle.wait()?), numbers(100_000, seed));
    }
    let statistics = program.target.staging_usage();
    assert!(statistics.high_water <= BUDGET, "{statistics:?}");
    let most = program.target.counters().staging_high_water as usize;
    assert!(most <= BUDGET + program.target.result_usage().high_water, "{most} bytes of staging");
    Ok(())
}
