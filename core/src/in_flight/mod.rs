//! What a device may still touch, and who is told when it is done.

pub(crate) mod completion;
pub(crate) mod metrics;
pub(crate) mod queue;
pub(crate) mod retired;
