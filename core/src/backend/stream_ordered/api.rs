//! What a driver offers for one device.
#![expect(
    clippy::missing_safety_doc,
    reason = "what the calls ask of their callers stands once, at the trait"
)]

use std::ffi::{CStr, c_void};
#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::alignment::Alignment;
#[cfg(unix)]
use crate::backend::shared_pool::{MemoryName, SHARES_NO_MEMORY};
use crate::backend::{DeviceMemory, DeviceProperties, HostAccess, MemoryKind, StreamPriority};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// The calls of a driver for one device, which the object holds open. None of them waits for a device, except those called
/// `synchronize` and, for host memory that is not pinned, copies.
///
/// # Safety
///
/// An implementation promises:
///
/// 1. Each call does what is written here, to this device, and handles may be used by every thread.
/// 2. [`query_event`](Api::query_event) answers `true` only if everything submitted to the stream before the event is done.
/// 3. Memory that a call has allocated is given to nobody else until it is freed; what is freed on a stream, until that
///    stream has come there.
///
/// Callers of its unsafe functions promise:
///
/// 1. The device is current: the call is made through [`Current`](crate::backend::stream_ordered::context::Current).
/// 2. Handles and addresses are those that this device, or where `peer` says so that one, has created and not destroyed.
/// 3. Ranges are valid, and copied ranges stay so until the stream has come by.
pub unsafe trait Api: Send + Sync + Sized + 'static {
    /// Keeps the device current, and the caller's capture of streams undisturbed, until it is dropped.
    type Guard<'a>;
    /// A stream of the driver.
    type Stream: Copy + PartialEq + 'static;
    /// An event of the driver.
    type Event: Copy + 'static;
    /// A pool of the driver.
    type Pool: Copy + 'static;
    /// Compiled kernels.
    type Module: Copy + 'static;
    /// A kernel of a module.
    type Kernel: Copy + 'static;
    /// What the crate keeps beside the device; it may hold streams, which hold the device.
    type Attached: Default + Send + Sync + 'static;

    /// What device memory is aligned to at the least.
    const BUFFER_ALIGNMENT: Alignment;
    /// Pages of our own that are registered are as good for copies as memory that the driver allocates.
    const REGISTERS_OWN_PAGES: bool;

    /// The name of the device.
    fn id(&self) -> DeviceId;

    /// Whether the other one is the same device, with the same handles.
    fn is_same(&self, other: &Self) -> bool;

    /// How many calls of the driver there were.
    fn call_count(&self) -> u64;

    /// Whether that is what the driver says when memory runs out.
    fn is_out_of_memory(&self, error: &Error) -> bool;

    /// What it means that [`register_host`](Api::register_host) has come to this error; `None` if the memory is not the reason.
    fn refusal(&self, error: &Error) -> Option<Refusal>;

    /// Makes the device current for this thread.
    fn enter(&self) -> Result<Self::Guard<'_>>;

    /// What the device is. It need not be current.
    fn properties(&self) -> Result<DeviceProperties> {
        Err(Error::Unsupported { device: self.id(), what: "tell its properties" })
    }

    /// The hardware and the driver in their own words.
    unsafe fn description(&self) -> Result<String>;

    /// Bytes of the device.
    unsafe fn total_memory(&self) -> Result<usize>;

    /// Bytes that are free, and all there are.
    unsafe fn memory_info(&self) -> Result<(usize, usize)>;

    /// Blocks until everything submitted to the device is done.
    unsafe fn synchronize(&self) -> Result<()>;

    /// Whether the hardware lets this device read and write memory of `peer`.
    unsafe fn can_access(&self, peer: &Self) -> Result<bool>;

    /// Lets this device do so; once is enough, and again is no error.
    unsafe fn enable_access(&self, peer: &Self) -> Result<()>;

    /// Creates a stream that does not order itself against the default stream.
    unsafe fn create_stream(&self, priority: StreamPriority) -> Result<Self::Stream>;

    /// Destroys a stream of [`create_stream`](Api::create_stream); the driver finishes what was submitted.
    unsafe fn destroy_stream(&self, stream: Self::Stream) -> Result<()>;

    /// Blocks until everything submitted to the stream is done.
    unsafe fn synchronize_stream(&self, stream: Self::Stream) -> Result<()>;

    /// Whether somebody captures the stream into a graph.
    unsafe fn is_capturing(&self, stream: Self::Stream) -> Result<bool>;

    /// Creates an object of the driver that calls `end` with `share` when its last reference goes, on whichever thread. One reference
    /// is the caller's.
    unsafe fn create_share(
        &self,
        _share: *mut c_void,
        _end: unsafe extern "C" fn(*mut c_void),
    ) -> Result<NonNull<c_void>> {
        Err(Error::Unsupported { device: self.id(), what: GRAPHS_HOLD_NOTHING })
    }

    /// Gives that reference to the graph into which the stream is being captured. The driver keeps one for all that is made of the graph, and
    /// for each launch that runs. Nobody ends the capture meanwhile.
    unsafe fn move_share(&self, _object: NonNull<c_void>, _stream: Self::Stream) -> Result<()> {
        Err(Error::Unsupported { device: self.id(), what: GRAPHS_HOLD_NOTHING })
    }

    /// Gives that reference up.
    unsafe fn release_share(&self, _object: NonNull<c_void>) -> Result<()> {
        Err(Error::Unsupported { device: self.id(), what: GRAPHS_HOLD_NOTHING })
    }

    /// Makes later work of the stream wait for the last record of the event, which may be one of a peer.
    unsafe fn wait_event(&self, stream: Self::Stream, event: Self::Event) -> Result<()>;

    /// Creates an event.
    unsafe fn create_event(&self, kind: EventKind) -> Result<Self::Event>;

    /// Destroys an event; the driver keeps what still waits for it.
    unsafe fn destroy_event(&self, event: Self::Event) -> Result<()>;

    /// Puts the event behind everything submitted to the stream.
    unsafe fn record_event(&self, event: Self::Event, stream: Self::Stream) -> Result<()>;

    /// Whether the work before the event is done. Only "not ready" means no: anything else is the device's error.
    unsafe fn query_event(&self, event: Self::Event) -> Result<bool>;

    /// Microseconds between two timing events; `None` if one of them is not reached.
    unsafe fn elapsed(&self, start: Self::Event, end: Self::Event) -> Result<Option<f64>>;

    /// Whether the device has pools of memory that is allocated and freed in stream order.
    unsafe fn has_pools(&self) -> Result<bool>;

    /// Creates a pool on a device that has pools.
    unsafe fn create_pool(&self) -> Result<Self::Pool>;

    /// Destroys a pool. The driver keeps what is not freed yet until it is.
    unsafe fn destroy_pool(&self, pool: Self::Pool) -> Result<()>;

    /// Makes the pool keep memory that is freed.
    unsafe fn keep_all(&self, pool: Self::Pool) -> Result<()>;

    /// Bytes that the pool holds, idle ones included.
    unsafe fn pool_reserved(&self, pool: Self::Pool) -> Result<u64>;

    /// What the pool holds and what of it is in use, with their peaks. `free` and `total` are left open.
    unsafe fn pool_memory(&self, pool: Self::Pool) -> Result<DeviceMemory> {
        // SAFETY: the caller's promises.
        let reserved = unsafe { self.pool_reserved(pool)? };
        Ok(DeviceMemory { reserved: Some(reserved), ..DeviceMemory::default() })
    }

    /// Lets both peaks of the pool begin anew.
    unsafe fn reset_pool_peaks(&self, _pool: Self::Pool) -> Result<()> {
        Err(Error::Unsupported { device: self.id(), what: "reset peaks of its memory" })
    }

    /// Makes the pool give its idle memory back.
    unsafe fn trim_pool(&self, pool: Self::Pool) -> Result<()>;

    /// Whether this device reads and writes memory of `owner`, a device that it was [let](Self::enable_access) access.
    unsafe fn reaches_memory(&self, _address: u64, _owner: &Self) -> Result<bool> {
        Ok(false)
    }

    /// Lets `peer` read and write all memory of the pool.
    unsafe fn open_pool(&self, pool: Self::Pool, peer: &Self) -> Result<()>;

    /// Creates a pool whose memory another process may import, on a device that has such pools.
    #[cfg(unix)]
    unsafe fn create_shared_pool(&self) -> Result<Self::Pool> {
        Err(Error::Unsupported { device: self.id(), what: SHARES_NO_MEMORY })
    }

    /// What another process imports such a pool by.
    #[cfg(unix)]
    unsafe fn export_pool(&self, _pool: Self::Pool) -> Result<OwnedFd> {
        Err(Error::Unsupported { device: self.id(), what: SHARES_NO_MEMORY })
    }

    /// The handle of a pool, as a number.
    #[cfg(unix)]
    fn number_of_pool(pool: Self::Pool) -> u64;

    /// A pool of another process. It allocates nothing.
    #[cfg(unix)]
    unsafe fn import_pool(&self, _descriptor: BorrowedFd<'_>) -> Result<Self::Pool> {
        Err(Error::Unsupported { device: self.id(), what: SHARES_NO_MEMORY })
    }

    /// The name of memory of such a pool, by its first byte.
    #[cfg(unix)]
    unsafe fn export_pooled(&self, _address: u64) -> Result<MemoryName> {
        Err(Error::Unsupported { device: self.id(), what: SHARES_NO_MEMORY })
    }

    /// Memory of a pool that was imported. Any name may be asked for.
    #[cfg(unix)]
    unsafe fn import_pooled(&self, _pool: Self::Pool, _name: &MemoryName) -> Result<u64> {
        Err(Error::Unsupported { device: self.id(), what: SHARES_NO_MEMORY })
    }

    /// Allocates from the pool, in stream order.
    unsafe fn allocate_pooled(&self, bytes: usize, pool: Self::Pool, stream: Self::Stream) -> Result<u64>;

    /// Frees memory of a pool, in stream order; or gives up what was imported.
    unsafe fn free_pooled(&self, address: u64, stream: Self::Stream) -> Result<()>;

    /// Allocates device memory without a pool.
    unsafe fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees it; the driver may wait for the device.
    unsafe fn free(&self, address: u64) -> Result<()>;

    /// Allocates page-locked host memory for copies in both directions, by any device of the driver.
    unsafe fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>>;

    /// Frees it.
    unsafe fn free_host(&self, start: NonNull<u8>) -> Result<()>;

    /// Page-locks memory of the process in place, for copies by any device of the driver.
    unsafe fn register_host(&self, start: NonNull<u8>, bytes: usize, access: HostAccess) -> Result<()>;

    /// Whether kernels reach what is registered at `start` by the address that it has on the host.
    unsafe fn kernels_reach_registered(&self, start: NonNull<u8>) -> Result<bool>;

    /// Ends what [`register_host`](Api::register_host) has begun.
    unsafe fn unregister_host(&self, start: NonNull<u8>) -> Result<()>;

    /// What memory the driver takes the byte at this address for, and of [`Device`](MemoryKind::Device) memory the ordinal of its device. The address may be any number; `None` of memory that the driver does not know.
    unsafe fn memory_at(&self, address: u64) -> Result<Option<(MemoryKind, usize)>>;

    /// Where the allocation begins that the byte at this address of device memory lies in, and how many bytes it has.
    unsafe fn allocation_of(&self, _address: u64) -> Result<(u64, usize)> {
        Err(Error::Unsupported { device: self.id(), what: "tell the bounds of allocations" })
    }

    /// Host to device.
    unsafe fn copy_up(&self, to: u64, from: NonNull<u8>, bytes: usize, stream: Self::Stream) -> Result<()>;

    /// Device to host.
    unsafe fn copy_down(&self, to: NonNull<u8>, from: u64, bytes: usize, stream: Self::Stream) -> Result<()>;

    /// Within the device.
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Self::Stream) -> Result<()>;

    /// From a peer to this device, on a stream of this one.
    unsafe fn copy_from_peer(
        &self,
        to: u64,
        peer: &Self,
        from: u64,
        bytes: usize,
        stream: Self::Stream,
    ) -> Result<()>;

    /// Compiles and loads the kernels: [`KERNELS`](super::KERNELS), or what a compiler has made of them. `None` where the device or
    /// the driver cannot, or host memory has another address on the device.
    unsafe fn load_kernels(&self) -> Result<Option<Self::Module>>;

    /// Finds a kernel by its name.
    unsafe fn kernel(&self, module: Self::Module, name: &CStr) -> Result<Self::Kernel>;

    /// Runs a kernel in so many blocks of so many threads. `arguments` has the address of each argument, which the driver copies
    /// within the call.
    unsafe fn launch(
        &self,
        kernel: Self::Kernel,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
        stream: Self::Stream,
    ) -> Result<()>;

    /// Unloads a module, of which no kernel runs.
    unsafe fn unload_kernels(&self, module: Self::Module) -> Result<()>;

    /// Zeros.
    unsafe fn clear(&self, to: u64, bytes: usize, stream: Self::Stream) -> Result<()>;
}

/// What a driver cannot that is too old for [`create_share`](Api::create_share).
pub const GRAPHS_HOLD_NOTHING: &str = "have graphs hold what their copies use: its driver is too old";

/// Why a driver does not page-lock memory of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Some of it is page-locked already.
    IsRegistered,
    /// No memory is left that may be locked.
    OutOfMemory,
    /// The system does not lock memory of this kind.
    NotLockable,
}

/// What an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It only says whether it was reached. No thread can sleep in the driver until then: an event of that kind interrupts a
    /// processor whenever it is reached, and whoever runs there loses 35 us (CUDA, H200).
    Plain,
    /// It has a time stamp.
    Timing,
}
