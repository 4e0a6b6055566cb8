//! When the memory of a storage may be used, and where the host reaches it.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::{Buffer, WriteWindow};
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::runtime::fork;
use crate::tensor::memory::Memory;
use crate::tensor::storage::{Gaps, Lent, Storage};

impl Storage {
    /// The copy that fills the memory, unless that is known to be done.
    #[inline]
    pub(crate) fn pending(&self) -> Option<&Arc<Completion>> {
        self.0.filled_by.as_ref().filter(|copy| !copy.is_done_cached())
    }

    /// Fails unless whatever fills the memory is done. Asks the driver at most once; never blocks.
    pub(crate) fn check_ready(&self) -> Result<()> {
        match &self.0.filled_by {
            None => Ok(()),
            Some(copy) => match copy.is_done() {
                Ok(true) => Ok(()),
                Ok(false) => Err(Error::NotReady),
                Err(error) => Err(poisoned(error)),
            },
        }
    }

    /// Fails unless whatever fills the memory is done, or has failed and has nothing in flight. Never blocks.
    fn check_over(&self) -> Result<()> {
        let Some(copy) = self.pending() else { return Ok(()) };
        fork::check()?;
        match copy.is_over(false).map_err(poisoned)? {
            true => Ok(()),
            false => Err(Error::NotReady),
        }
    }

    /// Fails unless all of the copy that fills the memory is submitted, without asking the driver: before, the host may be
    /// writing it.
    pub(crate) fn check_submitted(&self) -> Result<()> {
        match self.pending() {
            None => Ok(()),
            Some(copy) if copy.is_accepted() => Ok(()),
            Some(copy) if copy.is_submitted() => Err(poisoned(copy.error())),
            Some(_) => Err(Error::NotReady),
        }
    }

    /// Fails unless it may be written and nobody else holds it, but for the copy that still fills it.
    pub(crate) fn check_splittable(&self) -> Result<()> {
        if !self.is_writable() {
            let cure = "split a copy of it, or memory that was lent to be written";
            return Err(Error::NotWritable { why: "lent read-only", cure });
        }
        let is_filled = || matches!(self.check_ready(), Err(Error::NotReady));
        let is_joined = matches!(&*self.0.memory, Memory::Joined(_));
        match self.is_exclusive() || is_filled() || self.is_exclusive() {
            true if is_joined => {
                let cure = "wait for what fills and reads them (Device::synchronize)";
                Err(Error::NotWritable { why: "joined of parts that are still in flight", cure })
            }
            true => Ok(()),
            false => Err(self.shared()),
        }
    }

    /// The bytes of a range, for the host to read. No bytes are always ready.
    pub(crate) fn host_bytes(&self, offset: usize, bytes: usize) -> Result<&[u8]> {
        if bytes > 0 {
            self.check_ready()?;
            self.check_unshared()?;
        }
        let start = self.host_range(offset, bytes)?;
        // SAFETY: the range is inside of the buffer (`host_range`), which outlives the borrow of `self`; nothing
        // writes it: no other process does (`check_unshared`), copies into it are done (`check_ready`), and `host_bytes_mut` needs an unshared storage.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }

    /// The bytes of a range, for the host to write; only while nobody else holds the memory.
    pub(crate) fn host_bytes_mut(&mut self, offset: usize, bytes: usize) -> Result<&mut [u8]> {
        self.check_ready()?;
        let start = self.host_range(offset, bytes)?;
        let shared = self.shared();
        let Some(memory) = self.exclusive() else {
            return Err(shared);
        };
        if !memory.host().is_some_and(|(_, writable)| writable) {
            let cure = "write to a copy of its elements (to_vec)";
            return Err(Error::NotWritable { why: "lent read-only", cure });
        }
        memory.check_unused()?;
        // SAFETY: as in `host_bytes`; `get_mut` has shown that nobody else, a copy in flight included, holds it.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) })
    }

    /// The memory itself, to be taken out; only while nobody else holds it and nothing uses it, whatever came of the copy into it. `None`
    /// if its owner has lent more of it.
    pub(crate) fn buffer_mut(&mut self) -> Result<Option<&mut Box<dyn Buffer>>> {
        self.check_over()?;
        let shared = self.shared();
        let memory = self.exclusive().ok_or(shared)?;
        memory.check_unused()?;
        Ok(match &mut *memory.memory {
            Memory::Buffer(memory) => Some(&mut memory.buffer),
            Memory::Part(_) | Memory::Split(_) | Memory::Joined(_) => None,
        })
    }

    /// Fails for memory that others may write at any time: no reference may point there.
    pub(crate) fn check_unshared(&self) -> Result<()> {
        if self.is_shared_with_others() { Err(Error::SharedMemory) } else { Ok(()) }
    }

    /// Whether others than this library may write it at any time.
    pub(crate) fn is_shared_with_others(&self) -> bool {
        self.0.lent == Lent::ToCopy
    }

    /// Fails unless a range lies within the storage.
    #[inline]
    pub(crate) fn check_range(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.0.bytes => Ok(()),
            _ => Err(self.out_of_range(offset, bytes)),
        }
    }

    /// Where `offset`, which lies within the storage, is on the host; `None` if the host cannot reach it, or not yet.
    #[inline]
    pub(crate) fn host_address(&self, offset: usize) -> Option<NonNull<u8>> {
        debug_assert!(offset <= self.0.bytes);
        self.0.host().map(|(start, _)| start.map_addr(|address| address.saturating_add(offset)))
    }

    /// Where the host writes the memory while nobody else has it; `None` if it cannot.
    pub(crate) fn window(&self) -> Option<WriteWindow> {
        match self.0.host() {
            Some((start, true)) => {
                // SAFETY: the buffer has so many bytes there and lives as long as the storage (promise 3 of `Backend`).
                Some(unsafe { WriteWindow::new(start, self.0.bytes) })
            }
            _ => self.buffer().window(),
        }
    }

    /// Where a range of host memory lies, whether or not it may be read yet.
    pub(crate) fn host_range(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>> {
        self.check_range(offset, bytes)?;
        self.host_address(offset).ok_or_else(|| Error::NotOnHost { device: self.device_id() })
    }

    /// The error of a write to memory that something else holds. Who that is, nobody knows: it is counted only.
    #[cold]
    fn shared(&self) -> Error {
        let cure = match self.gaps() {
            Gaps::Kept | Gaps::Unread => {
                "drop the other tensors over it, and wait for the copies that use it: a handle that was only asked keeps what its copy has read (after a cancelled one: Cancelled::in_flight)"
            }
            Gaps::Padding => {
                "tensors that came packed share their memory: copy them with CopyOptions::packing(false), or this one alone \
                 with CopyPolicy::Always"
            }
        };
        Error::NotWritable { why: "shared with another tensor or in flight", cure }
    }

    #[cold]
    fn out_of_range(&self, start: usize, bytes: usize) -> Error {
        Error::OutOfRange { what: "bytes", start, end: start.saturating_add(bytes), limit: self.0.bytes }
    }
}

pub(crate) fn poisoned(error: Error) -> Error {
    match error {
        Error::CopyFailed(_) => error,
        other => Error::CopyFailed(Arc::new(other)),
    }
}
