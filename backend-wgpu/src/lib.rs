//! The wgpu backend of transship: Vulkan, Metal, DX12 and GL through `wgpu`; mechanism only.
//!
//! Programs use the crate `transship`, which has the functions below as `transship::wgpu`:
//!
//! - [`adapters`], [`find`]: what `wgpu:N` stands for;
//! - [`from_device`]: copies into the program's own `wgpu::Device`; [`wgpu_device`]: the other way round;
//! - [`wgpu_view`]: a tensor as a buffer, an offset and a size, or as a binding;
//! - [`wrap_buffer`]: the program's own buffer as a tensor, without a copy; [`lend_buffer`]: one whose memory somebody keeps;
//! - [`from_device_with`]: tensors in memory of another library that works on the same device.
//!
//! A `wgpu::Device` has one queue, and all streams of it are that queue: what is submitted first comes first, the
//! program's own submissions included. Work that reads a tensor may be submitted as soon as [`wgpu_view`] has returned,
//! and sees what the copy has written.
//!
//! Buffers of 1 MiB and more are made up to an eighth larger, and kept for the next tensor of about that size once nobody
//! uses them: at most 1 GiB of them, and with those in use at most twice what was ever in use at once. `Device::trim` gives
//! them back. A buffer that [`wgpu_view`] has shown is never used again for another tensor, since the program may hold it.
//!
//! Many small downloads in one copy are gathered by a compute kernel, where the device has bindings enough for it: at least 14 storage
//! buffers a stage, or better `BUFFER_BINDING_ARRAY`, `STORAGE_RESOURCE_BINDING_ARRAY` and `PARTIALLY_BOUND_BINDING_ARRAY`, which
//! devices that this crate opens have where the adapter does.
//!
//! Tensors with gaps are copied without them, and elements are cast, by another one, where the device has three storage buffers a stage: down to the
//! host and within the device. So is what gets larger by a cast on the way up. What is larger than a binding, or lies in more memory, is copied with its gaps
//! (`Limits::largest_strided`). A third one writes many short runs of elements to where tensors of the program have gaps.
//!
//! Both are made when the device is opened. On processors and with GL they do not pay, and are left out. The environment variable
//! `TRANSSHIP_WGPU_GATHER` says `always` or `never` instead, for tests and measurements; it is read when a device is opened.
//!
//! A program that depends on this crate itself, and not through the feature of `transship`, must name it somewhere, if only by
//! `use transship_wgpu as _;`: the linker leaves out what nothing names, and there would be no driver.

mod adapters;
mod bound;
mod context;
mod copy;
mod counters;
mod device;
mod driver;
mod gather;
mod gather_kernel;
mod host_written;
mod interop;
mod kernels;
mod memory;
mod recycled;
mod scopes;
mod source;
mod staging;
mod stream;
mod strided_copies;
mod strided_entry;
mod strided_kernel;
mod strided_rounds;
mod timeline;
mod view;
mod workspace;

pub use adapters::{AdapterDescription, adapters, find};
pub use device::WgpuBackend;
pub use driver::WgpuDriver;
pub use interop::{from_device, from_device_with, lend_buffer, wgpu_device, wrap_buffer};
pub use memory::WgpuBuffer;
pub use source::{BufferSource, OwnedBuffer};
pub use stream::WgpuStream;
pub use view::{WgpuSlice, wgpu_view};
pub use wgpu;
