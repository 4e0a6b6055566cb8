//! The ways to do it with transship.

use std::time::{Duration, Instant};

use transship::{
    CopyHandle, CopyOptions, CopyReport, Device, Error, Tensor, TensorTree, start_copy, start_copy_into,
};

use crate::Result;
use crate::bed::Bed;
use crate::input::{self, Input};
use crate::measure::{Contender, Method, same};
use crate::table::Kind;

/// Where to, and how.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) device: Device,
    pub(crate) options: CopyOptions,
}

/// How long it took, and what came out.
pub(crate) type Timed<S> = Result<(Duration, S)>;

impl Target {
    pub(crate) fn new(bed: &Bed, device: &Device) -> Self {
        Self { device: device.clone(), options: bed.options(device) }
    }

    pub(crate) fn start<S: TensorTree>(&self, value: S) -> Result<CopyHandle<S>> {
        Ok(start_copy(value, &self.device, self.options.clone()).map_err(Error::from)?)
    }

    /// `start_copy` until `wait()` returns.
    pub(crate) fn contender<S: TensorTree + Clone + 'static>(&self) -> Contender<S> {
        self.way("start_copy, until wait() returns", until_waited)
    }

    /// The same for a thread of its own.
    pub(crate) fn method<S: TensorTree + Clone + 'static>(&self) -> Box<dyn Method<S>> {
        Box::new(self.doing(|value: &S| Ok(value.clone()), until_waited))
    }

    pub(crate) fn way<S: TensorTree + Clone + 'static>(
        &self,
        name: &str,
        way: fn(S, &Self) -> Timed<S>,
    ) -> Contender<S> {
        Contender::new(Kind::Ours, name, self.doing(|value: &S| Ok(value.clone()), way))
    }

    /// The input is handed over, and not a clone of it.
    pub(crate) fn way_of_owned<S: TensorTree + Clone + 'static>(
        &self,
        name: &str,
        way: fn(S, &Self) -> Timed<S>,
    ) -> Contender<S> {
        Contender::new(Kind::Ours, name, self.doing(input::owned, way))
    }

    fn doing<S>(&self, take: fn(&S) -> Result<S>, way: fn(S, &Self) -> Timed<S>) -> Ours<S> {
        Ours { target: self.clone(), take, way, copied: None }
    }

    /// `start_copy_into` until `wait()` returns, into the memory that the first run was given by [`start`](Self::start).
    pub(crate) fn refill<S: TensorTree + Clone + 'static>(&self, name: &str) -> Contender<S> {
        Contender::new(Kind::Ours, name, Refill { target: self.clone(), held: None })
    }
}

struct Refill<S> {
    target: Target,
    held: Option<S>,
}

impl<S: TensorTree + Clone + 'static> Method<S> for Refill<S> {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        let value = input.value.clone();
        let held = match self.held.take() {
            Some(held) => held,
            None => self.target.start(value.clone())?.wait().map_err(Error::from)?,
        };
        let started = Instant::now();
        let copy = start_copy_into(value, held, self.target.options.clone()).map_err(Error::from)?;
        let filled = copy.wait().map_err(Error::from)?;
        let time = started.elapsed();
        self.held = Some(filled);
        Ok(time)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        is_copy(self.held.clone().ok_or("nothing was copied")?, expected)
    }
}

struct Ours<S> {
    target: Target,
    /// Makes what the copy takes, untimed.
    take: fn(&S) -> Result<S>,
    way: fn(S, &Target) -> Timed<S>,
    copied: Option<S>,
}

impl<S: TensorTree + Clone + 'static> Method<S> for Ours<S> {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.copied = None;
        let value = (self.take)(&input.value)?;
        let (time, copied) = (self.way)(value, &self.target)?;
        self.copied = Some(copied);
        Ok(time)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let copied = self.copied.take().ok_or("nothing was copied")?;
        is_copy(copied, expected)
    }
}

/// Whether the tensors of `copied`, wherever they lie, hold what they should.
pub(crate) fn is_copy<S: TensorTree>(copied: S, expected: &[Tensor]) -> Result<bool> {
    let back = start_copy(copied, &Device::host(), CopyOptions::default()).map_err(Error::from)?;
    let leaves = input::leaves(&mut back.wait().map_err(Error::from)?)?;
    let mut right = leaves.len() == expected.len();
    for (leaf, expected) in leaves.iter().zip(expected) {
        right &= leaf.shape() == expected.shape() && same(leaf.contiguous()?.as_bytes()?, expected)?;
    }
    Ok(right)
}

pub(crate) fn until_waited<S: TensorTree>(value: S, target: &Target) -> Timed<S> {
    let started = Instant::now();
    let copied = target.start(value)?.wait().map_err(Error::from)?;
    Ok((started.elapsed(), copied))
}

pub(crate) fn until_started<S: TensorTree>(value: S, target: &Target) -> Timed<S> {
    let started = Instant::now();
    let handle = target.start(value)?;
    Ok((started.elapsed(), handle.wait().map_err(Error::from)?))
}

pub(crate) fn until_awaited<S: TensorTree>(value: S, target: &Target) -> Timed<S> {
    let started = Instant::now();
    let copied = futures::executor::block_on(target.start(value)?).map_err(Error::from)?;
    Ok((started.elapsed(), copied))
}

pub(crate) fn until_awaited_by_tokio<S: TensorTree>(value: S, target: &Target) -> Timed<S> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let started = Instant::now();
    let copied = runtime.block_on(target.start(value)?).map_err(Error::from)?;
    Ok((started.elapsed(), copied))
}

/// What the report of the copy says of one of its phases.
pub(crate) fn phase<S: TensorTree>(value: S, target: &Target, time: fn(&CopyReport) -> Duration) -> Timed<S> {
    let (copied, report) = target.start(value)?.wait_with_report().map_err(Error::from)?;
    Ok((time(&report), copied))
}

/// Only the drop of a result is timed; another one is kept, to be looked at.
pub(crate) fn until_dropped<S: TensorTree + Clone>(value: S, target: &Target) -> Timed<S> {
    let (_, kept) = until_waited(value.clone(), target)?;
    let (_, copied) = until_waited(value, target)?;
    let started = Instant::now();
    drop(copied);
    Ok((started.elapsed(), kept))
}
