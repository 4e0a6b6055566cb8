//! Up and down at once.

use std::time::Instant;

use transship::{DType, Device, Error, Tensor, start_copy};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{Input, random_words};
use crate::measure::series;
use crate::ours::{Target, Timed};
use crate::rivals;
use crate::table::{Line, Row};

pub(super) const ROWS: &[Work] = &[Work {
    name: "both-ways-1GiB",
    title: "1 GiB up and 1 GiB down at once, pinned",
    needs: Needs::Device,
    run,
}];

type Pair = (Tensor, Tensor);

fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let bytes = bed.bytes(1 << 30);
    // The pinned source, the result and the one before it.
    bed.with_result_budget(5 * bytes, || measure(bed, work, bytes))
}

fn measure(bed: &Bed, work: &Work, bytes: usize) -> Result<Vec<Row>> {
    let target = Target::new(bed, &bed.device);
    let mut contenders = vec![
        target.way("start_copy up alone", up_alone),
        target.way("start_copy down alone", down_alone),
        target.way("both at once, until both wait() return", both_at_once),
    ];
    contenders.extend(rivals::both_ways(&bed.device)?);
    let mut row = Row::new(work.name, work.title, 2, bytes);
    row.lines = series(bed.effort(4.0), contenders, |seed| Ok(vec![input(bed, seed, bytes)?]))?;
    row.notes.push("GB/s: of one direction".to_owned());
    row.notes.extend(overlap("transship", row.lines.get(..3)));
    row.notes.extend(overlap("by hand", row.lines.get(3..6)));
    Ok(vec![row])
}

/// How many times as much as in one direction goes through while both are used.
fn overlap(name: &str, lines: Option<&[Line]>) -> Option<String> {
    let [up, down, both] = lines? else { return None };
    let ratio = (up.median()? + down.median()?) / both.median()?;
    Some(format!("{name}: {ratio:.2} x one direction"))
}

/// A pinned tensor on the host, where there is such a thing, and one on the device.
fn input(bed: &Bed, seed: u64, bytes: usize) -> Result<Input<Pair>> {
    let random = |seed| {
        Tensor::from_vec(
            random_words(bytes / 8, seed).into_iter().map(|word| word as i64).collect(),
            &[bytes / 8],
        )
    };
    let (source, there) = (random(seed)?, random(seed + 100)?);
    let pinned = match Tensor::empty_pinned(&[bytes / 8], DType::I64, &bed.device) {
        Ok(mut pinned) => {
            pinned.as_mut_bytes()?.copy_from_slice(source.as_bytes()?);
            pinned
        }
        Err(Error::Unsupported { .. }) => source.clone(),
        Err(error) => return Err(error.into()),
    };
    let expected = vec![source, there.clone()];
    let there = start_copy(there, &bed.device, bed.options(&bed.device))
        .map_err(Error::from)?
        .wait()
        .map_err(Error::from)?;
    Ok(Input { data: seed, leaves: vec![pinned.clone(), there.clone()], value: (pinned, there), expected })
}

fn up_alone((source, there): Pair, target: &Target) -> Timed<Pair> {
    let started = Instant::now();
    let copied = target.start(source)?.wait().map_err(Error::from)?;
    Ok((started.elapsed(), (copied, there)))
}

fn down_alone((source, there): Pair, target: &Target) -> Timed<Pair> {
    let started = Instant::now();
    let back = start_copy(there, &Device::host(), target.options.clone()).map_err(Error::from)?;
    let back = back.wait().map_err(Error::from)?;
    Ok((started.elapsed(), (source, back)))
}

fn both_at_once((source, there): Pair, target: &Target) -> Timed<Pair> {
    let started = Instant::now();
    let up = target.start(source)?;
    let down = start_copy(there, &Device::host(), target.options.clone()).map_err(Error::from)?;
    let copied = (up.wait().map_err(Error::from)?, down.wait().map_err(Error::from)?);
    Ok((started.elapsed(), copied))
}
