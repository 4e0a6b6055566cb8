//! The functions that programs call. The only module that knows the type of the structure.

pub(crate) mod broadcast;
pub(crate) mod finish;
pub(crate) mod future;
pub(crate) mod handle;
pub(crate) mod into;
pub(crate) mod pairing;
pub(crate) mod placements;
pub(crate) mod progress;
pub(crate) mod progress_stream;
pub(crate) mod put_callers_memory;
pub(crate) mod put_results;
pub(crate) mod start;
pub(crate) mod take_and_put;
