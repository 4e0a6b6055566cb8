//! Running operations, one at a time, and only when somebody looks.

use std::ops::Range;
use std::ptr::NonNull;
use std::time::Duration;

use transship_core::{Cast, Result};

use crate::instance::{Instance, Stall, State};
use crate::queue::{End, Op};
use crate::sync::Instant;

impl Instance {
    /// One look at a stream: runs one operation at most, and says how far the stream has come.
    pub(crate) fn look(&self, state: &mut State, stream: usize) -> u64 {
        state.streams[stream].polls += 1;
        if state.streams[stream].polls >= self.config.polls_per_op {
            state.streams[stream].polls = 0;
            if let Some(next) = state.choose(stream, self.config.seed.is_some()) {
                state.step(next);
            }
        }
        state.streams[stream].reached
    }

    /// Runs what `done` needs of a stream; sleeps while that is stalled. `false` on time-out.
    pub(crate) fn run_until(
        &self,
        stream: usize,
        timeout: Option<Duration>,
        done: impl Fn(&State) -> bool,
    ) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        loop {
            state.calls.check_alive(self.devices[state.streams[stream].device])?;
            if done(&state) {
                return Ok(true);
            }
            if let Some(next) = state.choose(stream, self.config.seed.is_some()) {
                state.step(next);
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(false);
            }
            let stalled_until = match state.stall {
                Stall::Until(end) => Some(end),
                _ => None,
            };
            let nap =
                deadline.into_iter().chain(stalled_until).min().map(|end| end.saturating_duration_since(now));
            match nap {
                Some(nap) => drop(self.changed.wait_for(&mut state, nap)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl State {
    /// The stream whose next operation runs now; `None` while that is stalled, or there is nothing to do.
    fn choose(&mut self, wanted: usize, at_random: bool) -> Option<usize> {
        match self.stall {
            Stall::Until(end) if end <= Instant::now() => self.stall = Stall::No,
            Stall::No => {}
            _ => return None,
        }
        if !at_random {
            let first = self.held_up_by(wanted);
            return self.can_run(first).then_some(first);
        }
        let able: Vec<usize> = (0..self.streams.len()).filter(|stream| self.can_run(*stream)).collect();
        let index = self.random_below(able.len())?;
        able.get(index).copied()
    }

    /// The stream that `stream` waits for, over however many others. A wait is for a position that was there before it,
    /// so this comes to an end.
    fn held_up_by(&self, mut stream: usize) -> usize {
        while let Some(Op::WaitFor { stream: other, position }) = self.streams[stream].pending.front()
            && self.streams[*other].reached < *position
        {
            stream = *other;
        }
        stream
    }

    fn can_run(&self, stream: usize) -> bool {
        let queue = &self.streams[stream];
        !queue.stalled && !queue.pending.is_empty() && self.held_up_by(stream) == stream
    }

    /// Runs the next operation of a stream that can run.
    fn step(&mut self, stream: usize) {
        match self.streams[stream].pending.pop_front() {
            Some(Op::Allocate(id)) => {
                if let Some(allocation) = self.allocations.get_mut(&id) {
                    allocation.usable = true;
                }
            }
            Some(Op::Copy { from, to, bytes }) => self.copy(from, to, bytes),
            Some(Op::Cast { from, to, cast, elements, bytes }) => {
                self.cast(from, to, &cast, elements, bytes);
            }
            Some(Op::Table { block, start, bytes, mark }) => self.read_table(block, start.0, bytes, mark),
            Some(Op::Mark(time)) => drop(time.set(Instant::now())),
            Some(Op::Reach(position)) => self.streams[stream].reached = position,
            Some(Op::WaitFor { .. }) | None => {}
        }
    }

    /// Copies, unless one of the ends is gone.
    fn copy(&mut self, from: Option<End>, to: End, bytes: usize) {
        let ends = from.map(|from| self.find("from", from, bytes)).transpose();
        match ends.and_then(|from| Ok((from, self.find("to", to, bytes)?))) {
            // SAFETY: `find` has checked what lies in memory of this driver; host memory that is not ours is kept alive and
            // untouched by the caller of `submit` until the position behind this copy is reached.
            Ok((Some(from), to)) => unsafe { to.copy_from(from, bytes) },
            // SAFETY: as above.
            Ok((None, to)) => unsafe { to.write_bytes(0, bytes) },
            Err(violation) => self.violations.push(violation),
        }
    }

    /// Casts elements and copies those bytes of them, unless one of the ends is gone.
    fn cast(&mut self, from: End, to: End, cast: &Cast, elements: usize, bytes: Range<usize>) {
        let (read, made) = (elements * cast.from_dtype().size(), elements * cast.to_dtype().size());
        let from = self.find("from", from, read);
        match from.and_then(|from| Ok((from, self.find("to", to, bytes.len())?))) {
            Ok((from, to)) => {
                let mut converted = vec![0; made];
                // SAFETY: as in `copy`; nobody writes there meanwhile.
                let elements = unsafe { std::slice::from_raw_parts(from.as_ptr(), read) };
                if let Err(refused) = cast.convert(elements, &mut converted) {
                    return self.violations.push(refused.to_string());
                }
                // SAFETY: as in `copy`.
                unsafe { to.copy_from(NonNull::from(&converted[bytes.clone()]).cast(), bytes.len()) };
            }
            Err(violation) => self.violations.push(violation),
        }
    }

    /// Looks whether a table is as it was written.
    fn read_table(&mut self, block: u64, start: NonNull<u8>, bytes: usize, mark: u8) {
        if !self.staging.contains_key(&block) {
            return self.violations.push("a table in a staging block that was dropped".to_owned());
        }
        // SAFETY: the block is alive, and `check_table` has checked the range and written it.
        let table = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        if table.iter().any(|byte| *byte != mark) {
            self.violations.push("a table that was written to before its kernel had run".to_owned());
        }
    }

    /// Where an end of a copy lies now.
    fn find(&self, which: &str, end: End, bytes: usize) -> Result<NonNull<u8>, String> {
        match end {
            End::Host(start) => Ok(start.0),
            End::Registered { id, start } if self.registered.contains_key(&id) => Ok(start.0),
            End::Registered { .. } => {
                Err(format!("a copy of {bytes} bytes {which} memory that was unregistered"))
            }
            End::Staging { block, start } if self.staging.contains_key(&block) => Ok(start.0),
            End::Staging { .. } => {
                Err(format!("a copy of {bytes} bytes {which} a staging block that was dropped"))
            }
            End::Device { allocation, offset } => match self.allocations.get(&allocation) {
                None => Err(format!("a copy of {bytes} bytes {which} device memory that was released")),
                Some(memory) if !memory.usable => Err(format!(
                    "a copy of {bytes} bytes {which} device memory before the stream that it was allocated on came by"
                )),
                Some(memory) => memory.block.at(offset, bytes).ok_or_else(|| {
                    format!("a copy of {bytes} bytes {which} beyond the end of an allocation")
                }),
            },
        }
    }

    /// A number below `limit` (SplitMix64); `None` if there is none.
    fn random_below(&mut self, limit: usize) -> Option<usize> {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).checked_rem(limit as u64).map(|number| number as usize)
    }
}
