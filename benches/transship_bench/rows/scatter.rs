//! Columns of a matrix that the program holds on the device, filled from the host and from the device.

use std::time::{Duration, Instant};

use transship::{CopyOptions, DType, Device, Error, Tensor, start_copy_into};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, Method, series};
use crate::ours::is_copy;
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "up-scatter",
        title: "8 x u8[4096,1024] up into columns of u8[4096,32768]",
        needs: Needs::Device,
        run: |bed, work| scatter(bed, work, COLUMNS, From::Host),
    },
    Work {
        name: "up-scatter-narrow",
        title: "8 x u8[262144,16] up into columns of u8[262144,256]",
        needs: Needs::Device,
        run: |bed, work| scatter(bed, work, NARROW, From::Host),
    },
    Work {
        name: "within-scatter",
        title: "8 x u8[4096,1024] within the device into columns of u8[4096,32768]",
        needs: Needs::Device,
        run: |bed, work| scatter(bed, work, COLUMNS, From::Device),
    },
    Work {
        name: "within-scatter-narrow",
        title: "8 x u8[262144,16] within the device into columns of u8[262144,256]",
        needs: Needs::Device,
        run: |bed, work| scatter(bed, work, NARROW, From::Device),
    },
];

const VIEWS: usize = 8;

/// Each view has so many columns, of a byte, and the matrix `apart` for each view.
#[derive(Clone, Copy)]
struct Columns {
    rows: usize,
    each: usize,
    apart: usize,
}

const COLUMNS: Columns = Columns { rows: 4096, each: 1024, apart: 4096 };
const NARROW: Columns = Columns { rows: 262_144, each: 16, apart: 32 };

/// Where the elements come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Host,
    Device,
}

/// What a way fills, and how it sees its tensors.
#[derive(Clone, Copy)]
enum Into {
    /// Views of the matrix, as they are.
    Views,
    /// Their rows, each a tensor.
    Rows,
    /// Contiguous tensors of the same shapes.
    Contiguous,
}

fn scatter(bed: &Bed, work: &Work, columns: Columns, from: From) -> Result<Vec<Row>> {
    let columns = Columns {
        rows: bed.bytes(columns.rows * VIEWS * columns.apart) / (VIEWS * columns.apart),
        ..columns
    };
    let way = |kind, name: &str, into| {
        let method = Filling { device: bed.device.clone(), columns, into, held: None };
        Contender::new(kind, name, method)
    };
    let mut contenders =
        vec![way(Kind::Ours, "start_copy_into the columns, until wait() returns", Into::Views)];
    if columns.rows * VIEWS <= MOST_ROWS {
        contenders.push(way(Kind::Rival, "start_copy_into each row, a tensor each", Into::Rows));
    }
    let held = columns.views(&bed.device)?;
    contenders.extend(rivals::pitched(&bed.device, held, from == From::Device)?);
    let contiguous = "as many bytes by start_copy_into contiguous tensors";
    contenders.push(way(Kind::Limit, contiguous, Into::Contiguous));
    let mut row = Row::new(work.name, work.title, VIEWS, VIEWS * columns.rows * columns.each);
    row.lines = series(bed.effort(1.5), contenders, |seed| Ok(vec![columns.input(bed, from, seed)?]))?;
    Ok(vec![row])
}

/// With more of them one waits for seconds.
const MOST_ROWS: usize = 1 << 16;

impl Columns {
    /// Of one matrix, which nobody else holds.
    fn views(self, device: &Device) -> Result<Vec<Tensor>> {
        let matrix = Tensor::zeros(&[self.rows, VIEWS * self.apart], DType::U8, device)?;
        let views = (0..VIEWS).map(|view| matrix.narrow(1, view * self.apart, self.each));
        Ok(views.collect::<transship::Result<_>>()?)
    }

    fn input(self, bed: &Bed, from: From, seed: u64) -> Result<Input<Vec<Tensor>>> {
        let one =
            |view: usize| input::matrix(seed * VIEWS as u64 + view as u64, DType::U8, self.rows, self.each);
        let here = Input::new(seed, (0..VIEWS).map(one).collect::<Result<Vec<_>>>()?)?;
        match from {
            From::Host => Ok(here),
            From::Device => here.on(&bed.device, &bed.options(&bed.device)),
        }
    }
}

/// `start_copy_into` until `wait()` returns, into memory that is there.
struct Filling {
    device: Device,
    columns: Columns,
    into: Into,
    held: Option<Vec<Tensor>>,
}

impl Filling {
    /// The tensors as this way sees them.
    fn seen(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
        match self.into {
            Into::Views | Into::Contiguous => Ok(tensors.to_vec()),
            Into::Rows => {
                let rows = |tensor: &Tensor| {
                    let tensor = tensor.clone();
                    (0..tensor.shape()[0]).map(move |row| tensor.narrow(0, row, 1))
                };
                Ok(tensors.iter().flat_map(rows).collect::<transship::Result<_>>()?)
            }
        }
    }

    fn make(&self) -> Result<Vec<Tensor>> {
        let Columns { rows, each, .. } = self.columns;
        match self.into {
            Into::Views => self.columns.views(&self.device),
            Into::Rows => self.seen(&self.columns.views(&self.device)?),
            Into::Contiguous => {
                let one = |_| Tensor::zeros(&[rows, each], DType::U8, &self.device);
                Ok((0..VIEWS).map(one).collect::<transship::Result<_>>()?)
            }
        }
    }
}

impl Method<Vec<Tensor>> for Filling {
    fn run(&mut self, input: &Input<Vec<Tensor>>) -> Result<Duration> {
        let value = self.seen(&input.value)?;
        let held = match self.held.take() {
            Some(held) => held,
            None => self.make()?,
        };
        let started = Instant::now();
        let copy = start_copy_into(value, held, CopyOptions::default()).map_err(Error::from)?;
        let filled = copy.wait().map_err(Error::from)?;
        let time = started.elapsed();
        self.held = Some(filled);
        Ok(time)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let held = self.held.clone().ok_or("nothing was copied")?;
        is_copy(held, &self.seen(expected)?)
    }
}
