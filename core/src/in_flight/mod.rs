//! What a device may still touch, and who is told when it is done.

pub(crate) mod completion;
pub(crate) mod deferred_release;
pub(crate) mod left_in_flight;
pub(crate) mod metrics;
pub(crate) mod queue;
pub(crate) mod resources;
pub(crate) mod retired;
pub(crate) mod stream_uses;
