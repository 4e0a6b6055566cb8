//! Memory that two processes map.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use transship_core::Device;

use crate::error::{IpcError, Named, broken};

/// Nobody can make the memory smaller, which would kill who touches it, nor larger.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory of up to so many bytes is mapped with all of its pages by one call of the system, which spares a fault for each page that is touched.
const MOST_AT_ONCE: usize = 1 << 20;

/// So many bytes are had by one call of the system. Some kernels give up a call when a signal comes, with all pages that it has made: one for much memory would never end where signals come again and again.
const STEP: usize = 8 << 20;

/// For memory of so many bytes it is asked whether there is as much: that takes 53 us, and to make them 5.3 ms (two cores).
const CHECKED_FROM: usize = 64 << 20;

/// A mapping of shared memory, which another process may write at any time: no reference ever points there.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

/// Tells shared memory from all other, as long as it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

// SAFETY: it is an address and a size; who reads or writes there does so through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory of zeros, all of which is there, and the descriptor to send. It keeps its size. The system lists it by its name.
    pub(crate) fn new(name: &'static str, bytes: usize) -> Result<(Self, OwnedFd), IpcError> {
        check_room(bytes)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create(name, flags).named("memory to be shared")?;
        // All of it now: a page that cannot be had when it is first touched kills who does.
        for start in (0..bytes).step_by(STEP) {
            let step = STEP.min(bytes - start);
            retry_on_intr(|| fallocate(&memory, FallocateFlags::empty(), start as u64, step as u64))
                .named("memory to be shared")?;
        }
        fcntl_add_seals(&memory, SEALS | SealFlags::SEAL).named("sealing memory to be shared")?;
        Ok((Self::map(&memory, bytes)?, memory))
    }

    /// Memory that another process has sent, of so many bytes. Fails unless it has them for good.
    pub(crate) fn of(memory: impl AsFd, bytes: usize) -> Result<Self, IpcError> {
        Self::check(&memory, bytes)?;
        Self::map(memory, bytes)
    }

    /// Which memory that is. Fails unless it has so many bytes for good.
    pub(crate) fn check(memory: impl AsFd, bytes: usize) -> Result<FileId, IpcError> {
        let seals = fcntl_get_seals(&memory).map_err(|_| broken("the descriptor is of no shared memory"))?;
        if !seals.contains(SEALS) {
            return Err(broken("the memory can be made smaller"));
        }
        let stat = fstat(&memory).named("the size of shared memory")?;
        if usize::try_from(stat.st_size) != Ok(bytes) {
            return Err(broken("the memory has another size"));
        }
        Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Memory that has so many bytes for good ([`check`](Self::check)).
    pub(crate) fn map(memory: impl AsFd, bytes: usize) -> Result<Self, IpcError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // The threads that copy make the pages of much memory, together.
        let flags = if bytes <= MOST_AT_ONCE { MapFlags::POPULATE } else { MapFlags::empty() };
        // SAFETY: a new mapping at an address that the system chooses touches no other memory.
        let start = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED | flags, memory, 0) };
        let start = NonNull::new(start.named("mapping shared memory")?.cast());
        Ok(Self { start: start.ok_or_else(|| broken("the memory lies nowhere"))?, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `offset` lies; `None` unless `bytes` bytes fit behind it.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: `offset` is within the mapping.
        (end <= self.bytes).then(|| unsafe { self.start.add(offset) })
    }

    /// A copy of a range: what is there at this moment.
    pub(crate) fn copy(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        let from = self.at(offset, bytes)?;
        let mut copy = vec![0; bytes];
        // SAFETY: `at` has checked the range; `copy` is as long, and new.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), bytes) };
        Some(copy)
    }

    /// Writes `bytes` there; `false`, and nothing is written, if they do not fit.
    #[must_use]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else { return false };
        // SAFETY: `at` has checked the range; nothing of this process but tensors that are copied only lies there, and so no slice does.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}

/// Fails for more memory than the process may use now. The system would give all that there is, and end processes when there is no more.
fn check_room(bytes: usize) -> Result<(), IpcError> {
    if bytes < CHECKED_FROM {
        return Ok(());
    }
    match Device::host().memory().ok().and_then(|memory| memory.free) {
        Some(free) if bytes as u64 > free => {
            let text = format!("{bytes} bytes are asked for, and {free} are free");
            let error = io::Error::new(io::ErrorKind::OutOfMemory, text);
            Err(IpcError::System { what: "memory to be shared", error })
        }
        _ => Ok(()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapped it, and who has an address in it keeps this alive.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
