//! The seam between transship and a device.
//!
//! A backend is mechanism only: it allocates, it copies ranges that it is told to copy, and it says how far a
//! stream has come. Every policy (what to pack, block sizes, order, pooling, when to wait, when to free) lives above,
//! once, in this crate.
//!
//! Progress is a number. Whatever is submitted to a [`BackendStream`] is followed by a *position*; positions grow
//! along the stream, and one query of [`BackendStream::reached`] settles every copy up to the answer.

pub(crate) mod host;
pub(crate) mod limits;
pub mod stream_ordered;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::alignment::Alignment;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

pub use crate::in_flight::queue::{count_leak, keep_until};

/// A kind of device, found at run time: the plug for a backend.
///
/// Compiled-in backends announce themselves with [`inventory::submit!`](inventory) of a [`BuiltinDriver`]; a
/// program adds one of its own with [`register_driver`](crate::register_driver).
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The word before the colon of the names of its devices: `cuda` in `cuda:0`.
    fn name(&self) -> &'static str;

    /// Where [`Device::best`](crate::Device::best) looks first: higher comes first; the host is 0, and the first of those.
    fn preference(&self) -> u32;

    /// Whether the driver can be used, without initialising a device.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`] says what is missing.
    fn is_available(&self) -> Result<()>;

    /// How many devices there are, without initialising one of them; 0 if the driver is not available.
    fn device_count(&self) -> usize;

    /// Initialises one device.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`], [`Error::NoSuchDevice`], or what the driver says.
    async fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>>;
}

/// A driver that a backend crate brings along; collected when the program is linked.
pub struct BuiltinDriver(
    /// Makes the driver; called once, on the first question about devices. If it asks such a question itself, or its
    /// [`name`](Driver::name) does, the answer knows the drivers before it.
    pub fn() -> Arc<dyn Driver>,
);

inventory::collect!(BuiltinDriver);

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
/// 4. Memory of a released or dropped [`Buffer`] is not handed out again before every ticket given to
///    [`Buffer::release`] is reached, unless the host cannot reach it and the device orders every later use behind them.
/// 5. No function blocks until a device has made progress, except those that say so.
pub unsafe trait Backend: Any + Send + Sync {
    /// The name of the device.
    fn device(&self) -> DeviceId;

    /// The hardware and the driver in their own words, e.g. `NVIDIA H200, driver 13.0`.
    fn description(&self) -> &str;

    /// What the device demands of a plan.
    fn limits(&self) -> &Limits;

    /// What was asked of the driver so far.
    fn counters(&self) -> Counters;

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

    /// Allocates a staging block that copies of this device may use asynchronously (pinned, where the device knows that): in
    /// both directions, or in this one only where staging is mapped ([`Limits::mapped_staging`]). Expensive; it may block for
    /// milliseconds. So may dropping it.
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
    /// tensor knows of.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMemory`] where the driver knows that the description is wrong.
    unsafe fn wrap(&self, memory: RawMemory, owner: Box<dyn Any + Send + Sync>) -> Result<Box<dyn Buffer>>;

    /// Submits `ops` in one go, in any order among themselves, behind what was submitted to `stream` before, and
    /// records one position behind them. Does not block, except on [`HostSide`] memory that is neither pinned nor
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
    /// staging of this device or to its own memory. `table` is a block for uploads, with room for
    /// [`Limits::gather`] bytes for each; the backend may write what the kernel must know there. Called only where
    /// [`Limits::gather`] says so.
    ///
    /// # Safety
    ///
    /// As [`submit`](Backend::submit); nobody else uses `table` until the returned position is reached.
    ///
    /// # Errors
    ///
    /// As [`submit`](Backend::submit).
    unsafe fn submit_gathered(
        &self,
        ops: &[CopyOp<'_>],
        table: &dyn Staging,
        stream: &dyn BackendStream,
    ) -> Result<Submission> {
        let _ = table;
        // SAFETY: passed on.
        unsafe { self.submit(ops, stream) }
    }

    /// How many streams of a kind are worth while where many threads copy at once, each on one of its own; 1 where all
    /// streams are one queue.
    fn copy_streams(&self) -> usize {
        1
    }

    /// Whether this device can run [`CopyOp::Between`] from a buffer of `other` (which may be itself).
    fn reaches(&self, other: &dyn Backend) -> bool;

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

/// An ordered queue of work of one device, and the count of how far it has come.
///
/// # Safety
///
/// See the first promise of [`Backend`]; and [`twin`](BackendStream::twin) and [`is_same`](BackendStream::is_same) answer as they say,
/// since memory is given back by what they answer.
pub unsafe trait BackendStream: Any + Send + Sync {
    /// Marks the point behind everything submitted so far and returns its position.
    ///
    /// # Errors
    ///
    /// [`Error::StreamCaptured`] while somebody captures the stream into a graph, and then only: core asks again later. Or what
    /// the driver says.
    fn record(&self) -> Result<u64>;

    /// Another object for the same stream, with the same positions, by which core records and waits when nobody holds this one
    /// any more. `None` if work can be submitted to the stream without holding this object, because it is somebody else's: memory
    /// that was handed to it then waits for whatever is submitted as long as the memory is there.
    fn twin(&self) -> Option<Arc<dyn BackendStream>> {
        None
    }

    /// Whether `other`, another object, is for the same stream: a position recorded through one is behind what was submitted
    /// through either. Asked only of streams without a [`twin`](Self::twin).
    fn is_same(&self, other: &dyn BackendStream) -> bool {
        let _ = other;
        false
    }

    /// Makes later work of this stream wait, on the device, until `position` of `other` is reached.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if it cannot wait for that one, which is of another driver or another device: the caller waits on a
    /// host thread then.
    fn wait_for(&self, other: &dyn BackendStream, position: u64) -> Result<()>;

    /// The highest position reached, asking the driver; never blocks.
    ///
    /// # Errors
    ///
    /// The error of the device if it is broken; what is in flight then may never be proved to be done.
    fn reached(&self) -> Result<u64>;

    /// Blocks until `position` is reached, spinning for some microseconds before it sleeps; `false` on time-out.
    ///
    /// # Errors
    ///
    /// As [`reached`](BackendStream::reached).
    fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool>;

    /// Marks this point with a time stamp, for [`elapsed`](TimeMark::elapsed_since).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the device has no clock, or what the driver says.
    fn mark(&self) -> Result<Box<dyn TimeMark>>;
}

/// A point on a stream with the time at which the device came by.
pub trait TimeMark: Any + Send + Sync {
    /// Microseconds between `earlier` and this mark.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] if one of them was not reached yet.
    fn elapsed_since(&self, earlier: &dyn TimeMark) -> Result<f64>;
}

/// Memory that a tensor can lie in.
///
/// # Safety
///
/// See promises 3 and 4 of [`Backend`].
pub unsafe trait Buffer: Any + Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// What kind of memory it is.
    fn kind(&self) -> MemoryKind;

    /// Its address on the device, where there is one.
    fn address(&self) -> Option<u64>;

    /// Where the host may read it (and write it, if `true` comes with it), where it may.
    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)>;

    /// Where the host writes memory that was [allocated open](Backend::allocate_open); `None` for any other, and once it is
    /// closed.
    fn window(&self) -> Option<WriteWindow> {
        None
    }

    /// Ends the host's access: from now on the device may use the memory, and finds there what was written.
    ///
    /// # Safety
    ///
    /// Nobody writes through a [`window`](Self::window) of the buffer any more: it may go with this call.
    ///
    /// # Errors
    ///
    /// What the driver says; the memory is of no use then.
    unsafe fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Gives the memory back once each ticket of `after` is reached, without blocking. Dropping the box without
    /// this call is the same with an empty list.
    ///
    /// Memory that [`wrap`](Backend::wrap) has described comes with no ticket, on a thread on which code of its owner may run: the
    /// owner goes within this call, and no other one does.
    fn release(self: Box<Self>, after: &[Ticket]);
}

/// What a staging block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The host writes, the device reads.
    Upload,
    /// The device writes, the host reads.
    Download,
}

/// A block of host memory that a device copies from and to asynchronously.
///
/// Where [`Limits::mapped_staging`] says so, a block is used by one submission at a time, and the host has no access
/// from the call of `submit` on until the position behind it is reached; then it has again.
///
/// # Safety
///
/// See promise 3 of [`Backend`]. [`window`](Staging::window) and [`contents`](Staging::contents) count from the moment
/// at which they are asked, as long as no copy that uses the block is submitted.
pub unsafe trait Staging: Any + Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// Whether copies from and to it are asynchronous.
    fn is_pinned(&self) -> bool;

    /// Where the host writes; `None` while it may not (a block that is not mapped), or if the block is a mapped one for downloads.
    fn window(&self) -> Option<WriteWindow>;

    /// Where the host reads what a reached copy has written; `None` while it may not, or if the block is a mapped one for uploads.
    fn contents(&self) -> Option<NonNull<u8>>;
}

/// A range that may be written and must not be read: never a `&mut [u8]`, since it may be uninitialised,
/// write-combined or mapped write-only.
#[derive(Debug, Clone, Copy)]
pub struct WriteWindow {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a window is a pointer and a length; writing through it is unsafe and says what the writer must keep.
unsafe impl Send for WriteWindow {}
// SAFETY: as above.
unsafe impl Sync for WriteWindow {}

impl WriteWindow {
    /// A window over `bytes` bytes from `start`.
    ///
    /// # Safety
    ///
    /// The range must be valid for writes as long as the window is used.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `offset` lies; `None` unless `bytes` bytes fit behind it.
    pub fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: `offset` is within the window, which `new` was promised to be valid.
        (end <= self.bytes).then(|| unsafe { self.start.add(offset) })
    }
}

/// One copy of a contiguous range.
#[derive(Clone, Copy)]
pub enum CopyOp<'a> {
    /// Host to device.
    Upload {
        /// The source.
        from: HostSide<'a>,
        /// The destination, a buffer of the device that runs the copy.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
    /// Device to host.
    Download {
        /// The source, a buffer of the device that runs the copy.
        from: &'a dyn Buffer,
        /// Where in `from`, in bytes.
        from_offset: usize,
        /// The destination.
        to: HostSide<'a>,
        /// How much.
        bytes: usize,
    },
    /// Device to device; the device of `to` runs it.
    Between {
        /// The source, a buffer of a device that the other one [reaches](Backend::reaches).
        from: &'a dyn Buffer,
        /// Where in `from`, in bytes.
        from_offset: usize,
        /// The destination.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
    /// Zeros.
    Clear {
        /// The destination.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
}

/// The end of a copy that lies in host memory.
#[derive(Clone, Copy)]
pub enum HostSide<'a> {
    /// In a staging block, at an offset in bytes: of the device that runs the copy, or for uploads of one whose blocks
    /// it [reads](Backend::reads_staging_of).
    Staging(&'a dyn Staging, usize),
    /// In a buffer with a host pointer, at an offset in bytes.
    Buffer(&'a dyn Buffer, usize),
}

impl HostSide<'_> {
    /// The same memory, at another offset.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> Self {
        match *self {
            Self::Staging(block, _) => Self::Staging(block, offset),
            Self::Buffer(buffer, _) => Self::Buffer(buffer, offset),
        }
    }

    /// The address, if it can be read.
    pub fn source(&self) -> Option<NonNull<u8>> {
        let (start, offset) = match self {
            Self::Staging(block, offset) => (block.window()?.at(0, 0)?, offset),
            Self::Buffer(buffer, offset) => (buffer.host_pointer()?.0, offset),
        };
        // SAFETY: `submit` requires that the range lies within the block or buffer.
        Some(unsafe { start.add(*offset) })
    }

    /// The address, if it can be written.
    pub fn destination(&self) -> Option<NonNull<u8>> {
        let (start, offset) = match self {
            Self::Staging(block, offset) => (block.contents()?, offset),
            Self::Buffer(buffer, offset) => {
                (buffer.host_pointer().filter(|(_, writable)| *writable)?.0, offset)
            }
        };
        // SAFETY: as in `source`.
        Some(unsafe { start.add(*offset) })
    }
}

/// What one call of [`Backend::submit`] did.
#[derive(Debug, Clone, Copy)]
pub struct Submission {
    /// The position behind it.
    pub position: u64,
    /// How many copies the driver was given.
    pub copies: usize,
    /// How many bytes they move.
    pub bytes: usize,
}

/// A position of a stream: reached, and everything before it is done.
#[derive(Clone)]
pub struct Ticket {
    /// The stream.
    pub stream: Arc<dyn BackendStream>,
    /// The position on it.
    pub position: u64,
}

/// What a device demands of a plan. It is asked once, when the device is opened, and refused if it is out of the ranges given
/// here ([`Error::InvalidLimit`]); what has none may be anything.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Offsets and sizes of copies are multiples of this, and so are the sizes of buffers. At most 64 KiB.
    pub copy_granularity: Alignment,
    /// Where a buffer may be bound to a kernel on its own: offsets are multiples of this.
    pub bindable_alignment: Alignment,
    /// How buffers are aligned at the least. At least 16 bytes.
    pub buffer_alignment: Alignment,
    /// The largest buffer, in bytes. At least one granule.
    pub largest_buffer: usize,
    /// The host writes to a new buffer directly, which makes staging pointless.
    pub host_writable: bool,
    /// New buffers of up to so many bytes the host writes directly, which is faster than staging there
    /// ([`Backend::allocate_open`]); 0 where there is no such memory.
    pub largest_open: usize,
    /// Staging blocks belong to buffers of the device's own API: the host has access only while no copy uses them, and
    /// copies reach no other host memory, page-locked or not.
    pub mapped_staging: bool,
    /// The device can make many small copies by one kernel ([`Backend::submit_gathered`]), which needs so many bytes of
    /// staging for each; `None` if it cannot, or if its staging is mapped: copies beside the kernel would be a second
    /// submission that uses a block. At most 8192.
    pub gather: Option<usize>,
}

/// What memory is, without naming a vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary host memory.
    Pageable,
    /// Page-locked host memory, which devices copy from and to asynchronously.
    Pinned,
    /// Host memory that is mapped from a buffer of a device's own API, which only its own staging reaches.
    Mapped,
    /// Memory of a device.
    Device,
    /// Memory that the host and the device share, migrated on demand.
    Managed,
}

/// Memory that somebody else allocated.
#[derive(Debug, Clone, Copy)]
pub struct RawMemory {
    /// Its address: on the host or on the device, as `kind` says.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: usize,
    /// What kind of memory it is.
    pub kind: MemoryKind,
}

/// How urgent a stream is against the others of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StreamPriority {
    /// As most streams.
    #[default]
    Normal,
    /// Its work starts before that of the others.
    High,
}

/// What a backend asked of its driver since the device was opened. A steady state shows as zeros in the difference of
/// two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of the driver, of every kind.
    pub driver_calls: u64,
    /// Calls of [`Backend::submit`].
    pub submissions: u64,
    /// Copies submitted.
    pub copies: u64,
    /// Bytes submitted from the host to the device.
    pub bytes_up: u64,
    /// Bytes submitted from the device to the host.
    pub bytes_down: u64,
    /// Bytes submitted from device to device.
    pub bytes_between: u64,
    /// Device memory held from the driver, idle memory of pools included, in bytes.
    pub device_bytes: u64,
    /// Staging blocks allocated.
    pub staging_allocations: u64,
    /// Staging memory held now, in bytes.
    pub staging_bytes: u64,
    /// Most staging memory ever held at once, in bytes.
    pub staging_high_water: u64,
    /// Events created.
    pub events_created: u64,
    /// Streams created.
    pub streams_created: u64,
}

impl Ticket {
    /// Whether the position is reached, asking the driver.
    ///
    /// # Errors
    ///
    /// The error of the device if it is broken.
    pub fn is_reached(&self) -> Result<bool, Error> {
        Ok(self.stream.reached()? >= self.position)
    }
}
