//! One thread that copies middling tensors, one behind the other or now and then, against a ring that several threads fill.

use std::time::Duration;

use transship::Tensor;

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::{Contender, Method, series};
use crate::ours::Target;
use crate::rivals;
use crate::table::{Kind, Row};

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "rest-none",
        title: "one behind the other",
        needs: Needs::Nothing,
        run: |b, w| rows(b, w, 0),
    },
    Work { name: "rest-5ms", title: "after 5 ms of rest", needs: Needs::Nothing, run: |b, w| rows(b, w, 5) },
];

const SIZES: [usize; 3] = [2_000_000, 9_000_000, 32_000_000];
/// How many tensors are copied in turn: together they are larger than any cache.
const SOURCES: usize = 300_000_000;

type Tensors = Vec<Tensor>;

fn rows(bed: &Bed, work: &Work, rest: u64) -> Result<Vec<Row>> {
    let rest = Duration::from_millis(rest);
    SIZES.iter().map(|bytes| row(bed, work, bed.bytes(*bytes) & !7, rest)).collect()
}

fn row(bed: &Bed, work: &Work, bytes: usize, rest: Duration) -> Result<Row> {
    let mut row = Row::new(work.name, format!("one tensor of {bytes} B {}", work.title), 1, bytes);
    let rested = |contender: Contender<Tensors>| {
        contender.map(|_, way, method| (way, Box::new(Rested { rest, method }) as Box<dyn Method<Tensors>>))
    };
    let mut contenders = vec![Target::new(bed, &bed.device).contender::<Tensors>()];
    for threads in [4, 8] {
        for (spin, what) in [(true, "spin"), (false, "sleep")] {
            if let Some(team) = rivals::team(&bed.device, threads, spin)? {
                let way =
                    format!("by hand: a ring of 16 pinned blocks, filled by {threads} threads that {what}");
                contenders.push(Contender::new(Kind::Limit, way, Boxed(team)));
            }
        }
    }
    if let Some(ring) = rivals::ring(&bed.device)? {
        let way = "by hand: two pinned blocks of 2 MiB, filled by this thread";
        contenders.push(Contender::new(Kind::Limit, way, Boxed(ring)));
    }
    let contenders = contenders.into_iter().map(rested).collect();
    let count = if bed.quick { 2 } else { (SOURCES / bytes).max(2) };
    row.lines = series(bed.effort(1.2), contenders, |seed| sources(seed, count, bytes))?;
    Ok(row)
}

fn sources(seed: u64, count: usize, bytes: usize) -> Result<Vec<Input<Tensors>>> {
    let first = seed * count as u64;
    (first..first + count as u64)
        .map(|seed| input::many(seed, 1, bytes)?.into_iter().next().ok_or_else(|| "no input".into()))
        .collect()
}

/// Does nothing for a while before it copies.
struct Rested {
    rest: Duration,
    method: Box<dyn Method<Tensors>>,
}

impl Method<Tensors> for Rested {
    fn run(&mut self, input: &Input<Tensors>) -> Result<Duration> {
        if self.rest > Duration::ZERO {
            std::thread::sleep(self.rest);
        }
        self.method.run(input)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.method.is_right(expected)
    }
}

struct Boxed(Box<dyn Method<Tensors>>);

impl Method<Tensors> for Boxed {
    fn run(&mut self, input: &Input<Tensors>) -> Result<Duration> {
        self.0.run(input)
    }

    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool> {
        self.0.is_right(expected)
    }
}
