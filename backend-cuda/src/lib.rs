//! The CUDA backend of transship: mechanism only, on the driver functions that `cudarc` binds.
//!
//! libcuda is loaded at run time; without it every question gets an answer and nothing panics. Programs use
//! the crate `transship`, which has the functions below as `transship::cuda`:
//!
//! - [`stream_from_cudarc`], [`stream_from_raw`], [`cu_stream`]: streams, in both directions;
//! - [`cuda_view`]: a tensor as an argument of a kernel;
//! - [`tensor_from_cuda_slice`]: memory of cudarc's as a tensor, without a copy;
//! - [`device_ptr`]: a bare address, for those who order their work themselves.

mod calls;
mod context;
mod copy;
mod counters;
mod device;
mod driver;
mod event;
mod heap;
mod interop;
mod library;
mod mark;
mod memory;
mod pool;
mod ring;
mod staging;
mod stream;
mod view;

pub use cudarc;
pub use device::CudaBackend;
pub use driver::CudaDriver;
pub use interop::{cu_stream, device_ptr, stream_from_cudarc, stream_from_raw, tensor_from_cuda_slice};
pub use memory::CudaBuffer;
pub use stream::CudaStream;
pub use view::{CudaTensorView, cuda_view};
