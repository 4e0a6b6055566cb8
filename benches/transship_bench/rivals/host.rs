//! Copies within the host.

use std::time::{Duration, Instant};

use transship::Tensor;

use crate::Result;
use crate::input::Input;
use crate::measure::{Contender, Method, same};
use crate::table::Kind;

/// A copy of each, and all in one.
pub(super) fn rivals<S>() -> Vec<Contender<S>> {
    vec![
        Contender::new(Kind::Rival, "a Vec for each tensor", Each(Vec::new())),
        Contender::new(Kind::Limit, "by hand: all into one Vec touched before", packed()),
    ]
}

pub(super) fn packed() -> Packed {
    Packed(Vec::new())
}

struct Each(Vec<Vec<u8>>);

impl<S> Method<S> for Each {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.0.clear();
        let started = Instant::now();
        for leaf in &input.leaves {
            self.0.push(leaf.as_bytes()?.to_vec());
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let mut right = self.0.len() == expected.len();
        for (copied, expected) in self.0.iter().zip(expected) {
            right &= same(copied, expected)?;
        }
        Ok(right)
    }
}

/// It keeps its memory: page faults are no limit.
pub(super) struct Packed(Vec<u8>);

impl<S> Method<S> for Packed {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.0.clear();
        let started = Instant::now();
        self.0.reserve(input.leaves.iter().map(Tensor::nbytes).sum());
        for leaf in &input.leaves {
            self.0.extend_from_slice(leaf.as_bytes()?);
        }
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let mut rest = &*self.0;
        let mut right = true;
        for expected in expected {
            let (copied, behind) =
                rest.split_at_checked(expected.nbytes()).ok_or("too few bytes were copied")?;
            right &= same(copied, expected)?;
            rest = behind;
        }
        Ok(right && rest.is_empty())
    }
}
