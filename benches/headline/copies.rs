//! The ways to do it with transship.

use std::error::Error;
use std::time::{Duration, Instant};

use transship::{CopyHandle, CopyOptions, CopyPolicy, Device, Result, Tensor, start_copy};

use crate::detection::{self, Sample};
use crate::sampling::{Contender, Input, Method};

/// All of them; the first is what the others are compared with.
pub(crate) fn contenders(device: &Device) -> Vec<Contender> {
    let whole = |name, time: fn(Vec<Sample>, &Target) -> Timed<Vec<Sample>>| {
        let run = move |input: &Input, target: &Target| flat(time(input.batch.clone(), target)?);
        Contender::new(name, Copies::new(device, Box::new(run)))
    };
    let dropping =
        |input: &Input, target: &Target| flat(until_waited(detection::batch(input.seed)?, target)?);
    let each = |name, time: fn(Vec<Tensor>, &Target) -> Timed<Vec<Tensor>>| {
        let run = move |input: &Input, target: &Target| time(input.leaves.clone(), target);
        Contender::new(name, Copies::new(device, Box::new(run)))
    };
    vec![
        whole("start_copy of the batch, until wait() returns", until_waited),
        whole("the same, until start_copy returns", until_started),
        whole("the same, until .await returns", until_awaited),
        Contender::new(
            "the same, until wait() returns, inputs dropped on the way",
            Copies::new(device, Box::new(dropping)),
        ),
        each("start_copy and wait() for each tensor", each_waited),
        each("start_copy for each tensor, then wait() for each", each_started),
    ]
}

type Timed<T> = Result<(Duration, T)>;
type Run = Box<dyn Fn(&Input, &Target) -> Timed<Vec<Tensor>>>;

struct Copies {
    target: Target,
    run: Run,
    copied: Vec<Tensor>,
}

struct Target {
    device: Device,
    options: CopyOptions,
}

impl Copies {
    fn new(device: &Device, run: Run) -> Self {
        // On the host everything would stay where it is.
        let policy = if device.is_host() { CopyPolicy::Always } else { CopyPolicy::IfNeeded };
        let target = Target { device: device.clone(), options: CopyOptions::default().policy(policy) };
        Self { target, run, copied: Vec::new() }
    }
}

impl Method for Copies {
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>> {
        self.copied.clear();
        let time;
        (time, self.copied) = (self.run)(input, &self.target)?;
        Ok(time)
    }

    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        let back = start_copy(self.copied.clone(), &Device::host(), CopyOptions::default())?.wait()?;
        Ok(back.iter().map(Tensor::to_bytes).collect::<Result<_>>()?)
    }
}

impl Target {
    fn start<S: transship::TensorTree>(&self, value: S) -> Result<CopyHandle<S>> {
        Ok(start_copy(value, &self.device, self.options.clone())?)
    }
}

fn flat((time, mut batch): (Duration, Vec<Sample>)) -> Timed<Vec<Tensor>> {
    Ok((time, detection::leaves(&mut batch)?))
}

fn until_waited(batch: Vec<Sample>, target: &Target) -> Timed<Vec<Sample>> {
    let started = Instant::now();
    let copied = target.start(batch)?.wait()?;
    Ok((started.elapsed(), copied))
}

fn until_started(batch: Vec<Sample>, target: &Target) -> Timed<Vec<Sample>> {
    let started = Instant::now();
    let handle = target.start(batch)?;
    Ok((started.elapsed(), handle.wait()?))
}

fn until_awaited(batch: Vec<Sample>, target: &Target) -> Timed<Vec<Sample>> {
    let started = Instant::now();
    let copied = futures::executor::block_on(target.start(batch)?)?;
    Ok((started.elapsed(), copied))
}

fn each_waited(leaves: Vec<Tensor>, target: &Target) -> Timed<Vec<Tensor>> {
    let started = Instant::now();
    let copy = |leaf| Ok(target.start(leaf)?.wait()?);
    let copied = leaves.into_iter().map(copy).collect::<Result<_>>()?;
    Ok((started.elapsed(), copied))
}

fn each_started(leaves: Vec<Tensor>, target: &Target) -> Timed<Vec<Tensor>> {
    let started = Instant::now();
    let handles = leaves.into_iter().map(|leaf| target.start(leaf)).collect::<Result<Vec<_>>>()?;
    let copied = handles.into_iter().map(|handle| Ok(handle.wait()?)).collect::<Result<_>>()?;
    Ok((started.elapsed(), copied))
}
