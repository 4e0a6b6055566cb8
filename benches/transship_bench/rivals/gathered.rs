//! Gathers tensors that are not contiguous.

use std::time::{Duration, Instant};

use transship::Tensor;

use crate::Result;
use crate::input::Input;
use crate::measure::{Contender, Method};
use crate::table::Kind;

/// The contender, after each tensor was gathered into memory of its own. That is part of the work, but not of a limit.
pub(super) fn first<S: 'static>(contender: Contender<()>) -> Contender<S> {
    contender.map(|kind, way, method| {
        let (timed, how) = match kind {
            Kind::Limit => (false, "if they were contiguous"),
            Kind::Ours | Kind::Rival => (true, "each gathered first"),
        };
        (format!("{way}, {how}"), Box::new(Gathered { timed, method }) as _)
    })
}

struct Gathered {
    timed: bool,
    method: Box<dyn Method<()>>,
}

impl<S> Method<S> for Gathered {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        let started = Instant::now();
        let leaves = input.leaves.iter().map(Tensor::contiguous).collect::<transship::Result<_>>()?;
        let gathered = if self.timed { started.elapsed() } else { Duration::ZERO };
        let input = Input { data: input.data, value: (), leaves, expected: Vec::new() };
        Ok(gathered + self.method.run(&input)?)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.method.is_right(expected)
    }
}
