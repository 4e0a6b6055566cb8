//! What a device does for the rest of the crate, and what it promises.

use std::any::Any;
use std::ops::Range;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(unix)]
use crate::backend::shared_pool::{ImportedPool, SHARES_NO_MEMORY, SharedPool};
use crate::backend::{
    BackendStream, Buffer, CopyOp, Counters, DeviceMemory, DeviceProperties, Direction, HostAccess,
    KernelTable, Limits, RawMemory, Registration, Staging, StreamPriority, Submission,
};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// One device, initialised.
///
/// # Safety
///
/// The rest of this crate relies on these, word for word:
///
/// 1. A position that [`BackendStream::reached`] has reported, or for which [`BackendStream::wait`] has returned
///    `true`, means that no copy submitted to that stream at or before that position touches memory any more.
/// 2. A [`submit`](Backend::submit) that returns an error has already waited for what it had managed to submit.
/// 3. The pointers of [`Buffer::host_pointer`], [`Staging::window`] and [`Staging::contents`] stay valid and in place
///    until the object is dropped or released, those of [`Buffer::window`] until it is closed as well, and no other live
///    object covers the same bytes.
/// 4. Where [`Buffer::release_after`] says that a buffer may be dropped at once, its memory is not handed out again before
///    every ticket given to that is reached, unless the host cannot reach it and the device orders every later use behind them.
/// 5. No function blocks until a device has made progress, except those that say so.
///
/// A function that panics breaks none of these. A panic of [`BackendStream::reached`] or [`BackendStream::wait`] counts as an error of the device: what may be in flight is
/// leaked, and the copies end with [`Error::Panicked`]. Where a worker calls, the copy ends with that too; where the program's thread does, as in
/// [`start_copy`](crate::start_copy), the panic goes on to the program.
pub unsafe trait Backend: Any + Send + Sync {
    /// The name of the device.
    fn device(&self) -> DeviceId;

    /// The hardware and the driver in their own words, e.g. `NVIDIA H200, driver 13.0`.
    fn description(&self) -> &str;

    /// What the device demands of a plan.
    fn limits(&self) -> &Limits;

    /// What was asked of the driver so far.
    fn counters(&self) -> Counters;

    /// What the device is. On machines with several NUMA nodes this is asked when the device is opened, for
    /// [`host_node`](DeviceProperties::host_node).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a backend says that does not implement this, and what the driver says.
    fn properties(&self) -> Result<DeviceProperties> {
        Err(Error::Unsupported { device: self.device(), what: "tell its properties" })
    }

    /// How much memory the device has, and how much of it is held and used. Waits for no device.
    ///
    /// # Errors
    ///
    /// As [`properties`](Backend::properties).
    fn memory(&self) -> Result<DeviceMemory> {
        Err(Error::Unsupported { device: self.device(), what: "tell how much memory it has" })
    }

    /// The peaks of [`memory`](Backend::memory) are from now on those since this call.
    ///
    /// # Errors
    ///
    /// As [`properties`](Backend::properties).
    fn reset_memory_peaks(&self) -> Result<()> {
        Err(Error::Unsupported { device: self.device(), what: "reset peaks of its memory" })
    }

    /// Creates a stream that does not order itself against any other.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn create_stream(&self, priority: StreamPriority) -> Result<Arc<dyn BackendStream>>;

    /// Allocates device memory (uninitialised), usable in stream order on `stream`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] or [`Error::TooLarge`], with the figures.
    fn allocate(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>>;

    /// As [`allocate`](Backend::allocate), but the host writes the memory first, where it lies: [`Buffer::window`] until
    /// [`Buffer::close`]; then every stream may use it. Core asks for up to [`Limits::largest_open`] bytes. What there is no
    /// room for in memory that the host reaches is ordinary memory, without a window.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Backend::allocate).
    fn allocate_open(&self, bytes: usize, stream: &dyn BackendStream) -> Result<Box<dyn Buffer>> {
        self.allocate(bytes, stream)
    }

    /// Allocates device memory (uninitialised) that is one allocation of the driver's own and no part of a pool, for what is registered once and kept: engines
    /// and other processes cannot share memory of a pool, or do so slowly. Every stream may use it at once, and no budget counts it. Expensive; here and when it is dropped, the
    /// driver may wait for the device.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a backend says that does not implement this; as [`allocate`](Backend::allocate).
    fn allocate_alone(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        let _ = bytes;
        Err(Error::Unsupported { device: self.device(), what: "allocate memory outside of its pool" })
    }

    /// Allocates a staging block that copies of this device may use asynchronously (pinned, where the device knows that): in
    /// this direction only, where staging is mapped ([`Limits::mapped_staging`]). Elsewhere in both directions, and `Download` says that
    /// copies alone use it: it may be slower for kernels. Expensive; it may block for milliseconds. So may dropping it.
    ///
    /// Memory that this gets from the system on the thread of the call is that of the device's NUMA node, where there are several.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] or [`Error::TooLarge`], with the figures.
    fn allocate_staging(&self, bytes: usize, direction: Direction) -> Result<Box<dyn Staging>>;

    /// Describes memory that somebody else allocated.
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads by this device (and by the host where its kind says so) until `owner` is
    /// dropped, and nobody may write to it while a tensor over it exists, except in stream order of a use that the
    /// tensor knows of. Bytes that no tensor is over are not used, and promise nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMemory`] where the driver knows that the description is wrong.
    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>>;

    /// The addresses of the allocation that this byte of the device's memory lies in, all of which is memory of the same kind of this device.
    /// `None` where the driver does not say.
    fn allocation_of(&self, address: u64) -> Option<Range<u64>> {
        let _ = address;
        None
    }

    /// Whether memory has addresses, by which [`wrap`](Backend::wrap) describes it. Where it has none, `wrap` refuses what the program describes.
    fn takes_addresses(&self) -> bool {
        true
    }

    /// Page-locks memory of the program where it lies, so that copies of every device of this driver use it as they use staging,
    /// through [`HostSide::Buffer`](crate::backend::HostSide::Buffer). `bytes` is not 0; `start` need not be aligned. May block for milliseconds.
    ///
    /// # Safety
    ///
    /// The range is memory of the process, and stays where it is, until the registration has [ended](Registration::end).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a backend says that does not implement this; [`Error::NotLockable`];
    /// [`Error::OutOfMemory`]; what else the driver says. Nothing is locked then.
    unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        access: HostAccess,
    ) -> Result<Box<dyn Registration>> {
        let _ = (start, bytes, access);
        let what = "page-lock memory of the program where it lies; use it as it is (Tensor::from_owner, Tensor::from_vec)";
        Err(Error::Unsupported { device: self.device(), what })
    }

    /// Makes a pool of this device's memory for one other process, apart from all other memory. Its memory is not part of what [`memory`](Backend::memory) says is held.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a backend says that does not implement this, or whose device or driver cannot; what else the driver says.
    #[cfg(unix)]
    fn create_shared_pool(&self) -> Result<Arc<dyn SharedPool>> {
        Err(Error::Unsupported { device: self.device(), what: SHARES_NO_MEMORY })
    }

    /// Imports such a pool of another process, which is one of the same device. Whether it is must be known before: not every driver can tell.
    ///
    /// # Errors
    ///
    /// As [`create_shared_pool`](Backend::create_shared_pool).
    #[cfg(unix)]
    fn import_pool(&self, descriptor: BorrowedFd<'_>) -> Result<Arc<dyn ImportedPool>> {
        let _ = descriptor;
        Err(Error::Unsupported { device: self.device(), what: SHARES_NO_MEMORY })
    }

    /// Submits `ops` in one go, in any order among themselves, behind what was submitted to `stream` before, and
    /// records one position behind them. Does not block, except on [`HostSide`](crate::backend::HostSide) memory that is neither pinned nor
    /// staging; core sends that from a worker only.
    ///
    /// # Safety
    ///
    /// Every range of `ops` lies within its buffer, and the caller keeps all of them alive, and the host neither
    /// writes sources nor touches destinations, until the returned position is reached.
    ///
    /// # Errors
    ///
    /// What the driver says; see promise 2.
    unsafe fn submit(&self, ops: &[CopyOp<'_>], stream: &dyn BackendStream) -> Result<Submission>;

    /// As [`submit`](Backend::submit), by one kernel for all of `ops`, each of which reads device memory and writes to
    /// staging of this device, to its own memory, or to memory that it [reaches](Backend::kernels_reach). `table` has room for
    /// [`Limits::gather`] bytes for each [part](KernelTable::parts) of a range, or [`Limits::gather_strided`] for a [`CopyOp::Gather`]; the backend may write what the
    /// kernel must know there. Called only with copies for which these say so, those that gather behind all others.
    ///
    /// # Safety
    ///
    /// As [`submit`](Backend::submit); nobody else uses the block of `table` until the returned position is reached.
    ///
    /// # Errors
    ///
    /// As [`submit`](Backend::submit).
    unsafe fn submit_gathered(
        &self,
        ops: &[CopyOp<'_>],
        table: KernelTable<'_>,
        stream: &dyn BackendStream,
    ) -> Result<Submission> {
        let _ = table;
        // SAFETY: passed on.
        unsafe { self.submit(ops, stream) }
    }

    /// Records copies within the memory of this device into the graph into which `stream` is being captured. Nothing is copied now, no
    /// position is recorded, and nothing waits. The graph, and all that is made of it, holds `share`: that is dropped when nothing of
    /// them is left and no launch runs, on whichever thread, and sooner or later after an error as well.
    ///
    /// # Safety
    ///
    /// Every range of `ops`, which are all [`CopyOp::Between`], lies within its buffer, and the caller keeps all of them alive until `share` is
    /// dropped. Dropping
    /// `share` neither calls the driver nor blocks. No thread ends the capture while this is called.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a backend says that does not implement this, or whose driver is too old;
    /// [`Error::StreamCaptured`] if the stream is not captured any more; what else the driver says. Some of `ops` may be recorded then.
    unsafe fn record_into_graph(
        &self,
        ops: &[CopyOp<'_>],
        stream: &dyn BackendStream,
        share: Box<dyn Any + Send>,
    ) -> Result<()> {
        let _ = (ops, stream, share);
        Err(Error::Unsupported { device: self.device(), what: "have graphs hold what their copies use" })
    }

    /// How many streams of a kind are worth while where many threads copy at once, each on one of its own; 1 where all
    /// streams are one queue.
    fn copy_streams(&self) -> usize {
        1
    }

    /// Whether this device can run [`CopyOp::Between`] from a buffer of `other` (which may be itself).
    fn reaches(&self, other: &dyn Backend) -> bool;

    /// Whether kernels of `source`, another device, write to memory that this one has [allocated](Self::allocate). They run a
    /// [`CopyOp::Gather`] of this device out of memory that the program has allocated on `source` ([`wrap`](Self::wrap)), which it need not have
    /// opened to kernels of this one.
    fn is_written_by(&self, source: &dyn Backend) -> bool {
        let _ = source;
        false
    }

    /// Whether kernels of this device read and write `memory`, which the program has [lent](Self::wrap) and which lies on another device that this one
    /// [reaches](Self::reaches), or, page-locked, on the host. No where the driver does not say: copies of the driver move it then. A device that has a kernel for many ranges ([`Limits::gather`]) is also given
    /// copies out of its own memory into such memory of another device ([`CopyOp::Between`]).
    fn kernels_reach(&self, memory: &dyn Buffer) -> bool {
        let _ = memory;
        false
    }

    /// Whether copies of this device read staging blocks of `other` (which may be itself) as they read their own, several
    /// submissions at a time. One block then serves copies of the same bytes to all such devices.
    fn reads_staging_of(&self, other: &dyn Backend) -> bool {
        let _ = other;
        false
    }

    /// Gives idle device memory back to the driver; returns how many bytes. May block for milliseconds.
    fn trim(&self) -> usize {
        0
    }

    /// Blocks until everything submitted to the device by anybody is done.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of earlier asynchronous work included.
    fn synchronize(&self) -> Result<()>;
}
