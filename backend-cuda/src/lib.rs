//! The CUDA backend of transship: mechanism only, on the driver functions that `cudarc` binds.
//!
//! libcuda is loaded at run time; without it every question gets an answer and nothing panics. Programs use
//! the crate `transship`, which has the functions below as `transship::cuda`:
//!
//! - [`stream_from_cudarc`], [`stream_from_raw`], [`cu_stream`]: streams, in both directions;
//! - [`cuda_view`]: a tensor as an argument of a kernel;
//! - [`tensor_from_cuda_slice`]: memory of cudarc's as a tensor, without a copy;
//! - [`device_ptr`]: a bare address, for those who order their work themselves.
//!
//! A program that depends on this crate itself, and not through the feature of `transship`, must name it somewhere, if only by
//! `use transship_cuda as _;`: the linker leaves out what nothing names, and there would be no driver.

mod api;
mod calls;
mod device;
mod driver;
mod graphs;
mod guard;
mod interop;
mod kernels;
mod library;
mod pool_properties;
mod properties;
#[cfg(unix)]
mod shared_pools;
mod view;

use transship_core::backend::stream_ordered::{OrderedBackend, OrderedBuffer, OrderedStream};

pub use cudarc;
pub use device::Cuda;
pub use driver::CudaDriver;
pub use guard::ContextGuard;
pub use interop::{
    Adopted, cu_stream, device_ptr, stream_from_cudarc, stream_from_raw, tensor_from_cuda_slice,
};
pub use view::{CudaTensorView, cuda_view};

/// A CUDA device behind the seam.
pub type CudaBackend = OrderedBackend<Cuda>;
/// A stream of a CUDA device behind the seam.
pub type CudaStream = OrderedStream<Cuda>;
/// Memory that a CUDA device can use, behind the seam.
pub type CudaBuffer = OrderedBuffer<Cuda>;
