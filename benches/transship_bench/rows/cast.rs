//! Elements that are converted on the way.

use std::time::Duration;

use transship::{Cast, DType, Tensor};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, Method, series};
use crate::ours::Target;
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[Work {
    name: "up-cast-1x1GiB",
    title: "1 GiB of float32 up as bfloat16",
    needs: Needs::Nothing,
    run: up,
}];

fn up(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let as_it_is = Target::new(bed, &bed.device);
    let mut target = as_it_is.clone();
    target.options = target.options.cast(Cast::new(DType::F32, DType::BF16));
    let uncast = Uncast { method: as_it_is.method(), leaves: Vec::new() };
    let mut contenders =
        vec![target.contender(), Contender::new(Kind::Ours, "start_copy without a cast", uncast)];
    contenders.extend(rivals::up_cast(&bed.device, bytes / 2)?);
    let mut row = Row::new(work.name, work.title, 1, bytes);
    row.lines = series(bed.effort(2.0), contenders, |seed| input::to_be_narrowed(seed, bytes))?;
    Ok(vec![row])
}

/// Copies tensors as they are, where others cast them.
struct Uncast {
    method: Box<dyn Method<Vec<Tensor>>>,
    /// Of the last run.
    leaves: Vec<Tensor>,
}

impl Method<Vec<Tensor>> for Uncast {
    fn run(&mut self, input: &Input<Vec<Tensor>>) -> Result<Duration> {
        self.leaves.clone_from(&input.leaves);
        self.method.run(input)
    }

    fn is_right(&mut self, _: &[Tensor]) -> Result<bool> {
        self.method.is_right(&self.leaves)
    }
}
