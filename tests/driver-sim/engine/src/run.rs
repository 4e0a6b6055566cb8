//! Running one step of a stream: what it touches must still be there.

use std::time::Instant;

use crate::failure::Failure;
use crate::memory::{Life, Side};
use crate::sim::{Sim, enter, inside_host_function};
use crate::stream::{Direction, HostFunction, Op, Work};

impl Sim {
    /// Runs the first work of a stream, or a part of it.
    pub(crate) fn run_first(&mut self, number: u64) {
        let Some(mut op) = self.streams.get_mut(&number).and_then(|stream| stream.queue.pop_front()) else {
            return;
        };
        self.call = op.call;
        let finished = match &mut op.work {
            Work::Copy { from, to, bytes, done, direction } => {
                *done += self.copy_some(from, to, *bytes, *done, *direction);
                *done == *bytes
            }
            Work::Host(function) => {
                self.begin_host(number, *function);
                false
            }
            work => {
                let outcome = self.run_whole(number, work);
                self.note(outcome);
                true
            }
        };
        match finished {
            true => self.done(number, &op),
            false => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.queue.push_front(op);
                }
            }
        }
    }

    /// Copies the next part: all of it, or less. So a program that touches memory in between sees half a copy.
    fn copy_some(
        &mut self,
        from: &Side,
        to: &Side,
        bytes: usize,
        done: usize,
        direction: Direction,
    ) -> usize {
        let left = bytes - done;
        let part = if self.random.one_in(2) { left } else { 1 + self.random.below(left) };
        let pointers =
            self.memory.pointer(from, bytes).and_then(|from| Ok((from, self.memory.pointer(to, bytes)?)));
        match pointers {
            Ok((from, to)) => {
                // SAFETY: `pointer` has checked that so many bytes are there; pageable memory is the program's promise.
                unsafe { std::ptr::copy(from.add(done), to.add(done), part) };
                self.counters.moved(direction, part);
                part
            }
            Err(wrong) => {
                self.violation(wrong);
                left
            }
        }
    }

    fn run_whole(&mut self, stream: u64, work: &Work) -> Result<(), String> {
        match work {
            Work::Fill { to, bytes, value } => {
                let start = self.memory.pointer(to, *bytes)?;
                // SAFETY: `pointer` has checked that so many bytes are there.
                unsafe { start.write_bytes(*value, *bytes) };
                Ok(())
            }
            Work::Spoil { at } => {
                let byte = self.memory.pointer(at, 1)?;
                // SAFETY: `pointer` has checked that it is there, and a copy has just written it.
                unsafe { *byte = !*byte };
                Ok(())
            }
            Work::Kernel(launch) => launch.run(&self.memory),
            Work::Record { event } => {
                if let Some(event) = self.events.get_mut(event) {
                    event.time = Some(Instant::now());
                }
                Ok(())
            }
            Work::Allocate { block } => {
                self.memory.bring_to_life(*block);
                Ok(())
            }
            Work::LetGo { objects } => {
                objects.iter().for_each(|object| self.let_go(*object));
                Ok(())
            }
            Work::Free { block } => self.run_free(*block),
            Work::Fail => {
                let context = self.streams.get(&stream).map(|stream| stream.context);
                context.into_iter().for_each(|context| self.lose_context(context, Failure::LaunchFailed));
                Ok(())
            }
            Work::Wait | Work::Copy { .. } | Work::Host(_) => Ok(()),
        }
    }

    fn run_free(&mut self, block: u64) -> Result<(), String> {
        let freed = self.memory.block(block).ok_or("its memory was freed before")?;
        if freed.life == Life::Ordered {
            return Err(format!("it frees memory before its allocation by {} has run", freed.call));
        }
        let call = self.call;
        self.remove_block(block, call);
        Ok(())
    }

    fn begin_host(&mut self, number: u64, function: HostFunction) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.busy = true;
        }
        let run = move || {
            let function = function;
            // SAFETY: whoever launched it has promised that it may be called, once.
            inside_host_function(|| unsafe { (function.function)(function.data) });
            let mut sim = enter();
            let op = sim.streams.get_mut(&number).and_then(|stream| {
                stream.busy = false;
                stream.queue.pop_front()
            });
            if let Some(op) = op {
                sim.done(number, &op);
            }
        };
        if std::thread::Builder::new().name("driver-sim-host".to_owned()).spawn(run).is_err() {
            self.violation("no thread could be started for a function that runs on a stream".to_owned());
        }
    }

    fn done(&mut self, number: u64, op: &Op) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.done = op.number;
        if stream.queue.is_empty() {
            let over = stream.destroyed;
            self.active.remove(&number);
            if over {
                self.streams.remove(&number);
            }
        }
        self.notify();
    }

    fn note(&mut self, outcome: Result<(), String>) {
        if let Err(wrong) = outcome {
            self.violation(wrong);
        }
    }
}
