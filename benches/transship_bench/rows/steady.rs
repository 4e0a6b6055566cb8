//! What a copy asks of the driver, of other threads and of the heap once everything is warm.

use transship::backend::Counters;
use transship::{Error, RuntimeStats, runtime_stats};

use super::Work;
use crate::Result;
use crate::allocations;
use crate::bed::{Bed, Needs};
use crate::detection;
use crate::detection::Sample;
use crate::input::{self, Input};
use crate::ours::{self, Target};
use crate::table::{Kind, Line, Row};

pub(super) const ROWS: &[Work] = &[Work {
    name: "steady-state",
    title: "one headline copy up in steady state",
    needs: Needs::Nothing,
    run,
}];

const WARM_UP: usize = 20;
const COPIES: usize = 100;

fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let target = Target::new(bed, &bed.device);
    let inputs = input::headline(1)?;
    let mut inputs = inputs.iter().cycle();
    for input in inputs.by_ref().take(WARM_UP) {
        copy(&target, input)?;
    }
    let before = (bed.device.counters(), runtime_stats());
    let mut allocations = Vec::with_capacity(COPIES);
    for input in inputs.by_ref().take(COPIES) {
        allocations.push(copy(&target, input)?);
    }
    allocations.sort_unstable();
    let after = (bed.device.counters(), runtime_stats());
    verify(&target)?;

    let mut row =
        Row::new(work.name, format!("{}, {COPIES} of them", work.title), detection::LEAVES, detection::BYTES);
    row.lines = figures(&before, &after, &allocations);
    row.notes.push("heap: of the calling thread, from start_copy until wait() has returned".to_owned());
    Ok(vec![row])
}

/// Copies once, and says how often the heap was asked for it.
fn copy(target: &Target, input: &Input<Vec<Sample>>) -> Result<u64> {
    let value = input.value.clone();
    let (allocations, copied) =
        allocations::during(|| target.start(value)?.wait().map_err(Error::from).map_err(Into::into));
    copied.map(|copied: Vec<Sample>| {
        drop(copied);
        allocations
    })
}

fn verify(target: &Target) -> Result<()> {
    for input in input::headline(2)? {
        let (_, copied) = ours::until_waited(input.value, target)?;
        if !ours::is_copy(copied, &input.expected)? {
            return Err("other bytes came back".into());
        }
    }
    Ok(())
}

fn figures(
    before: &(Counters, RuntimeStats),
    after: &(Counters, RuntimeStats),
    allocations: &[u64],
) -> Vec<Line> {
    let count = |name: &str, of: fn(&(Counters, RuntimeStats)) -> u64| {
        Line::figure(Kind::Ours, name, of(after).saturating_sub(of(before)) as f64, "in all")
    };
    let heap =
        |name: &str, index: usize| Line::figure(Kind::Ours, name, allocations[index] as f64, "for each copy");
    vec![
        heap("heap allocations, median", COPIES / 2),
        heap("heap allocations, most", COPIES - 1),
        count("blocks of staging memory allocated", |(device, _)| device.staging_allocations),
        count("bytes of device memory asked for", |(device, _)| device.device_bytes),
        count("events created", |(device, _)| device.events_created),
        count("streams created", |(device, _)| device.streams_created),
        count("hand-overs to workers", |(_, program)| program.worker_handovers),
        count("wakes of the reactor", |(_, program)| program.reactor_wakes),
        count("submissions", |(device, _)| device.submissions),
        count("calls of the driver", |(device, _)| device.driver_calls),
    ]
}
