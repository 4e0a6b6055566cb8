//! The layer for backends of drivers with streams, events and stream-ordered memory, such as CUDA and HIP.
//!
//! A backend crate implements [`Api`], the calls of its driver for one device, and [`OrderedBackend`] makes a
//! [`Backend`](crate::backend::Backend) of it. What such drivers have in common stands here, once: positions over a ring of
//! events, waiting, memory that is freed behind its last use, staging, foreign memory, peers, submission, counters. How a
//! call is named, which flags and codes it has and how a device is made current is the business of the crate.
//!
//! Everything is generic over the `Api`: a copy costs the calls of the driver that it needs, and no indirection.

pub(crate) mod allocator;
pub(crate) mod api;
pub(crate) mod backend;
pub(crate) mod buffer;
pub(crate) mod call_counter;
pub(crate) mod cast_entry;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod event_ring;
pub(crate) mod gather_kernel;
pub(crate) mod imported_pools;
pub(crate) mod mem_pool;
pub(crate) mod peer_access;
pub(crate) mod peers;
pub(crate) mod pinned;
pub(crate) mod places;
pub(crate) mod push;
pub(crate) mod registration;
pub(crate) mod scatter_entry;
#[cfg(unix)]
pub(crate) mod shared_pool;
pub(crate) mod stream;
pub(crate) mod strided_entry;
pub(crate) mod submit;
pub(crate) mod time_mark;

pub use crate::backend::stream_ordered::api::{Api, EventKind, GRAPHS_HOLD_NOTHING, Refusal};
pub use crate::backend::stream_ordered::backend::OrderedBackend;
pub use crate::backend::stream_ordered::buffer::OrderedBuffer;
pub use crate::backend::stream_ordered::call_counter::{CallCount, is_code};
pub use crate::backend::stream_ordered::context::{Context, Current};
pub use crate::backend::stream_ordered::gather_kernel::KERNELS;
pub use crate::backend::stream_ordered::stream::{OrderedStream, refuse_per_thread};
