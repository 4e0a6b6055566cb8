//! Many threads that copy to one device at once.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use transship::Device;

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::detection::{self, Sample};
use crate::input::{self, Input};
use crate::measure::Method;
use crate::ours::Target;
use crate::rivals;
use crate::table::{Kind, Line, Outcome, Row, Samples};

pub(super) const ROWS: &[Work] = &[Work {
    name: "threads-16",
    title: "16 threads, each its own headline copies",
    needs: Needs::Nothing,
    run,
}];

const THREADS: usize = 16;
/// Ours and theirs take turns so often.
const TURNS: usize = 6;

/// What a thread does over and over.
type Make<'a> = &'a (dyn Fn() -> Result<Copies> + Sync);
type Copies = Box<dyn Method<Vec<Sample>>>;

fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let mut row = Row::new(work.name, work.title, detection::LEAVES, detection::BYTES);
    let target = Target::new(bed, &bed.device);
    let device = &bed.device;
    let ours = || Ok(target.method());
    let packed = || by_hand(device);
    let mut ways = vec![Way::new(Kind::Ours, "start_copy, until wait() returns", &ours)];
    let limit = "by hand: packed, one copy, on a stream of its own for each thread";
    match rivals::packed::<Vec<Sample>>(device)? {
        Some(_) => ways.push(Way::new(Kind::Limit, limit, &packed)),
        None => row.lines.push(rivals::no_limit(limit, device)),
    }
    let effort = bed.effort(2.0);
    turn(&mut ways, effort.warm_up)?;
    ways.iter_mut().for_each(Way::forget);
    for _ in 0..TURNS {
        turn(&mut ways, effort.timed / TURNS as u32)?;
    }
    let lines = ways.into_iter().map(Way::into_lines).collect::<Result<Vec<_>>>()?;
    row.lines.splice(0..0, lines.into_iter().flatten());
    Ok(vec![row])
}

fn by_hand(device: &Device) -> Result<Copies> {
    Ok(rivals::packed(device)?.ok_or("there is no way by hand")?)
}

struct Way<'a> {
    kind: Kind,
    name: &'static str,
    make: Make<'a>,
    /// Of all turns and all threads.
    times: Vec<Duration>,
    /// How long its turns took, by the clock.
    elapsed: Duration,
}

impl<'a> Way<'a> {
    fn new(kind: Kind, name: &'static str, make: Make<'a>) -> Self {
        Self { kind, name, make, times: Vec::new(), elapsed: Duration::ZERO }
    }

    /// What was done so far was to warm up.
    fn forget(&mut self) {
        self.times.clear();
        self.elapsed = Duration::ZERO;
    }

    fn into_lines(self) -> Result<Vec<Line>> {
        let copies = self.times.len() as f64;
        let by_the_clock = copies / self.elapsed.as_secs_f64();
        // Without making the input, and letting go of the last result.
        let while_timed = THREADS as f64 * copies / self.times.iter().sum::<Duration>().as_secs_f64();
        let samples = Samples::new(self.times).ok_or("nothing was timed")?;
        let times = Line { kind: self.kind, way: self.name.to_owned(), outcome: Outcome::Times(samples) };
        let rate = |what, value| Line::figure(self.kind, format!("{}: {what}", self.name), value, "copies/s");
        Ok(vec![
            times,
            rate("all threads together, by the clock", by_the_clock),
            rate("all threads together, what is timed", while_timed),
        ])
    }
}

fn turn(ways: &mut [Way<'_>], time: Duration) -> Result<()> {
    for way in ways {
        let begin = Barrier::new(THREADS);
        let threads = std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|number| {
                let (make, begin) = (way.make, &begin);
                scope.spawn(move || one_thread(number, make, begin, time))
            });
            let threads = threads.collect::<Vec<_>>();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a thread panicked")?)
                .collect::<Result<Vec<_>>>()
        })?;
        way.elapsed += threads.iter().map(|thread| thread.elapsed).max().unwrap_or_default();
        way.times.extend(threads.into_iter().flat_map(|thread| thread.times));
    }
    Ok(())
}

/// Copies for so long; looks at the last one.
fn one_thread(number: usize, make: Make<'_>, begin: &Barrier, time: Duration) -> Result<Turn> {
    let ready = warm(number, make);
    begin.wait();
    let (mut method, inputs) = ready?;
    let mut times = Vec::new();
    let started = Instant::now();
    for input in inputs.iter().cycle() {
        times.push(method.run(input)?);
        if started.elapsed() > time {
            break;
        }
    }
    let elapsed = started.elapsed();
    let last = &inputs[(times.len() - 1) % inputs.len()];
    if !method.is_right(&last.expected)? {
        return Err("a thread has copied something else than it was given".into());
    }
    Ok(Turn { times, elapsed })
}

/// What one thread has done in a turn.
struct Turn {
    times: Vec<Duration>,
    /// How long it took, with all that is not timed.
    elapsed: Duration,
}

/// A method that has run before, and the thread's own inputs.
fn warm(number: usize, make: Make<'_>) -> Result<(Copies, Vec<Input<Vec<Sample>>>)> {
    let (mut method, inputs) = (make()?, input::headline(100 + number as u64)?);
    for input in &inputs {
        method.run(input)?;
    }
    Ok((method, inputs))
}
