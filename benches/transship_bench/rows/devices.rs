//! Two devices.

use std::time::{Duration, Instant};

use transship::{CopyOptions, Device, Error, Tensor, TensorTree, start_copy_to_all};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::detection;
use crate::input::{self, Input};
use crate::measure::{Contender, Method, series};
use crate::ours::{self, Target};
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "devices-headline",
        title: "headline tree from one device to the other",
        needs: Needs::TwoDevices,
        run: between,
    },
    Work {
        name: "devices-broadcast",
        title: "headline tree from the host to both devices",
        needs: Needs::TwoDevices,
        run: broadcast,
    },
    Work {
        name: "devices-1GiB",
        title: "1 GiB up to each of two devices at once",
        needs: Needs::TwoDevices,
        run: large,
    },
];

fn between(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let [from, to] = both(bed)?;
    let mut contenders = vec![Target::new(bed, to).contender()];
    contenders.extend(rivals::between(from, to)?);
    let options = bed.options(from).packing(false);
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    row.lines = series(bed.effort(2.0), contenders, |seed| {
        input::headline(seed)?.into_iter().map(|input| input.on(from, &options)).collect()
    })?;
    Ok(vec![row])
}

fn broadcast(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    to_both(bed, row, 2.0, input::headline)
}

fn large(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    let mut rows =
        to_both(bed, Row::new(work.name, work.title, 1, bytes), 3.0, |seed| input::many(seed, 1, bytes))?;
    // Each device gets so many bytes.
    rows[0].bytes *= 2;
    Ok(rows)
}

fn to_both<S: TensorTree + Clone + 'static>(
    bed: &Bed,
    mut row: Row,
    seconds: f64,
    inputs: impl Fn(u64) -> Result<Vec<Input<S>>>,
) -> Result<Vec<Row>> {
    let devices = both(bed)?;
    let targets = devices.map(|device| Target::new(bed, device));
    let way = "start_copy to each, until both wait() return";
    let options = bed.options(devices[0]);
    let at_once = ToAll { devices: devices.map(Device::clone), options, copied: None };
    let mut contenders = vec![
        Contender::new(Kind::Ours, "start_copy_to_all, until both wait() return", at_once),
        Contender::new(Kind::Ours, way, ToBoth { targets, copied: None }),
    ];
    contenders.extend(rivals::to_both(devices, row.bytes)?);
    row.lines = series(bed.effort(seconds), contenders, |seed| {
        let mut inputs = inputs(seed)?;
        for input in &mut inputs {
            input.expected.extend_from_within(..);
        }
        Ok(inputs)
    })?;
    Ok(vec![row])
}

fn both(bed: &Bed) -> Result<[&Device; 2]> {
    Ok([&bed.device, bed.second.as_ref().ok_or("no second device was named")?])
}

struct ToAll<S> {
    devices: [Device; 2],
    options: CopyOptions,
    copied: Option<(S, S)>,
}

impl<S: TensorTree + Clone> Method<S> for ToAll<S> {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.copied = None;
        let value = input.value.clone();
        let started = Instant::now();
        let copies = start_copy_to_all(value, &self.devices, self.options.clone()).map_err(Error::from)?;
        let [first, second] = copies.try_into().map_err(|_| "a copy for each device")?;
        self.copied = Some((first.wait().map_err(Error::from)?, second.wait().map_err(Error::from)?));
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        are_copies(self.copied.take(), expected)
    }
}

struct ToBoth<S> {
    targets: [Target; 2],
    copied: Option<(S, S)>,
}

impl<S: TensorTree + Clone> Method<S> for ToBoth<S> {
    fn run(&mut self, input: &Input<S>) -> Result<Duration> {
        self.copied = None;
        let values = (input.value.clone(), input.value.clone());
        let started = Instant::now();
        let first = self.targets[0].start(values.0)?;
        let second = self.targets[1].start(values.1)?;
        self.copied = Some((first.wait().map_err(Error::from)?, second.wait().map_err(Error::from)?));
        Ok(started.elapsed())
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        are_copies(self.copied.take(), expected)
    }
}

fn are_copies<S: TensorTree>(copied: Option<(S, S)>, expected: &[Tensor]) -> Result<bool> {
    let (one, other) = copied.ok_or("nothing was copied")?;
    let (first, second) = expected.split_at(expected.len() / 2);
    Ok(ours::is_copy(one, first)? && ours::is_copy(other, second)?)
}
