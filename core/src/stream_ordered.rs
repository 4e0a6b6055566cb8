//! The layer for backends of drivers with streams, events and stream-ordered memory, such as CUDA and HIP.
//!
//! A backend crate implements [`Api`], the calls of its driver for one device, and [`OrderedBackend`] makes a
//! [`Backend`](crate::backend::Backend) of it. What such drivers have in common stands here, once: positions over a ring of
//! events, waiting, memory that is freed behind its last use, staging, foreign memory, peers, submission, counters. How a
//! call is named, which flags and codes it has and how a device is made current is the business of the crate.
//!
//! Everything is generic over the `Api`: a copy costs the calls of the driver that it needs, and no indirection.

mod api;
mod calls;
mod context;
mod copy;
mod counters;
mod device;
mod elements;
mod event;
mod gather;
mod heap;
mod mark;
mod memory;
mod pool;
mod ring;
mod staging;
mod stream;

pub use api::{Api, EventKind};
pub use calls::{CallCount, is_code};
pub use context::{Context, Current};
pub use device::OrderedBackend;
pub use elements::address_of;
pub use gather::GatherEntry;
pub use memory::OrderedBuffer;
pub use stream::{OrderedStream, refuse_per_thread};
