//! Memory of a backend: buffers and staging blocks.

use std::any::Any;
use std::ptr::NonNull;

use crate::backend::Ticket;
use crate::error::Result;

/// Memory that a tensor can lie in. Dropped before the backend that has allocated it, by the program's threads or by workers of this crate, where
/// a drop may block, when nothing uses it any more or [`release_after`](Self::release_after) allows it before.
///
/// # Safety
///
/// See promises 3 and 4 of [`Backend`](crate::backend::Backend).
pub unsafe trait Buffer: Any + Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// What kind of memory it is.
    fn kind(&self) -> MemoryKind;

    /// Its address on the device, where there is one.
    fn address(&self) -> Option<u64>;

    /// Where the host may read it (and write it, if `true` comes with it), where it may.
    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)>;

    /// Where the host writes memory that was [allocated open](crate::backend::Backend::allocate_open); `None` for any other, and once it is
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

    /// Whether a [`CopyOp::Scatter`](crate::backend::CopyOp::Scatter) may write it, on a device that runs these. Where not, each run of
    /// elements is a copy. Never blocks.
    fn is_scattered_to(&self) -> bool {
        true
    }

    /// Called before the memory goes, with what still uses it: whether it may be dropped at once, since the memory is given back
    /// behind every ticket of `after` however early that is. Otherwise it is dropped when all of them are reached. Never blocks.
    ///
    /// Memory that [`wrap`](crate::backend::Backend::wrap) has described is not asked: it is dropped when all are reached, on a thread on which code
    /// of its owner may run. The owner goes within that drop, and no other one does.
    fn release_after(&mut self, _after: &[Ticket]) -> bool {
        false
    }
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
/// Where [`Limits::mapped_staging`](crate::backend::Limits::mapped_staging) says so, a block is used by one submission at a time, and the host has no access
/// from the call of `submit` on until the position behind it is reached; then it has again.
///
/// # Safety
///
/// See promise 3 of [`Backend`](crate::backend::Backend). [`window`](Staging::window) and [`contents`](Staging::contents) count from the moment
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
#[non_exhaustive]
pub struct RawMemory {
    /// Its address: on the host or on the device, as `kind` says.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: usize,
    /// What kind of memory it is.
    pub kind: MemoryKind,
}

impl RawMemory {
    /// `bytes` bytes at `address`.
    pub const fn new(address: u64, bytes: usize, kind: MemoryKind) -> Self {
        Self { address, bytes, kind }
    }
}
