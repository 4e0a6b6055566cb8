//! The seam between transship and a device.
//!
//! A backend is mechanism only: it allocates, it copies ranges that it is told to copy, and it says how far a
//! stream has come. Every policy (what to pack, block sizes, order, pooling, when to wait, when to free) lives above,
//! once, in this crate.
//!
//! Progress is a number. Whatever is submitted to a [`BackendStream`] is followed by a *position*; positions grow
//! along the stream, and one query of [`BackendStream::reached`] settles every copy up to the answer.

pub(crate) mod backend;
pub(crate) mod copy_op;
pub(crate) mod counters;
pub(crate) mod device_memory;
pub(crate) mod driver;
pub(crate) mod elements;
pub(crate) mod host;
pub(crate) mod kernel_table;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod pci_address;
pub(crate) mod properties;
pub(crate) mod registration;
pub(crate) mod runs;
#[cfg(unix)]
pub(crate) mod shared_pool;
pub(crate) mod stream;
pub mod stream_ordered;

pub use backend::Backend;
pub use copy_op::{CopyOp, GatherTo, HostSide, ScatterFrom, Scattered, Submission};
pub use counters::{CounterCells, Counters, Moved};
pub use device_memory::DeviceMemory;
pub use driver::{BuiltinDriver, Driver};
pub use elements::Elements;
pub use kernel_table::KernelTable;
pub use limits::Limits;
pub use memory::{Buffer, Direction, MemoryKind, RawMemory, Staging, WriteWindow};
pub use pci_address::PciAddress;
pub use properties::{DeviceProperties, DeviceUuid};
pub use registration::{HostAccess, Registration};
pub use runs::{RunDim, Runs};
#[cfg(unix)]
pub use shared_pool::{ImportedPool, MemoryName, PeerMemory, SharedPool};
pub use stream::{BackendStream, StreamPriority, Ticket, TimeMark};

pub use crate::runtime::leaks::count_leak;
