//! What was asked of the drivers, and what the devices did.

use std::collections::BTreeMap;
use std::fmt;

use crate::stream::Direction;

/// Figures since the process began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: BTreeMap<&'static str, u64>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) bytes_between: u64,
    pinned: u64,
    most_pinned: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    pub(crate) fn moved(&mut self, direction: Direction, bytes: usize) {
        *match direction {
            Direction::Up => &mut self.bytes_up,
            Direction::Down => &mut self.bytes_down,
            Direction::Between => &mut self.bytes_between,
        } += bytes as u64;
    }

    pub(crate) fn pinned(&mut self, bytes: usize) {
        self.pinned += bytes as u64;
        self.most_pinned = self.most_pinned.max(self.pinned);
    }

    pub(crate) fn unpinned(&mut self, bytes: usize) {
        self.pinned = self.pinned.saturating_sub(bytes as u64);
    }

    /// One figure by its name: `calls`, `calls:cuInit`, `bytes-up`, `bytes-down`, `bytes-between`, `pinned`,
    /// `most-pinned`.
    pub(crate) fn figure(&self, name: &str) -> Option<u64> {
        Some(match name {
            "calls" => self.calls.values().sum(),
            "bytes-up" => self.bytes_up,
            "bytes-down" => self.bytes_down,
            "bytes-between" => self.bytes_between,
            "pinned" => self.pinned,
            "most-pinned" => self.most_pinned,
            _ => self.calls.get(name.strip_prefix("calls:")?).copied().unwrap_or(0),
        })
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (call, count) in &self.calls {
            writeln!(f, "driver-sim: {count:>9}  {call}")?;
        }
        let Self { bytes_up, bytes_down, bytes_between, most_pinned, .. } = self;
        write!(f, "driver-sim: {bytes_up} bytes up, {bytes_down} down, {bytes_between} between devices; ")?;
        write!(f, "at most {most_pinned} bytes were page-locked at once")
    }
}
