//! What runs next: chosen at random among all that the rules of streams allow, and as late as somebody can bear.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::sim::{Sim, State, enter};
use crate::stream::Point;

/// How long a waiter sleeps when nothing can run.
const NAP: Duration = Duration::from_millis(1);
/// So many questions in a row are answered with "not ready" at the most before something moves.
const MOST_PATIENCE: usize = 3;

/// Starts the thread that runs what nobody asks for.
pub(crate) fn start_background() {
    // Without it the work of a program that merely sleeps stands still, which no such program survives unnoticed.
    let _ = std::thread::Builder::new().name("driver-sim".to_owned()).spawn(run_overdue);
}

fn run_overdue() {
    loop {
        let mut sim = enter();
        let latest = sim.settings.latest;
        if sim.active.is_empty() {
            sim.wait(Duration::from_millis(100));
            continue;
        }
        while sim.step_overdue() {
            sim.let_others();
        }
        drop(sim);
        std::thread::sleep(latest / 2);
    }
}

impl State {
    pub(crate) fn is_done(&self, point: Point) -> bool {
        let Some(stream) = self.streams.get(&point.stream) else { return true };
        stream.done >= point.number || self.is_lost(stream.context)
    }

    fn is_lost(&self, context: u64) -> bool {
        self.contexts.get(&context).is_none_or(|context| context.lost.is_some())
    }

    /// The streams whose first work may run now.
    fn runnable(&self) -> Vec<u64> {
        let may_run = |number: &u64| {
            let Some(stream) = self.streams.get(number) else { return false };
            let Some(op) = stream.queue.front() else { return false };
            !stream.busy
                && !self.devices.get(stream.device).is_some_and(|device| device.hung)
                && !self.is_lost(stream.context)
                && op.since.elapsed() >= self.settings.slow
                && op.after.iter().all(|point| self.is_done(*point))
        };
        self.active.iter().copied().filter(may_run).collect()
    }

    /// The streams on which work must be done before `target` is reached.
    fn needed(&self, target: Point) -> BTreeSet<u64> {
        let mut reached = BTreeMap::new();
        let mut open = vec![target];
        while let Some(point) = open.pop() {
            if self.is_done(point) || reached.get(&point.stream).is_some_and(|number| *number >= point.number)
            {
                continue;
            }
            reached.insert(point.stream, point.number);
            let Some(stream) = self.streams.get(&point.stream) else { continue };
            let before = stream.queue.iter().take_while(|op| op.number <= point.number);
            open.extend(before.flat_map(|op| op.after.iter().copied()));
        }
        reached.into_keys().collect()
    }
}

impl Sim {
    /// Somebody has asked whether something is done: now and then, one step of anything is.
    pub(crate) fn asked(&mut self) {
        match self.patience {
            0 => {
                self.patience = self.random.below(MOST_PATIENCE + 1);
                self.step(None);
            }
            left => self.patience = left - 1,
        }
    }

    /// Does one step of a stream that may, of those given if some are; whether there was one.
    pub(crate) fn step(&mut self, among: Option<&BTreeSet<u64>>) -> bool {
        let mut streams = self.runnable();
        streams.retain(|stream| among.is_none_or(|among| among.contains(stream)));
        self.step_one_of(&streams)
    }

    /// Blocks until the stream has done what was submitted to it.
    pub(crate) fn drain(&mut self, stream: u64) -> Result<(), Failure> {
        match self.streams.get(&stream).map(|stream| stream.tail) {
            Some(number) => self.finish(Point { stream, number }),
            None => Ok(()),
        }
    }

    /// Blocks until this point is reached. What it does not need runs now and then.
    pub(crate) fn finish(&mut self, point: Point) -> Result<(), Failure> {
        let context = self.streams.get(&point.stream).map(|stream| stream.context);
        while !self.is_done(point) {
            let needed = self.needed(point);
            let anything = self.random.one_in(4) && self.step(None);
            if !anything && !self.step(Some(&needed)) {
                self.wait(NAP);
            }
            self.let_others();
        }
        match context.and_then(|context| self.contexts.get(&context)).and_then(|context| context.lost) {
            None => Ok(()),
            Some(lost) => Err(lost),
        }
    }

    /// Does one step of what has waited for too long; whether there was any.
    fn step_overdue(&mut self) -> bool {
        let (now, latest) = (Instant::now(), self.settings.latest);
        let mut streams = self.runnable();
        streams.retain(|stream| {
            let first = self.streams.get(stream).and_then(|stream| stream.queue.front());
            first.is_some_and(|op| now.saturating_duration_since(op.since) >= latest)
        });
        self.step_one_of(&streams)
    }

    fn step_one_of(&mut self, streams: &[u64]) -> bool {
        if streams.is_empty() {
            return false;
        }
        let chosen = streams[self.random.below(streams.len())];
        let call = self.call;
        self.run_first(chosen);
        self.call = call;
        true
    }
}
