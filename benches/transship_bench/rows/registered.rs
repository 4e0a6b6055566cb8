//! Memory that is page-locked where it lies, before it is copied or under the clock.

use std::time::{Duration, Instant};

use transship::{CopyOptions, Device, Error, Tensor, start_copy};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, Method, same, series};
use crate::ours::Target;
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[Work {
    name: "up-registered-1x1GiB",
    title: "1 GiB of an ordinary Vec up",
    needs: Needs::Nothing,
    run: up,
}];

/// A page at the least, which a vector does not share with the next one then.
const ROOM: usize = 64 << 10;

fn up(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let target = Target::new(bed, &bed.device);
    let mut contenders = vec![target.contender()];
    let clocks = [
        ("register_vec, start_copy, until wait() returns", Clock::Registering),
        ("register_vec, start_copy, wait(), until into_vec returns", Clock::AndGivenBack),
        ("registered before: start_copy, until wait() returns", Clock::CopyAlone),
    ];
    let why_not = why_not(&bed.device);
    contenders.extend(clocks.map(|(way, clock)| match &why_not {
        Some(reason) => Contender::missing(Kind::Ours, way, reason.clone()),
        None => Contender::new(
            Kind::Ours,
            way,
            InPlace { target: target.clone(), clock, memory: None, copied: None },
        ),
    }));
    contenders.extend(rivals::up_registered(&bed.device, bytes)?);
    let mut row = Row::new(work.name, work.title, 1, bytes);
    row.lines = series(bed.effort(2.0), contenders, |seed| input::many(seed, 1, bytes))?;
    Ok(vec![row])
}

/// Why nothing can be registered here.
fn why_not(device: &Device) -> Option<String> {
    device.register_vec(vec![0_u8; 4096], &[4096]).err().map(|refused| refused.to_string())
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    Registering,
    AndGivenBack,
    CopyAlone,
}

struct InPlace {
    target: Target,
    clock: Clock,
    /// The bytes of an input.
    memory: Option<(u64, Memory)>,
    copied: Option<Tensor>,
}

enum Memory {
    Ordinary(Vec<u8>),
    Registered(Tensor),
}

impl InPlace {
    fn register(&self, vec: Vec<u8>) -> Result<Tensor> {
        let shape = [vec.len()];
        Ok(self.target.device.register_vec(vec, &shape).map_err(Error::from)?)
    }

    fn copy(&self, tensor: &Tensor) -> Result<Tensor> {
        Ok(self.target.start(tensor.clone())?.wait().map_err(Error::from)?)
    }

    /// The bytes of the input as the clock wants them.
    fn prepared(&self, known: Option<(u64, Memory)>, input: &Input<Vec<Tensor>>) -> Result<Memory> {
        let [leaf] = &*input.leaves else { return Err("one tensor was expected".into()) };
        match known {
            Some((data, memory)) if data == input.data => return Ok(memory),
            // Unlocked before another one is registered.
            Some((_, Memory::Registered(tensor))) => drop(tensor.into_vec::<u8>().map_err(Error::from)?),
            _ => {}
        }
        let mut vec = Vec::with_capacity(leaf.nbytes() + ROOM);
        vec.extend_from_slice(leaf.as_bytes()?);
        Ok(match self.clock {
            Clock::CopyAlone => Memory::Registered(self.register(vec)?),
            Clock::Registering | Clock::AndGivenBack => Memory::Ordinary(vec),
        })
    }
}

impl Method<Vec<Tensor>> for InPlace {
    fn run(&mut self, input: &Input<Vec<Tensor>>) -> Result<Duration> {
        self.copied = None;
        let known = self.memory.take();
        let memory = self.prepared(known, input)?;
        let started = Instant::now();
        let (tensor, is_ours) = match memory {
            Memory::Ordinary(vec) => (self.register(vec)?, true),
            Memory::Registered(tensor) => (tensor, false),
        };
        self.copied = Some(self.copy(&tensor)?);
        let copied = started.elapsed();
        let memory = match is_ours {
            true => Memory::Ordinary(tensor.into_vec().map_err(Error::from)?),
            false => Memory::Registered(tensor),
        };
        self.memory = Some((input.data, memory));
        Ok(if self.clock == Clock::AndGivenBack { started.elapsed() } else { copied })
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        let copied = self.copied.take().ok_or("nothing was copied")?;
        let back = start_copy(copied, &Device::host(), CopyOptions::default()).map_err(Error::from)?;
        let back = back.wait().map_err(Error::from)?;
        same(back.as_bytes()?, expected.first().ok_or("one tensor was expected")?)
    }
}
