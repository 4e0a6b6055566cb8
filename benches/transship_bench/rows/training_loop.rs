//! A loop that computes on one batch while the next ones are copied.

use std::time::{Duration, Instant};

use transship::{Error, Lent, Prefetch, PrefetchError, PrefetchOptions, PrefetchStats, Tensor};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::detection::{self, Sample};
use crate::input::{self, Input};
use crate::ours::{self, Target};
use crate::table::{Kind, Line, Outcome, Row, Samples};

pub(super) const ROWS: &[Work] = &[Work {
    name: "training-loop",
    title: "headline batch and 8 images of 1920 x 1080, 5 ms of compute between",
    needs: Needs::Nothing,
    run,
}];

const STEPS: usize = 1000;
const IMAGES: usize = 8;
const IMAGE: usize = 1920 * 1080 * 3;
const COMPUTE: Duration = Duration::from_millis(5);

type Batch = (Vec<Sample>, Vec<Tensor>);

/// What a loop took.
struct Loop {
    elapsed: Duration,
    /// Each time until it had a batch.
    waits: Vec<Duration>,
    last: Batch,
    more: Vec<Line>,
}

type Run = fn(&Target, &[Input<Batch>], usize) -> Result<Loop>;

const LOOPS: [(&str, Run); 3] = [
    ("prefetch", prefetched),
    ("prefetch into memory used before", reused),
    ("start_copy, wait, compute", one_by_one),
];

fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let steps = if bed.quick { 12 } else { STEPS };
    let batches = batches(bed.bytes(IMAGE))?;
    let target = Target::new(bed, &bed.device);
    let bytes = batches[0].leaves.iter().map(Tensor::nbytes).sum();
    let title = format!("{}, {steps} steps", work.title);
    let mut row = Row::new(work.name, title, detection::LEAVES + IMAGES, bytes);
    for (name, run) in LOOPS {
        run(&target, &batches, steps.div_ceil(10))?;
        let done = run(&target, &batches, steps)?;
        if !ours::is_copy(done.last, &batches[(steps - 1) % batches.len()].expected)? {
            return Err("other bytes came back".into());
        }
        let waits = Samples::new(done.waits).ok_or("nothing was timed")?;
        row.lines.push(per_step(Kind::Ours, name, done.elapsed, steps));
        let way = format!("{name}: until the loop has a batch");
        row.lines.push(Line { kind: Kind::Ours, way, outcome: Outcome::Times(waits) });
        row.lines.extend(done.more);
    }
    let begin = Instant::now();
    (0..steps).for_each(|_| compute());
    row.lines.push(per_step(Kind::Limit, "compute alone", begin.elapsed(), steps));
    row.notes.push("compute: the thread sleeps, as one does that waits for a device".to_owned());
    Ok(vec![row])
}

/// A few batches, of which clones are copied in turn.
fn batches(image: usize) -> Result<Vec<Input<Batch>>> {
    let batch = |number: u64| -> Result<_> {
        let images = input::many(50 + number, IMAGES, image)?.into_iter().next().ok_or("no images")?;
        Input::new(number, (detection::batch(number as usize)?, images.value))
    };
    (0..4).map(batch).collect()
}

fn source(batches: &[Input<Batch>], steps: usize) -> impl Iterator<Item = Batch> {
    batches.iter().cycle().take(steps).map(|input| input.value.clone())
}

fn compute() {
    std::thread::sleep(COMPUTE);
}

fn per_step(kind: Kind, way: impl Into<String>, elapsed: Duration, steps: usize) -> Line {
    Line::figure(kind, way, elapsed.as_secs_f64() * 1e6 / steps as f64, "us a step")
}

fn prefetched(target: &Target, batches: &[Input<Batch>], steps: usize) -> Result<Loop> {
    let options = PrefetchOptions::default().copy(target.options.clone());
    let mut items = source(batches, steps).prefetch(&target.device, options);
    let done = walk(steps, || arrived(items.next()), |batch| batch)?;
    Ok(Loop { more: waited("prefetch", &items.stats(), steps), ..done })
}

fn reused(target: &Target, batches: &[Input<Batch>], steps: usize) -> Result<Loop> {
    let options = PrefetchOptions::default().copy(target.options.clone());
    let mut items = source(batches, steps).prefetch(&target.device, options).reuse();
    let done = walk(steps, || arrived(items.next()), Lent::into_inner)?;
    Ok(Loop { more: waited("prefetch into memory used before", &items.stats(), steps), ..done })
}

fn one_by_one(target: &Target, batches: &[Input<Batch>], steps: usize) -> Result<Loop> {
    let mut source = source(batches, steps);
    let mut starts = Vec::with_capacity(steps);
    let next = || {
        let batch = source.next().ok_or("the source has ended")?;
        let begin = Instant::now();
        let copy = target.start(batch)?;
        starts.push(begin.elapsed());
        Ok(copy.wait().map_err(Error::from)?)
    };
    let done = walk(steps, next, |batch| batch)?;
    let starts = Outcome::Times(Samples::new(starts).ok_or("nothing was timed")?);
    let way = "start_copy, wait, compute: until start_copy returns".to_owned();
    Ok(Loop { more: vec![Line { kind: Kind::Ours, way, outcome: starts }], ..done })
}

/// Computes on so many batches, and keeps the last one.
fn walk<B>(steps: usize, mut next: impl FnMut() -> Result<B>, keep: impl Fn(B) -> Batch) -> Result<Loop> {
    let (begin, mut waits) = (Instant::now(), Vec::with_capacity(steps));
    for step in 1..=steps {
        let asked = Instant::now();
        let batch = next()?;
        waits.push(asked.elapsed());
        compute();
        if step == steps {
            return Ok(Loop { elapsed: begin.elapsed(), waits, last: keep(batch), more: Vec::new() });
        }
    }
    Err("a loop has a step at least".into())
}

fn arrived<B>(item: Option<std::result::Result<B, PrefetchError<Batch>>>) -> Result<B> {
    item.ok_or("the source has ended")?.map_err(|error| Error::from(error).into())
}

fn waited(name: &str, stats: &PrefetchStats, steps: usize) -> Vec<Line> {
    let wait =
        |what: &str, time: Duration| per_step(Kind::Ours, format!("{name}: waited for {what}"), time, steps);
    vec![
        wait("the source", stats.source),
        wait("start_copy", stats.start),
        wait("staging", stats.staging),
        wait("the link", stats.link),
    ]
}
