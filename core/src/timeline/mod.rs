//! What copies did and when, for a viewer of traces.

pub(crate) mod recorder;
mod records;
pub(crate) mod timeline;
mod trace_events;
