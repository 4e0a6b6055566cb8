//! Our threads, locks and counters. Knows no device.

pub(crate) mod asleep;
pub(crate) mod at_exit;
pub(crate) mod backoff;
pub(crate) mod fetch;
pub(crate) mod foreign;
pub(crate) mod fork;
pub(crate) mod host_memory;
pub(crate) mod huge_pages;
pub(crate) mod leaks;
pub(crate) mod lent_collector;
pub(crate) mod near_node;
pub(crate) mod own_pages;
pub(crate) mod reactor;
pub(crate) mod scratch;
pub(crate) mod stats;
#[cfg(not(shuttle))]
pub(crate) mod sync;
#[cfg(shuttle)]
pub mod sync;
pub(crate) mod thread_index;
pub(crate) mod topology;
pub mod trace;
pub(crate) mod workers;
