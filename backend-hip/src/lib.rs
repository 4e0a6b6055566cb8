//! The HIP backend of transship: mechanism only, on AMD's HIP runtime.
//!
//! libamdhip64 is loaded at run time, and nothing is linked; without it every question gets an answer and nothing panics.
//! Programs use the crate `transship`, which has the functions below as `transship::hip`:
//!
//! - [`stream_from_raw`], [`hip_stream`]: streams, in both directions;
//! - [`hip_view`]: a tensor as an argument of a kernel;
//! - [`device_ptr`]: a bare address, for those who order their work themselves.
//!
//! A program that depends on this crate itself, and not through the feature of `transship`, must name it somewhere, if only by
//! `use transship_hip as _;`: the linker leaves out what nothing names, and there would be no driver.

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
mod rtc;
mod view;

use transship_core::backend::stream_ordered::{OrderedBackend, OrderedBuffer, OrderedStream};

pub use device::Hip;
pub use driver::HipDriver;
pub use guard::DeviceGuard;
pub use hip_sys;
pub use interop::{device_ptr, hip_stream, stream_from_raw};
pub use view::{HipTensorView, hip_view};

/// A HIP device behind the seam.
pub type HipBackend = OrderedBackend<Hip>;
/// A stream of a HIP device behind the seam.
pub type HipStream = OrderedStream<Hip>;
/// Memory that a HIP device can use, behind the seam.
pub type HipBuffer = OrderedBuffer<Hip>;
