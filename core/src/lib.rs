//! The core of transship: everything with a decision in it, and no GPU crate below it.
//!
//! Programs use the crate `transship`; backends are written against [`backend`]. The way of a datum is the order of the
//! modules: [`TensorTree`] finds the tensors of a structure, [`plan`] decides where each goes, staging blocks come out of
//! a pool, copies go to the backend in few calls, and what they use is owned by a queue until the device is done with it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod backend;
pub mod plan;
pub mod stream_ordered;

mod alignment;
mod copy;
mod counted;
mod device;
mod device_id;
mod dtype;
mod element;
mod error;
mod exit;
mod foreign;
mod fork;
mod gather;
mod host;
mod host_memory;
mod in_flight;
mod lanes;
mod layout;
mod limits;
mod naps;
mod options;
mod pool;
mod reactor;
mod registry;
mod room;
mod statistics;
mod storage;
mod stream;
#[cfg(not(shuttle))]
mod sync;
// For simulated devices, whose locks must be those of the model as well.
#[cfg(shuttle)]
#[doc(hidden)]
pub mod sync;
mod tensor;
mod threads;
mod tree;
mod uses;
mod workers;
mod writer;

pub use alignment::Alignment;
pub use backend::{MemoryKind, RawMemory, StreamPriority};
pub use copy::{
    Cancelled, CopyHandle, CopyReport, InFlight, PendingCopy, TimedWait, start_copy, start_copy_into,
    start_copy_to_all,
};
pub use device::Device;
pub use device_id::DeviceId;
pub use dtype::DType;
pub use element::Element;
pub use error::{CopyError, Error, Result};
pub use layout::Layout;
pub use options::{BackgroundWork, CopyOptions, CopyPolicy};
pub use pool::PoolStatistics;
pub use registry::{DriverInfo, drivers, register_driver};
pub use statistics::{Statistics, statistics};
pub use stream::{Event, Scope, Stream};
pub use tensor::{MemoryInfo, Tensor};
pub use tree::{
    Key, MAX_DEPTH, Nested, OtherKey, Pairs, Step, Stop, TensorTree, Value, Visitor, for_each_tensor,
};
