//! What a timeline is made of.

use std::collections::BTreeMap;

use crate::device_id::DeviceId;
use crate::runtime::thread_index;

/// All that is known. Times are in nanoseconds.
#[derive(Clone, Default)]
pub(crate) struct Records {
    /// How many copies there are.
    pub(crate) copies: u64,
    pub(crate) threads: BTreeMap<usize, String>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) submissions: Vec<Submitted>,
    /// When each copy ended.
    pub(crate) ends: BTreeMap<u64, u64>,
    pub(crate) samples: Vec<Sample>,
}

/// What a thread did for a copy.
#[derive(Clone)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) thread: usize,
    pub(crate) copy: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// A part of a copy that was given to a stream.
#[derive(Clone)]
pub(crate) struct Submitted {
    pub(crate) copy: u64,
    pub(crate) device: DeviceId,
    pub(crate) stream: u64,
    pub(crate) position: u64,
    pub(crate) begin: u64,
    pub(crate) bytes: u64,
}

/// Memory in use at a time, in bytes.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) at: u64,
    pub(crate) device: DeviceId,
    pub(crate) of: &'static str,
    pub(crate) bytes: u64,
}

impl Records {
    /// The number of this thread, whose name is known from now on.
    pub(crate) fn this_thread(&mut self) -> usize {
        let number = thread_index::calling();
        self.threads.entry(number).or_insert_with(|| {
            let name = std::thread::current().name().map(ToOwned::to_owned);
            name.unwrap_or_else(|| format!("thread {number}"))
        });
        number
    }
}
