//! A device as the program sees it: its queues, its pools, its streams.

pub(crate) mod allocate;
pub(crate) mod block_size;
pub(crate) mod check_limits;
pub(crate) mod current;
pub(crate) mod device;
pub(crate) mod drivers;
pub(crate) mod host_node;
pub(crate) mod memory_budgets;
pub(crate) mod open;
pub(crate) mod properties;
pub(crate) mod room;
pub(crate) mod room_to_come;
pub(crate) mod stream;
pub(crate) mod thread_queues;
