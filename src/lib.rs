//! Copies whole nested structures of tensors between devices, asynchronously, at the speed of the hardware.
//!
//! ```
//! use transship::prelude::*;
//!
//! #[derive(TensorTree)]
//! struct Camera {
//!     boxes: Tensor,
//!     name: String,
//!     depth: Option<Tensor>,
//! }
//!
//! let boxes = Tensor::from_vec(vec![0.0f32; 8], &[2, 4])?;
//! let batch = vec![Camera { boxes, name: "front".into(), depth: None }];
//!
//! let device = Device::best()?;
//! let handle = transship::start_copy(batch, &device, CopyOptions::default())?; // returns at once
//! let batch: Vec<Camera> = handle.wait()?; // or .await, or wait_on(&stream)
//! assert_eq!(batch[0].boxes.device_id()?, device.id());
//! # Ok::<(), transship::Error>(())
//! ```
//!
//! Everything with a decision in it is in `transship-core`, whose items are all here; each backend is a cargo feature
//! and a module of its name. The recipes of the book, `docs/book` in the repository, begin where this example ends.

#[doc(inline)]
pub use transship_core::{
    Alignment, Allocate, AllocatedMemory, BackgroundWork, Cancelled, Cast, ChunkMemory, CopyError,
    CopyHandle, CopyOptions, CopyPolicy, CopyProgress, CopyReport, DType, Device, DeviceId, DeviceMemory,
    DeviceProperties, DeviceUuid, DriverInfo, Element, Error, ErrorKind, Event, InFlight, IntoTensors, Key,
    Layout, Lent, MAX_DEPTH, Manifest, ManifestLeaf, MemoryInfo, MemoryKind, Nested, OtherKey, Pairs,
    ParseDTypeError, ParseDeviceIdError, Paths, PciAddress, PendingCopy, Placement, Placements, PoolUsage,
    Prefetch, PrefetchError, PrefetchOptions, PrefetchStats, PrefetchStream, Prefetched, PrefetchedStream,
    PrefetchedStreamToAll, PrefetchedToAll, PreparedPut, ProgressStream, RawMemory, Refused, Registered,
    RepeatedPacking, RepeatedPut, Result, Reused, RuntimeStats, Scope, SharedMemory, SharedOwner, Step, Stop,
    Stream, StreamPriority, Strides, Tensor, TensorItem, TensorPath, TensorTree, TimedWait, Timeline, Value,
    Visitor, backend, drivers, fill, for_each_path, for_each_tensor, register_driver, runtime_stats,
    start_copy, start_copy_into, start_copy_to_all,
};
#[doc(hidden)]
pub use transship_core::{ForkCount, plan};

#[cfg(feature = "derive")]
pub use transship_derive::{IntoTensors, TensorTree};

#[cfg(feature = "dlpack")]
pub use transship_core::dlpack;

#[cfg(feature = "cuda")]
pub use transship_cuda as cuda;
#[cfg(feature = "hip")]
pub use transship_hip as hip;

#[cfg(feature = "ipc")]
pub use transship_ipc as ipc;

#[cfg(feature = "safetensors")]
pub use transship_safetensors as safetensors;

#[cfg(feature = "wgpu")]
pub use transship_wgpu as wgpu;

pub mod prelude {
    //! What most programs need, but for `Value` and `Stream`: other crates have those names as well.

    pub use crate::{
        BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyPolicy, DType, Device, DeviceId, IntoTensors,
        PendingCopy, Tensor, TensorTree, TimedWait, start_copy, start_copy_into, start_copy_to_all,
    };
}

/// The examples of the README and of the book, run as tests. A page that is not named here is not tested.
#[cfg(all(doctest, feature = "derive"))]
mod book {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/book/structures.md")]
    struct Structures;

    #[cfg(feature = "ndarray")]
    #[doc = include_str!("../docs/book/arrays.md")]
    struct Arrays;

    #[doc = include_str!("../docs/book/waiting.md")]
    struct Waiting;

    #[doc = include_str!("../docs/book/prefetch.md")]
    struct Prefetch;

    #[doc = include_str!("../docs/book/tokio.md")]
    struct Tokio;

    #[doc = include_str!("../docs/book/memory.md")]
    struct Memory;

    #[doc = include_str!("../docs/book/casts.md")]
    struct Casts;

    #[doc = include_str!("../docs/book/files.md")]
    struct Files;

    #[doc = include_str!("../docs/book/dlpack.md")]
    struct Dlpack;

    #[cfg(all(feature = "ipc", target_os = "linux"))]
    #[doc = include_str!("../docs/book/processes.md")]
    struct Processes;

    #[doc = include_str!("../docs/book/streams.md")]
    struct Streams;

    #[doc = include_str!("../docs/book/devices.md")]
    struct Devices;

    #[doc = include_str!("../docs/book/errors.md")]
    struct Errors;

    #[doc = include_str!("../docs/book/measuring.md")]
    struct Measuring;

    #[doc = include_str!("../docs/book/observe.md")]
    struct Observe;

    #[doc = include_str!("../docs/book/command.md")]
    struct Command;

    #[doc = include_str!("../docs/book/hip.md")]
    struct Hip;
}
