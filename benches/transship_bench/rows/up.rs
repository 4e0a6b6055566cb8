//! From the host to the device.

use transship::Tensor;

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::detection;
use crate::input::{self, Input};
use crate::measure::series;
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work { name: "up-headline", title: "headline batch up", needs: Needs::Nothing, run: headline },
    Work {
        name: "phases-headline",
        title: "where the time of the headline batch up goes",
        needs: Needs::Nothing,
        run: phases,
    },
    Work {
        name: "up-2000x64KiB",
        title: "2,000 x 64 KiB up",
        needs: Needs::Nothing,
        run: |bed, work| many(bed, work, 2000, 64 << 10),
    },
    Work {
        name: "up-10000x4KiB",
        title: "10,000 x 4 KiB up",
        needs: Needs::Nothing,
        run: |bed, work| many(bed, work, 10_000, 4 << 10),
    },
    Work {
        name: "up-100000x256B",
        title: "100,000 x 256 B up",
        needs: Needs::Nothing,
        run: |bed, work| many(bed, work, 100_000, 256),
    },
    Work {
        name: "up-300x1MiB",
        title: "300 x 1 MiB up",
        needs: Needs::Nothing,
        run: |bed, work| many(bed, work, 300, 1 << 20),
    },
    Work {
        name: "up-1x1GiB",
        title: "1 x 1 GiB up",
        needs: Needs::Nothing,
        run: |bed, work| many(bed, work, 1, 1 << 30),
    },
    Work {
        name: "up-strided-large",
        title: "every other row of f32[409600,256] up",
        needs: Needs::Nothing,
        run: |bed, work| strided(bed, work, 1, [bed.bytes(409_600 * 1024) / 1024, 256]),
    },
    Work {
        name: "up-strided-small",
        title: "500 x every other row of f32[128,64] up",
        needs: Needs::Nothing,
        run: |bed, work| strided(bed, work, 500, [128, 64]),
    },
];

fn headline(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let target = Target::new(bed, &bed.device);
    let mut contenders = vec![
        target.contender(),
        target.way("until start_copy returns", ours::until_started),
        target.way("until .await returns, futures executor", ours::until_awaited),
        target.way("until .await returns, tokio", ours::until_awaited_by_tokio),
        target.way_of_owned("until wait() returns, inputs let go of on the way", ours::until_waited),
        target.way("dropping the result", ours::until_dropped),
    ];
    contenders.extend(rivals::up(&bed.device, detection::BYTES)?);
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    row.lines = series(bed.effort(6.0), contenders, input::headline)?;
    Ok(vec![row])
}

fn phases(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let target = Target::new(bed, &bed.device);
    let mut contenders = vec![
        target.contender(),
        target
            .way("taking the tensors", |value, target| ours::phase(value, target, |report| report.traverse)),
        target.way("planning", |value, target| ours::phase(value, target, |report| report.plan)),
        target.way("allocating", |value, target| ours::phase(value, target, |report| report.allocate)),
        target.way("staging", |value, target| ours::phase(value, target, |report| report.stage)),
        target.way("submitting", |value, target| ours::phase(value, target, |report| report.submit)),
    ];
    let rivals = rivals::up(&bed.device, detection::BYTES)?;
    contenders.extend(rivals.into_iter().filter(|rival| rival.kind() == Kind::Limit));
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    row.lines = series(bed.effort(3.0), contenders, input::headline)?;
    Ok(vec![row])
}

fn many(bed: &Bed, work: &Work, count: usize, bytes: usize) -> Result<Vec<Row>> {
    let bytes = bed.bytes(bytes);
    let count = bed.count(count, bytes);
    let mut contenders = vec![Target::new(bed, &bed.device).contender()];
    contenders.extend(rivals::up(&bed.device, count * bytes)?);
    let mut row = Row::new(work.name, work.title, count, count * bytes);
    row.lines = series(bed.effort(2.0), contenders, |seed| input::many(seed, count, bytes))?;
    Ok(vec![row])
}

fn strided(bed: &Bed, work: &Work, count: usize, [rows, columns]: [usize; 2]) -> Result<Vec<Row>> {
    let bytes = count * rows / 2 * columns * 4;
    let mut contenders = vec![Target::new(bed, &bed.device).contender::<Vec<Tensor>>()];
    contenders.extend(rivals::up_gathered(&bed.device, bytes)?);
    let mut row = Row::new(work.name, work.title, count, bytes);
    let inputs = |seed| -> Result<Vec<Input<_>>> { input::every_other_row(seed, count, [rows, columns]) };
    row.lines = series(bed.effort(2.0), contenders, inputs)?;
    Ok(vec![row])
}
