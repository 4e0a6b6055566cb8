//! From the device to the host.

use transship::{Tensor, TensorTree};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs, huge_pages};
use crate::detection;
use crate::input::{self, Input};
use crate::measure::{Contender, series};
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::Row;

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "down-headline",
        title: "headline batch down, 528 device allocations",
        needs: Needs::Device,
        run: headline,
    },
    Work {
        name: "down-headline-ordinary",
        title: "the same into ordinary memory",
        needs: Needs::Device,
        run: headline_ordinary,
    },
    Work {
        name: "down-1x1GiB",
        title: "1 x 1 GiB down into pinned memory",
        needs: Needs::Device,
        run: pinned,
    },
    Work {
        name: "down-1x1GiB-ordinary",
        title: "1 x 1 GiB down into ordinary memory",
        needs: Needs::Device,
        run: ordinary,
    },
    Work { name: "down-200x8MB", title: "200 x 8 MB down", needs: Needs::Device, run: parameters },
];

/// What a pool may hold at least.
const LEAST_BUDGET: usize = 1 << 16;

fn headline(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut contenders = vec![
        to_host(bed).way("start_copy, until wait() returns (pinned, as usual)", ours::until_waited),
        to_host(bed).way("until start_copy returns", ours::until_started),
    ];
    contenders.extend(rivals::down(&bed.device, detection::BYTES)?);
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    row.lines = series(bed.effort(3.0), contenders, |seed| on_device(bed, input::headline(seed)?))?;
    Ok(vec![row])
}

fn headline_ordinary(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let contenders =
        vec![to_host(bed).way("start_copy, until wait() returns, results not pinned", ours::until_waited)];
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    row.lines = bed.with_result_budget(LEAST_BUDGET, || {
        series(bed.effort(1.0), contenders, |seed| on_device(bed, input::headline(seed)?))
    })?;
    Ok(vec![row])
}

fn pinned(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    // Room for the result and the one before it.
    let mut contenders = vec![to_host(bed).contender()];
    contenders.extend(rivals::down(&bed.device, bytes)?);
    bed.with_result_budget(3 * bytes, || large(bed, work, bytes, contenders))
}

fn ordinary(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let contenders = vec![
        to_host(bed).way("start_copy, until wait() returns, into fresh memory", ours::until_waited),
        to_host(bed).refill("start_copy_into, until wait() returns, into memory touched before"),
    ];
    let mut row = bed.with_result_budget(LEAST_BUDGET, || large(bed, work, bytes, contenders))?;
    row[0].notes.push(format!(
        "transparent huge pages: {}; rivals into ordinary memory: the row above",
        huge_pages()
    ));
    Ok(row)
}

/// The parameters of a model again and again; results of the time before are dropped.
fn parameters(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let (count, bytes) = (200, bed.bytes(8_000_000));
    let mut contenders = vec![
        to_host(bed).way("start_copy, until wait() returns (default budgets)", ours::until_waited),
        to_host(bed).refill("start_copy_into, until wait() returns, into the results of a first copy"),
    ];
    contenders.extend(rivals::down(&bed.device, count * bytes)?);
    let mut row = Row::new(work.name, work.title, count, count * bytes);
    row.lines = series(bed.effort(3.0), contenders, |seed| {
        let mut inputs = input::many(seed, count, bytes)?;
        inputs.truncate(1);
        on_device(bed, inputs)
    })?;
    Ok(vec![row])
}

fn large(bed: &Bed, work: &Work, bytes: usize, contenders: Vec<Contender<Vec<Tensor>>>) -> Result<Vec<Row>> {
    let mut row = Row::new(work.name, work.title, 1, bytes);
    row.lines = series(bed.effort(3.0), contenders, |seed| {
        let mut inputs = input::many(seed, 1, bytes)?;
        inputs.truncate(1);
        on_device(bed, inputs)
    })?;
    Ok(vec![row])
}

pub(super) fn to_host(bed: &Bed) -> Target {
    Target::new(bed, &transship::Device::host())
}

/// Each tensor with device memory of its own.
pub(super) fn on_device<S: TensorTree + Clone>(bed: &Bed, inputs: Vec<Input<S>>) -> Result<Vec<Input<S>>> {
    let options = bed.options(&bed.device).packing(false);
    inputs.into_iter().map(|input| input.on(&bed.device, &options)).collect()
}
