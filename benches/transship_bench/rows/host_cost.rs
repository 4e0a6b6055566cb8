//! What a small tensor costs on the host.

use transship::Device;

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input;
use crate::measure::series;
use crate::ours::Target;
use crate::rivals;
use crate::table::Row;

pub(super) const ROWS: &[Work] =
    &[Work { name: "host-cost", title: "64 B leaves within the host", needs: Needs::Nothing, run }];

const BYTES: usize = 64;

/// A copy of everything to the host, whatever the device: no driver and no staging block, but traversal, plan, gathering and
/// rebuilding, inputs kept.
fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    [528, 10_000, 1_000_000].map(|count| row(bed, work, bed.count(count, BYTES))).into_iter().collect()
}

fn row(bed: &Bed, work: &Work, count: usize) -> Result<Row> {
    let host = Device::host();
    let mut contenders = vec![Target::new(bed, &host).contender()];
    contenders.extend(rivals::up(&host, count * BYTES)?);
    let mut row =
        Row::new(work.name, format!("{count} leaves of 64 B within the host"), count, count * BYTES);
    row.lines = series(bed.effort(1.0), contenders, |seed| input::many(seed, count, BYTES))?;
    Ok(row)
}
