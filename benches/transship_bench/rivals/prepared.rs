//! Prepares tensors on the host before a rival copies them.

use std::time::{Duration, Instant};

use transship::Tensor;

use crate::Result;
use crate::input::Input;
use crate::measure::{Contender, Method};
use crate::table::Kind;

/// What is done with each tensor first, and what the tensors are then.
pub(super) struct Preparation {
    pub(super) done: &'static str,
    pub(super) are: &'static str,
    pub(super) prepare: fn(&Tensor) -> Result<Tensor>,
}

/// Each into memory of its own.
pub(super) const GATHERED: Preparation =
    Preparation { done: "gathered", are: "contiguous", prepare: |tensor| Ok(tensor.contiguous()?) };

/// The contender, after each tensor was prepared. That is part of the work, but not of a limit.
pub(super) fn first<S: 'static>(preparation: Preparation, contender: Contender<()>) -> Contender<S> {
    let Preparation { done, are, prepare } = preparation;
    contender.map(|kind, way, method| {
        let (timed, how) = match kind {
            Kind::Limit => (false, format!("if they were {are}")),
            Kind::Ours | Kind::Rival => (true, format!("each {done} first")),
        };
        (format!("{way}, {how}"), Box::new(Prepared { timed, prepare, method }) as _)
    })
}

struct Prepared {
    timed: bool,
    prepare: fn(&Tensor) -> Result<Tensor>,
    method: Box<dyn Method<()>>,
}

impl<S> Method<S> for Prepared {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        let started = Instant::now();
        let leaves = input.leaves.iter().map(self.prepare).collect::<Result<_>>()?;
        let prepared = if self.timed { started.elapsed() } else { Duration::ZERO };
        let input = Input { data: input.data, value: (), leaves, expected: Vec::new() };
        Ok(prepared + self.method.run(&input)?)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.method.is_right(expected)
    }
}
