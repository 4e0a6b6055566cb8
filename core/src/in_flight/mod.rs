//! What a device may still touch, and who is told when it is done.

pub(crate) mod after_cancel;
pub(crate) mod carried;
pub(crate) mod completion;
pub(crate) mod copy_metrics;
pub(crate) mod deadline;
pub(crate) mod deferred_release;
pub(crate) mod graph_use;
pub(crate) mod leaving_memory;
pub(crate) mod line_for_room;
pub(crate) mod locked_uses;
pub(crate) mod memory_budget;
pub(crate) mod released_lent;
pub(crate) mod retained;
pub(crate) mod stream_uses;
pub(crate) mod submission_queue;
