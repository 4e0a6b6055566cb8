//! Columns of matrices that lie on the device: to the host, within the device, and to another one.

use transship::{CopyPolicy, DType, Device, Tensor};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, series};
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "down-strided-large",
        title: "8 x 16 of 256 columns of u8[262144,256] down",
        needs: Needs::Device,
        run: |bed, work| down(bed, work, LARGE),
    },
    Work {
        name: "down-strided-small",
        title: "10 x 4 of 256 columns of u8[16384,256] down",
        needs: Needs::Device,
        run: |bed, work| down(bed, work, SMALL),
    },
    Work {
        name: "down-strided-many",
        title: "500 x every other row of f32[128,64] down",
        needs: Needs::Device,
        run: |bed, work| down(bed, work, MANY),
    },
    Work {
        name: "within-strided-large",
        title: "8 x 16 of 256 columns of u8[262144,256] within the device",
        needs: Needs::Device,
        run: |bed, work| within(bed, work, LARGE),
    },
    Work {
        name: "devices-strided-large",
        title: "8 x 16 of 256 columns of u8[262144,256] from one device to the other",
        needs: Needs::TwoDevices,
        run: |bed, work| between(bed, work, LARGE),
    },
];

/// Parts of so many matrices.
#[derive(Clone, Copy)]
struct Parts {
    matrices: usize,
    /// Of each matrix.
    views: usize,
    rows: usize,
    /// In bytes.
    columns: usize,
    take: fn(&Tensor, usize) -> transship::Result<Tensor>,
}

const LARGE: Parts = Parts {
    matrices: 1,
    views: 8,
    rows: 262_144,
    columns: 256,
    take: |matrix, view| matrix.narrow(1, view * 32, 16),
};
const SMALL: Parts = Parts {
    matrices: 1,
    views: 10,
    rows: 16_384,
    columns: 256,
    take: |matrix, view| matrix.narrow(1, view * 24, 4),
};
const MANY: Parts =
    Parts { matrices: 500, views: 1, rows: 128, columns: 256, take: |matrix, _| matrix.slice(0, 0..128, 2) };

fn down(bed: &Bed, work: &Work, parts: Parts) -> Result<Vec<Row>> {
    let bytes = payload(bed, parts)?;
    let to = Target::new(bed, &Device::host());
    let mut contenders = vec![
        to.way("start_copy, until wait() returns (pinned, as usual)", ours::until_waited),
        to.way("until start_copy returns", ours::until_started),
    ];
    let rivals = rivals::down(&bed.device, bytes)?;
    contenders.extend(rivals.into_iter().filter(|rival| rival.kind() == Kind::Limit));
    measure(bed, work, parts, contenders)
}

fn between(bed: &Bed, work: &Work, parts: Parts) -> Result<Vec<Row>> {
    let to = bed.second.as_ref().ok_or("no second device was named")?;
    let mut contenders = vec![Target::new(bed, to).contender()];
    let rivals = rivals::between(&bed.device, to)?;
    contenders.extend(rivals.into_iter().filter(|rival| rival.kind() == Kind::Limit));
    measure(bed, work, parts, contenders)
}

fn within(bed: &Bed, work: &Work, parts: Parts) -> Result<Vec<Row>> {
    let mut to = Target::new(bed, &bed.device);
    to.options = to.options.policy(CopyPolicy::Always);
    measure(bed, work, parts, vec![to.contender()])
}

fn measure(
    bed: &Bed,
    work: &Work,
    parts: Parts,
    contenders: Vec<Contender<Vec<Tensor>>>,
) -> Result<Vec<Row>> {
    let mut row = Row::new(work.name, work.title, parts.matrices * parts.views, payload(bed, parts)?);
    row.lines = series(bed.effort(1.5), contenders, |seed| Ok(vec![input(bed, parts, seed)?]))?;
    Ok(vec![row])
}

fn payload(bed: &Bed, parts: Parts) -> Result<usize> {
    Ok(input(bed, parts, 1)?.expected.iter().map(Tensor::nbytes).sum())
}

/// The parts of the matrices, which lie on the device.
fn input(bed: &Bed, parts: Parts, seed: u64) -> Result<Input<Vec<Tensor>>> {
    let rows = bed.bytes(parts.rows * parts.columns) / parts.columns;
    let here = (0..parts.matrices).map(|index| {
        let number = seed * parts.matrices as u64 + index as u64;
        input::matrix(number, DType::U8, rows, parts.columns)
    });
    let here = here.collect::<Result<Vec<_>>>()?;
    let there = Input::new(seed, here.clone())?.on(&bed.device, &bed.options(&bed.device))?;
    let views = |matrices: &[Tensor]| -> Result<Vec<Tensor>> {
        let of = |matrix| (0..parts.views).map(move |view| (parts.take)(matrix, view));
        Ok(matrices.iter().flat_map(of).collect::<transship::Result<_>>()?)
    };
    let expected = views(&here)?.iter().map(Tensor::contiguous).collect::<transship::Result<_>>()?;
    Ok(Input { expected, ..Input::new(seed, views(&there.value)?)? })
}
