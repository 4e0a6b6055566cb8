//! What a stream has still to do.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use transship_core::Cast;

use crate::sync::Instant;

/// One stream: operations that have not run, in order.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) device: usize,
    pub(crate) pending: VecDeque<Op>,
    /// The last position given out.
    pub(crate) recorded: u64,
    /// The last position that was reached.
    pub(crate) reached: u64,
    /// Looks since the last operation ran.
    pub(crate) polls: u32,
    pub(crate) stalled: bool,
    /// Somebody captures it into a graph.
    pub(crate) captured: bool,
}

/// One operation of a stream.
pub(crate) enum Op {
    /// Makes an allocation usable.
    Allocate(u64),
    /// Copies `bytes` bytes; zeros if there is no source.
    Copy { from: Option<End>, to: End, bytes: usize },
    /// Casts whole elements, and copies those bytes of them.
    Cast { from: End, to: End, cast: Cast, elements: usize, bytes: Range<usize> },
    /// Reads the table of a kernel, whose copies come behind it.
    Table { block: u64, start: HostPointer, bytes: usize, mark: u8 },
    /// Holds the stream until another one has come so far.
    WaitFor { stream: usize, position: u64 },
    /// Takes the time.
    Mark(Arc<OnceLock<Instant>>),
    /// Reaches a position.
    Reach(u64),
}

/// One end of a copy, as it was captured when the copy was submitted.
pub(crate) enum End {
    /// In a device allocation.
    Device { allocation: u64, offset: usize },
    /// In a staging block.
    Staging { block: u64, start: HostPointer },
    /// In host memory that is registered.
    Registered { id: u64, start: HostPointer },
    /// In host memory that is not ours, so that only Miri can tell whether it is alive.
    Host(HostPointer),
}

/// An address that a copy will use on whatever thread it runs.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer(pub(crate) NonNull<u8>);

// SAFETY: the caller of `submit` keeps the range alive and untouched until the copy was reached, on any thread.
unsafe impl Send for HostPointer {}

impl Op {
    /// The staging blocks that it uses.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let block = |end: &End| match end {
            End::Staging { block, .. } => Some(*block),
            _ => None,
        };
        let blocks = match self {
            Self::Copy { from, to, .. } => [from.as_ref().and_then(block), block(to)],
            Self::Cast { from, to, .. } => [block(from), block(to)],
            Self::Table { block, .. } => [Some(*block), None],
            _ => [None, None],
        };
        blocks.into_iter().flatten()
    }
}

impl Op {
    /// The registrations that it uses.
    pub(crate) fn registrations(&self) -> impl Iterator<Item = u64> + '_ {
        let ends = match self {
            Self::Copy { from, to, .. } => [from.as_ref(), Some(to)],
            _ => [None, None],
        };
        ends.into_iter().flatten().filter_map(|end| match end {
            End::Registered { id, .. } => Some(*id),
            _ => None,
        })
    }
}

impl Queue {
    pub(crate) fn new(device: usize) -> Self {
        Self { device, ..Self::default() }
    }

    /// Puts the next position behind everything.
    pub(crate) fn record(&mut self) -> u64 {
        self.recorded += 1;
        self.pending.push_back(Op::Reach(self.recorded));
        self.recorded
    }
}
