//! Streams, and the work that waits on them.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::Instant;

use crate::capture::Capture;
use crate::kernels::Launch;
use crate::memory::Side;

/// Which way bytes go, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Between,
}

/// A function of the program's that runs on a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFunction {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

// SAFETY: whoever launches the function has promised that it may be called on any thread.
unsafe impl Send for HostFunction {}

/// What is to be done.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Copy {
        from: Side,
        to: Side,
        bytes: usize,
        done: usize,
        direction: Direction,
    },
    Fill {
        to: Side,
        bytes: usize,
        value: u8,
    },
    /// A fault: a byte becomes another one.
    Spoil {
        at: Side,
    },
    Kernel(Launch),
    Host(HostFunction),
    Record {
        event: u64,
    },
    Wait,
    Allocate {
        block: u64,
    },
    Free {
        block: u64,
    },
    /// A launch of a graph is done with what that holds.
    LetGo {
        objects: Vec<u64>,
    },
    /// A fault: the context is lost when this runs.
    Fail,
}

/// One piece of work, submitted.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) number: u64,
    /// Work of other streams that comes first.
    pub(crate) after: Vec<Point>,
    pub(crate) work: Work,
    pub(crate) since: Instant,
    pub(crate) call: &'static str,
}

/// A place on a stream: behind this piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) number: u64,
}

/// A queue of work.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) device: usize,
    /// Orders itself against the default stream.
    pub(crate) blocking: bool,
    pub(crate) priority: i32,
    pub(crate) queue: VecDeque<Op>,
    /// The last work submitted, and the last done.
    pub(crate) tail: u64,
    pub(crate) done: u64,
    /// Its first work is a function of the program's that runs now.
    pub(crate) busy: bool,
    /// Destroyed; it goes once its work is done.
    pub(crate) destroyed: bool,
    pub(crate) capture: Option<Capture>,
    pub(crate) call: &'static str,
}

impl Work {
    /// The allocations that it touches.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        let block = |side: &Side| match side {
            Side::Block { block, .. } => Some(*block),
            _ => None,
        };
        match self {
            Self::Copy { from, to, .. } => [from, to].into_iter().filter_map(block).collect(),
            Self::Spoil { at } => block(at).into_iter().collect(),
            Self::Fill { to, .. } => block(to).into_iter().collect(),
            Self::Kernel(launch) => launch.sides().filter_map(block).collect(),
            _ => Vec::new(),
        }
    }
}
