//! Many tensors whose sizes have a heavy tail.

use transship::{CopyPolicy, Tensor};

use super::Work;
use super::down::{on_device, to_host};
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input;
use crate::measure::{Contender, series};
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::Row;

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "up-heavy-tail",
        title: "4,000 tensors with a heavy tail up",
        needs: Needs::Nothing,
        run: up,
    },
    Work { name: "down-heavy-tail", title: "the same down", needs: Needs::Device, run: down },
    Work {
        name: "within-heavy-tail",
        title: "the same within the device",
        needs: Needs::Device,
        run: within,
    },
    Work {
        name: "devices-heavy-tail",
        title: "the same from one device to the other",
        needs: Needs::TwoDevices,
        run: between,
    },
];

fn up(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut contenders = vec![Target::new(bed, &bed.device).contender()];
    // A batch of 4,000 uneven copies out of ordinary memory ends the process within libcuda (driver 580, Xid 32).
    let rivals = rivals::up(&bed.device, bytes(bed))?;
    contenders.extend(rivals.into_iter().filter(|rival| !rival.way().starts_with("cuMemcpyBatchAsync")));
    let mut row = row(bed, work);
    row.lines = series(bed.effort(2.0), contenders, |seed| input::heavy_tail(seed, count(bed)))?;
    Ok(vec![row])
}

fn down(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut contenders =
        vec![to_host(bed).way("start_copy, until wait() returns (pinned, as usual)", ours::until_waited)];
    contenders.extend(rivals::down(&bed.device, bytes(bed))?);
    from_device(bed, work, contenders)
}

fn within(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut target = Target::new(bed, &bed.device);
    target.options = target.options.policy(CopyPolicy::Always);
    from_device(bed, work, vec![target.contender()])
}

fn between(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let to = bed.second.as_ref().ok_or("no second device")?;
    let mut contenders = vec![Target::new(bed, to).contender()];
    contenders.extend(rivals::between(&bed.device, to)?);
    from_device(bed, work, contenders)
}

fn from_device(bed: &Bed, work: &Work, contenders: Vec<Contender<Vec<Tensor>>>) -> Result<Vec<Row>> {
    let mut row = row(bed, work);
    row.lines =
        series(bed.effort(2.0), contenders, |seed| on_device(bed, input::heavy_tail(seed, count(bed))?))?;
    Ok(vec![row])
}

fn row(bed: &Bed, work: &Work) -> Row {
    Row::new(work.name, work.title, count(bed), bytes(bed))
}

fn count(bed: &Bed) -> usize {
    bed.count(4000, 32 << 10)
}

fn bytes(bed: &Bed) -> usize {
    input::heavy_tail_sizes(count(bed)).iter().sum()
}
