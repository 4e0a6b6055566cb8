//! Time against number of leaves and against size, for the charts.

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input;
use crate::measure::series;
use crate::ours::Target;
use crate::rivals;
use crate::table::{Chart, Row};

pub(super) const ROWS: &[Work] = &[
    Work { name: "sweep-leaves", title: "leaves of 256 B up", needs: Needs::Nothing, run: leaves },
    Work { name: "sweep-bytes", title: "one leaf up", needs: Needs::Nothing, run: bytes },
];

fn leaves(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let counts =
        [1, 4, 16, 64, 256, 1024, 4096, 16_384].into_iter().filter(|count| bed.count(*count, 256) == *count);
    counts.map(|count| row(bed, work, count, 256, Chart::Leaves)).collect()
}

fn bytes(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let sizes = [12, 14, 16, 18, 20, 22, 24, 26, 28].map(|power| 1 << power);
    let sizes = sizes.into_iter().filter(|bytes| bed.bytes(*bytes) == *bytes);
    sizes.map(|bytes| row(bed, work, 1, bytes, Chart::Bytes)).collect()
}

fn row(bed: &Bed, work: &Work, count: usize, bytes: usize, chart: Chart) -> Result<Row> {
    let mut contenders = vec![Target::new(bed, &bed.device).contender()];
    contenders.extend(rivals::up(&bed.device, count * bytes)?);
    let title = match chart {
        Chart::Leaves => format!("{count} {}", work.title),
        Chart::Bytes => format!("{} of {bytes} B", work.title),
    };
    let mut row = Row::new(work.name, title, count, count * bytes);
    row.chart = Some(chart);
    row.lines = series(bed.effort(0.25), contenders, |seed| input::many(seed, count, bytes))?;
    Ok(row)
}
