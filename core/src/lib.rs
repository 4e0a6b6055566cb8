//! The core of transship: everything with a decision in it, and no GPU crate below it.
//!
//! Programs use the crate `transship`; backends are written against [`backend`]. The way of a datum is the order of the
//! modules: [`TensorTree`] finds the tensors of a structure, a plan says where each goes, staging blocks come out of
//! a pool, copies go to the backend in few calls, and what they use is owned by a queue until the device is done with it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod backend;
#[cfg(feature = "dlpack")]
pub mod dlpack;
pub mod fill;
// For tests, benches and fuzzing.
#[doc(hidden)]
pub mod plan;

mod alignment;
mod cast;
mod convert;
mod copy;
mod device;
mod device_id;
mod dtype;
mod element;
mod error;
mod in_flight;
mod job;
mod manifest;
mod prefetch;
#[cfg(not(shuttle))]
mod runtime;
// For simulated devices, whose locks must be those of the model as well.
#[cfg(shuttle)]
#[doc(hidden)]
pub mod runtime;
mod staging;
mod tensor;
mod timeline;
mod transfer;
mod tree;

pub use crate::alignment::Alignment;
pub use crate::backend::{
    DeviceMemory, DeviceProperties, DeviceUuid, MemoryKind, PciAddress, RawMemory, StreamPriority,
};
pub use crate::cast::Cast;
pub use crate::copy::broadcast::start_copy_to_all;
pub use crate::copy::future::PendingCopy;
pub use crate::copy::handle::{Cancelled, CopyHandle, TimedWait};
pub use crate::copy::into::start_copy_into;
pub use crate::copy::placements::{ChunkMemory, Placement, Placements};
pub use crate::copy::progress::CopyProgress;
pub use crate::copy::progress_stream::ProgressStream;
pub use crate::copy::start::start_copy;
pub use crate::device::current::Scope;
pub use crate::device::device::Device;
pub use crate::device::drivers::{DriverInfo, drivers, register_driver};
pub use crate::device::stream::{Event, Stream};
pub use crate::device_id::{DeviceId, ParseDeviceIdError};
pub use crate::dtype::{DType, ParseDTypeError};
pub use crate::element::Element;
pub use crate::error::{CopyError, Error, ErrorKind, Refused, Result};
pub use crate::in_flight::after_cancel::InFlight;
pub use crate::job::allocator::{Allocate, AllocatedMemory};
pub use crate::job::options::{BackgroundWork, CopyOptions, CopyPolicy};
pub use crate::job::report::CopyReport;
pub use crate::manifest::leaf::ManifestLeaf;
pub use crate::manifest::manifest::Manifest;
pub use crate::manifest::repeated_packing::RepeatedPacking;
pub use crate::manifest::repeated_put::{PreparedPut, RepeatedPut};
pub use crate::prefetch::error::PrefetchError;
pub use crate::prefetch::iterator::{Prefetch, Prefetched, PrefetchedToAll};
pub use crate::prefetch::lent::Lent;
pub use crate::prefetch::options::PrefetchOptions;
pub use crate::prefetch::reuse::Reused;
pub use crate::prefetch::stats::PrefetchStats;
pub use crate::prefetch::stream::{PrefetchStream, PrefetchedStream, PrefetchedStreamToAll};
// For the crate of processes, whose connections are no child's.
#[doc(hidden)]
pub use crate::runtime::fork::ForkCount;
pub use crate::runtime::stats::{RuntimeStats, runtime_stats};
// For the crate of files, whose spans are entered as those of copies are.
#[doc(hidden)]
pub use crate::runtime::trace;
pub use crate::staging::block_accounts::PoolUsage;
pub use crate::tensor::layout::Layout;
pub use crate::tensor::registered::Registered;
pub use crate::tensor::shared_owner::{SharedMemory, SharedOwner};
pub use crate::tensor::strides::Strides;
pub use crate::tensor::tensor::{MemoryInfo, Tensor};
pub use crate::timeline::timeline::Timeline;
pub use crate::tree::into_tensors::{IntoTensors, TensorItem};
pub use crate::tree::pair::Pairs;
pub use crate::tree::paths::{Paths, TensorPath, for_each_path};
pub use crate::tree::step::Step;
pub use crate::tree::tensor_tree::{MAX_DEPTH, Stop, TensorTree, Visitor, for_each_tensor};
pub use crate::tree::value::Value;
pub use crate::tree::value_key::{Key, OtherKey};
pub use crate::tree::value_nested::Nested;
