//! One staging block: in use by a copy, as memory for a tensor, or ordinary memory in its place.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::host::memory::HostMemory;
use crate::backend::{Backend, Buffer, Direction, HostSide, MemoryKind, Staging, WriteWindow};
use crate::error::{Error, Result};
use crate::runtime::fork;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::staging::copy_share::CopyShare;
use crate::staging::page_locked::PageLocked;
use crate::staging::pool::StagingPool;
use crate::staging::size_class::SizeClass;

/// A staging block in use; dropping it gives it back to its pool.
pub(crate) struct Block {
    pub(crate) staging: ManuallyDrop<Box<dyn Staging>>,
    pub(crate) class: SizeClass,
    /// `None` for ordinary memory, which is not pooled.
    pub(crate) pool: Option<Arc<StagingPool>>,
    /// The copy in whose share it is.
    pub(crate) lease: Option<Arc<CopyShare>>,
    pub(crate) given_up: AtomicBool,
}

impl Block {
    /// A block of ordinary memory.
    pub(crate) fn pageable(bytes: usize) -> Result<Self> {
        let staging: Box<dyn Staging> = Box::new(Pageable(HostMemory::uninit(bytes)?));
        let class = SizeClass { bytes, direction: Direction::Upload };
        Ok(Self {
            staging: ManuallyDrop::new(staging),
            class,
            pool: None,
            lease: None,
            given_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn staging(&self) -> &dyn Staging {
        &**self.staging
    }

    /// Why the host has no access to a block that no copy uses: what is wrong with its device.
    #[cold]
    pub(crate) fn why_no_access(&self) -> Error {
        self.pool.as_ref().and_then(|pool| pool.failure()).unwrap_or(Error::NotReady)
    }

    /// The place at `offset`, for a copy.
    pub(crate) fn host_side(&self, offset: usize) -> HostSide<'_> {
        let staging: &dyn Any = self.staging();
        match staging.downcast_ref::<Pageable>() {
            Some(ordinary) => HostSide::Buffer(&ordinary.0, offset),
            None => HostSide::Staging(self.staging(), offset),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.class.bytes
    }

    /// Whether it is staging memory of a device, and not ordinary memory in its place.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pool.is_some()
    }

    /// Whether it is in the share of one of many copies.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.pool().is_shared_by_many())
    }

    fn is_of(&self, backend: &Arc<dyn Backend>) -> bool {
        self.pool
            .as_ref()
            .is_some_and(|pool| std::ptr::addr_eq(Arc::as_ptr(&pool.backend), Arc::as_ptr(backend)))
    }

    /// Whether the host has access only while no copy uses it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.backend.limits().mapped_staging)
    }

    /// Counts it as leaked in its pool: it is about to be. `false` if another copy that reads it has done so
    /// before.
    pub(crate) fn give_up(&self) -> bool {
        if self.given_up.swap(true, Ordering::Relaxed) {
            return false;
        }
        if let Some(pool) = &self.pool {
            pool.state.lock().accounts.give_up(self.class);
            pool.returned.notify_all();
        }
        true
    }

    /// The first `bytes` of the block as memory for a tensor on the host.
    pub(crate) fn into_buffer(self, bytes: usize) -> Box<dyn Buffer> {
        Box::new(PinnedBuffer { block: self, bytes })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // SAFETY: this is `drop`, which runs once and does not touch the field again.
        let staging = unsafe { ManuallyDrop::take(&mut self.staging) };
        if let Some(lease) = self.lease.take() {
            lease.give_back(self.class.bytes);
        }
        if let Some(pool) = &self.pool {
            pool.give_back(staging, self.class);
        }
    }
}

/// Ordinary memory in place of a pinned block.
struct Pageable(HostMemory);

// SAFETY: the memory belongs to `HostMemory`, which keeps it in place until it is dropped.
unsafe impl Staging for Pageable {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn is_pinned(&self) -> bool {
        false
    }

    fn window(&self) -> Option<WriteWindow> {
        // SAFETY: `HostMemory` has so many bytes at `start` and keeps them in place until it is dropped. The window is used
        // while the block is held.
        self.contents().map(|start| unsafe { WriteWindow::new(start, self.0.bytes()) })
    }

    fn contents(&self) -> Option<NonNull<u8>> {
        self.0.host_pointer().map(|(start, _)| start)
    }
}

/// Memory of the host at `offset`, for a copy by `backend`: as a staging block if it lies in one of that backend.
pub(crate) fn host_side<'a>(
    buffer: &'a dyn Buffer,
    offset: usize,
    backend: &Arc<dyn Backend>,
) -> HostSide<'a> {
    let any: &dyn Any = buffer;
    match any.downcast_ref::<PinnedBuffer>() {
        Some(pinned) if pinned.block.is_of(backend) => pinned.block.host_side(offset),
        _ => HostSide::Buffer(buffer, offset),
    }
}

/// Whether memory is page-locked for `driver`. Memory that the program has page-locked itself counts for every driver.
pub(crate) fn is_pinned_for(buffer: &dyn Buffer, driver: &str) -> bool {
    if let Some(locked) = PageLocked::of(buffer) {
        return locked.is_for(driver);
    }
    let any: &dyn Any = buffer;
    let pool = any.downcast_ref::<PinnedBuffer>().and_then(|pinned| pinned.block.pool.as_ref());
    buffer.kind() == MemoryKind::Pinned && pool.is_none_or(|pool| pool.device().driver() == driver)
}

/// A block that a tensor on the host lies in. It goes back to its pool when the last tensor over it is dropped.
struct PinnedBuffer {
    block: Block,
    bytes: usize,
}

// SAFETY: the block keeps its memory in place until it is dropped (promise 3 of `Backend`), and the pool gives a block to one
// owner at a time (`BlockAccounts::take`).
unsafe impl Buffer for PinnedBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        match (self.block.staging().is_pinned(), self.block.is_mapped()) {
            (_, true) => MemoryKind::Mapped,
            (true, false) => MemoryKind::Pinned,
            (false, false) => MemoryKind::Pageable,
        }
    }

    fn address(&self) -> Option<u64> {
        self.host_pointer().map(|(start, _)| start.as_ptr() as u64)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        self.block.staging().contents().map(|start| (start, !self.block.is_mapped()))
    }
}
