//! Threads that each copy batches of their own, over and over: how much all of them copy, what that costs, and how long one waits.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use transship::{Device, Tensor};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::input::{self, Input};
use crate::measure::Method;
use crate::ours::Target;
use crate::rivals;
use crate::table::{Kind, Line, Outcome, Row, Samples};

pub(super) const ROWS: &[Work] = &[
    Work {
        name: "crowd-300x30KB",
        title: "300 x 30 KB",
        needs: Needs::Nothing,
        run: |b, w| run(b, w, 300, 30_000),
    },
    Work {
        name: "crowd-1x9MB",
        title: "1 x 9 MB",
        needs: Needs::Nothing,
        run: |b, w| run(b, w, 1, 9_000_000),
    },
    Work {
        name: "crowd-20x450KB",
        title: "20 x 450 KB",
        needs: Needs::Nothing,
        run: |b, w| run(b, w, 20, 450_000),
    },
    Work {
        name: "crowd-4x64MB",
        title: "4 x 64 MB",
        needs: Needs::Nothing,
        run: |b, w| run(b, w, 4, 64_000_000),
    },
    Work {
        name: "crowd-down-300x30KB",
        title: "300 x 30 KB down",
        needs: Needs::Device,
        run: |b, w| run_down(b, w, 300, 30_000),
    },
    Work {
        name: "crowd-down-1x9MB",
        title: "1 x 9 MB down",
        needs: Needs::Device,
        run: |b, w| run_down(b, w, 1, 9_000_000),
    },
    Work {
        name: "crowd-down-20x450KB",
        title: "20 x 450 KB down",
        needs: Needs::Device,
        run: |b, w| run_down(b, w, 20, 450_000),
    },
    Work {
        name: "crowd-down-1x64MB",
        title: "1 x 64 MB down",
        needs: Needs::Device,
        run: |b, w| run_down(b, w, 1, 64_000_000),
    },
    Work {
        name: "crowd-mixed",
        title: "as many of each of these and of 155 KB",
        needs: Needs::Nothing,
        run: mixed,
    },
];

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Ours and theirs take turns so often.
const TURNS: usize = 3;

type Tensors = Vec<Tensor>;
type Copies = Box<dyn Method<Tensors>>;
/// What a thread does over and over.
type Make<'a> = &'a (dyn Fn() -> Result<Copies> + Sync);
/// The batches of a thread, by its number.
type Batches<'a> = &'a (dyn Fn(usize) -> Result<Vec<Input<Tensors>>> + Sync);

fn run(bed: &Bed, work: &Work, count: usize, bytes: usize) -> Result<Vec<Row>> {
    rows(bed, work, &|number| two_batches(bed, number, count, bytes))
}

/// The same from the device into pinned memory, for which there is room enough.
fn run_down(bed: &Bed, work: &Work, count: usize, bytes: usize) -> Result<Vec<Row>> {
    let one_copy_each = || by_hand_down(&bed.device);
    let hand = rivals::each_down::<Tensors>(&bed.device)?.map(|_| &one_copy_each as Make<'_>);
    let hand = ("by hand: a copy each into pinned memory of its own, a stream for each thread", hand);
    let target = Target::new(bed, &Device::host());
    let options = bed.options(&bed.device).packing(false);
    let on_device = |number: usize| -> Result<Vec<_>> {
        let batches = two_batches(bed, number, count, bytes)?;
        batches.into_iter().map(|batch| batch.on(&bed.device, &options)).collect()
    };
    // The result of a thread, the one before, and one more.
    let budget = 3 * THREADS[THREADS.len() - 1] * bed.count(count, bytes) * bytes;
    bed.with_result_budget(budget, || {
        THREADS.iter().map(|threads| row(bed, work, *threads, &on_device, &target, hand)).collect()
    })
}

fn two_batches(bed: &Bed, number: usize, count: usize, bytes: usize) -> Result<Vec<Input<Tensors>>> {
    let (count, bytes) = (bed.count(count, bytes), bed.bytes(bytes) & !7);
    Ok(input::many(100 + number as u64, count, bytes)?.into_iter().take(2).collect())
}

/// Each thread has batches of one kind, the next one of another.
fn mixed(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    const KINDS: [(usize, usize); 5] =
        [(300, 30_000), (1, 9_000_000), (528, 288), (20, 450_000), (4, 64_000_000)];
    rows(bed, work, &|number| {
        let (count, bytes) = KINDS[number % KINDS.len()];
        two_batches(bed, number, count, bytes)
    })
}

fn rows(bed: &Bed, work: &Work, batches: Batches<'_>) -> Result<Vec<Row>> {
    let ring = || by_hand(&bed.device);
    let hand = rivals::ring::<Tensors>(&bed.device)?.map(|_| &ring as Make<'_>);
    let hand = ("by hand: two pinned blocks of 2 MiB and a stream for each thread, blocking waits", hand);
    let target = Target::new(bed, &bed.device);
    THREADS.iter().map(|threads| row(bed, work, *threads, batches, &target, hand)).collect()
}

fn row(
    bed: &Bed,
    work: &Work,
    threads: usize,
    batches: Batches<'_>,
    target: &Target,
    (limit, hand): (&'static str, Option<Make<'_>>),
) -> Result<Row> {
    let plural = if threads == 1 { "thread" } else { "threads, each its own" };
    let mut row = Row::new(work.name, format!("{threads} {plural}: {}", work.title), 0, 0);
    let ours = || Ok(target.method());
    let mut ways = vec![Way::new(Kind::Ours, "start_copy, until wait() returns", &ours)];
    match hand {
        Some(hand) => ways.push(Way::new(Kind::Limit, limit, hand)),
        None => row.lines.push(rivals::no_limit(limit, &bed.device)),
    }
    let effort = bed.effort(0.9);
    let inputs = (0..threads).map(batches).collect::<Result<Vec<_>>>()?;
    turn(&mut ways, &inputs, effort.warm_up)?;
    ways.iter_mut().for_each(Way::forget);
    for _ in 0..TURNS {
        turn(&mut ways, &inputs, effort.timed / (2 * TURNS) as u32)?;
    }
    let lines = ways.into_iter().map(Way::into_lines).collect::<Result<Vec<_>>>()?;
    row.lines.splice(0..0, lines.into_iter().flatten());
    Ok(row)
}

fn by_hand(device: &Device) -> Result<Copies> {
    Ok(rivals::ring(device)?.ok_or("there is no way by hand")?)
}

fn by_hand_down(device: &Device) -> Result<Copies> {
    Ok(rivals::each_down(device)?.ok_or("there is no way by hand")?)
}

struct Way<'a> {
    kind: Kind,
    name: &'static str,
    make: Make<'a>,
    /// Of all turns and all threads.
    times: Vec<Duration>,
    bytes: usize,
    /// How long its turns took, by the clock and of processors.
    elapsed: Duration,
    busy: Duration,
}

impl<'a> Way<'a> {
    fn new(kind: Kind, name: &'static str, make: Make<'a>) -> Self {
        Self { kind, name, make, times: Vec::new(), bytes: 0, elapsed: Duration::ZERO, busy: Duration::ZERO }
    }

    /// What was done so far was to warm up.
    fn forget(&mut self) {
        *self = Self::new(self.kind, self.name, self.make);
    }

    fn into_lines(self) -> Result<Vec<Line>> {
        let gigabytes = self.bytes as f64 / 1e9;
        let longest = self.times.iter().max().copied().unwrap_or_default();
        let samples = Samples::new(self.times).ok_or("nothing was timed")?;
        let times_median = longest.as_secs_f64() * 1e6 / samples.microseconds(0.5);
        let figure =
            |what, value, unit| Line::figure(self.kind, format!("{}: {what}", self.name), value, unit);
        let mut lines = vec![
            figure("all together, by the clock", 1e3 * gigabytes / self.elapsed.as_secs_f64(), "MB/s"),
            figure("longest", longest.as_secs_f64() * 1e6, "us"),
            figure("longest in hundredths of the median", 100.0 * times_median, ""),
        ];
        if self.busy > Duration::ZERO {
            lines.push(figure("processor time", self.busy.as_secs_f64() * 1e6 / gigabytes, "us/GB"));
        }
        lines
            .insert(0, Line { kind: self.kind, way: self.name.to_owned(), outcome: Outcome::Times(samples) });
        Ok(lines)
    }
}

fn turn(ways: &mut [Way<'_>], inputs: &[Vec<Input<Tensors>>], time: Duration) -> Result<()> {
    for way in ways {
        let begin = Barrier::new(inputs.len() + 1);
        let end = Barrier::new(inputs.len() + 1);
        let mut busy = Duration::ZERO;
        let threads = std::thread::scope(|scope| {
            let threads = inputs.iter().map(|inputs| {
                let (make, begin, end) = (way.make, &begin, &end);
                scope.spawn(move || one_thread(inputs, make, begin, end, time))
            });
            let threads = threads.collect::<Vec<_>>();
            begin.wait();
            let before = processor_time();
            end.wait();
            busy = processor_time().saturating_sub(before);
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a thread panicked")?)
                .collect::<Result<Vec<_>>>()
        })?;
        way.busy += busy;
        way.elapsed += threads.iter().map(|thread| thread.elapsed).max().unwrap_or_default();
        way.bytes += threads.iter().map(|thread| thread.bytes).sum::<usize>();
        way.times.extend(threads.into_iter().flat_map(|thread| thread.times));
    }
    Ok(())
}

/// What one thread has done in a turn.
struct Turn {
    times: Vec<Duration>,
    bytes: usize,
    elapsed: Duration,
}

/// Copies for so long; looks at the last one.
fn one_thread(
    inputs: &[Input<Tensors>],
    make: Make<'_>,
    begin: &Barrier,
    end: &Barrier,
    time: Duration,
) -> Result<Turn> {
    let ready = warm(inputs, make);
    begin.wait();
    let copied = ready.and_then(|mut method| Ok((copy_for(&mut *method, inputs, time)?, method)));
    end.wait();
    let (turn, mut method) = copied?;
    let last = &inputs[(turn.times.len() - 1) % inputs.len()];
    if !method.is_right(&last.expected)? {
        return Err("a thread has copied something else than it was given".into());
    }
    Ok(turn)
}

fn warm(inputs: &[Input<Tensors>], make: Make<'_>) -> Result<Copies> {
    let mut method = make()?;
    for input in inputs {
        method.run(input)?;
    }
    Ok(method)
}

fn copy_for(method: &mut dyn Method<Tensors>, inputs: &[Input<Tensors>], time: Duration) -> Result<Turn> {
    let mut turn = Turn { times: Vec::new(), bytes: 0, elapsed: Duration::ZERO };
    let started = Instant::now();
    for input in inputs.iter().cycle() {
        turn.times.push(method.run(input)?);
        turn.bytes += input.leaves.iter().map(Tensor::nbytes).sum::<usize>();
        if started.elapsed() > time {
            break;
        }
    }
    turn.elapsed = started.elapsed();
    Ok(turn)
}

/// What all threads of this program have used so far; nothing where that is not told. Linux counts it in hundredths of a second.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which ends with the last bracket: the 12th and the 13th field are the times in programs and in the system.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(10 * ticks)
}
