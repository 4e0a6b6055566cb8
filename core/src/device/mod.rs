//! A device as the program sees it: its queues, its pools, its streams.

pub(crate) mod device;
pub(crate) mod drivers;
pub(crate) mod stream;
pub(crate) mod thread_queues;
