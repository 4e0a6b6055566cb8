//! Memory that tensors share: a buffer, where it lies, and who else has it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Buffer, MemoryKind};
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::in_flight::completion::Completion;
use crate::in_flight::deferred_release;
use crate::in_flight::locked_uses::LockedUses;
use crate::in_flight::retained::Retained;
use crate::runtime::fork;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::staging::page_locked::PageLocked;
use crate::tensor::bulk_arc;
use crate::tensor::bulk_arc::BulkArc;
use crate::tensor::memory;
use crate::tensor::memory::Memory;
use crate::tensor::parts::Split;

mod access;
mod create;
mod uses;

pub(crate) use access::poisoned;

/// Shared ownership of one piece of memory. Cloning it shares the memory.
#[derive(Clone)]
pub(crate) struct Storage(BulkArc<StorageInner>);

/// A storage for several tensors; see [`Storage::shares`].
pub(crate) struct Shares(bulk_arc::BulkClones<StorageInner>);

impl Iterator for Shares {
    type Item = Storage;

    #[inline]
    fn next(&mut self) -> Option<Storage> {
        self.0.next().map(Storage)
    }
}

/// What a traversal looks at comes first, in one cache line with the count.
#[repr(C)]
struct StorageInner {
    /// Where it ends in its buffer. A part does not begin at the start, but no offset of a tensor in it lies before it.
    bytes: usize,
    host: Option<(NonNull<u8>, bool)>,
    /// `None` is the host: sources are let go of by many threads at once, and a shared count would slow them down.
    device: Option<Device>,
    /// The copy that fills the memory; `None` for memory that was there before.
    filled_by: Option<Arc<Completion>>,
    gaps: Gaps,
    lent: Lent,
    /// Bytes before this are seen by others than who holds the storage alone: by its lender, or by who joins a part with the others.
    seen_up_to: usize,
    /// Whether there was ever something in `uses`, which is locked only then.
    used: AtomicBool,
    memory: ManuallyDrop<Memory>,
    uses: LockedUses,
}

// SAFETY: `host` points into `memory`, which is Send and Sync; reads and writes through it are guarded by
// `host_bytes` (no copy in flight writes it) and `host_bytes_mut` (nobody else holds the storage).
unsafe impl Send for StorageInner {}
// SAFETY: as above.
unsafe impl Sync for StorageInner {}

/// Whether the program has allocated the memory, and what it lets be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lent {
    /// It is ours.
    No,
    ToRead,
    ToWrite,
    /// To be read by copies alone: others, such as another process, may write it at any time.
    ToCopy,
}

/// Whose the bytes between tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// Perhaps somebody's.
    Kept,
    /// Padding of a plan, which belongs to no tensor.
    Padding,
    /// Not lent: not even read.
    Unread,
}

impl Storage {
    /// What tells this storage from any other that is alive.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        self.0.address()
    }

    /// It for `count` more tensors, which are counted now.
    #[inline]
    pub(crate) fn shares(&self, count: usize) -> Shares {
        Shares(self.0.shares(count))
    }

    /// Where it ends, counted from the start of its buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether others than who holds it alone see bytes behind `end`.
    pub(crate) fn is_seen_behind(&self, end: usize) -> bool {
        end < self.0.seen_up_to
    }

    /// The size of what it keeps alive.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.buffer().bytes()
    }

    /// The size of what is its own.
    pub(crate) fn own_bytes(&self) -> usize {
        match &*self.0.memory {
            Memory::Split(part) => self.0.bytes.saturating_sub(part.start()),
            _ => self.0.bytes,
        }
    }

    /// What it is a part of, and which.
    pub(crate) fn as_part(&self) -> Option<&Split> {
        match &*self.0.memory {
            Memory::Split(part) => Some(part),
            Memory::Joined(joined) => joined.whole().storage().as_part(),
            Memory::Buffer(_) | Memory::Part(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.buffer().kind()
    }

    pub(crate) fn buffer(&self) -> &dyn Buffer {
        self.0.memory.buffer()
    }

    /// The device, `None` for the host.
    #[inline]
    pub(crate) fn device(&self) -> Option<&Device> {
        self.0.device.as_ref()
    }

    pub(crate) fn device_id(&self) -> DeviceId {
        self.0.device.as_ref().map_or(DeviceId::HOST, Device::id)
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    pub(crate) fn gaps(&self) -> Gaps {
        self.0.gaps
    }

    /// Whether its owner lets it be written.
    pub(crate) fn is_writable(&self) -> bool {
        let by_host = || self.0.host().is_some_and(|(_, writable)| writable);
        matches!(self.0.lent, Lent::No | Lent::ToWrite)
            && (self.0.device.is_some() || self.0.bytes == 0 || by_host())
    }

    /// Whether nobody else holds it: no other tensor, and nothing in flight.
    pub(crate) fn is_exclusive(&self) -> bool {
        !self.0.is_shared() && self.0.memory.is_exclusive()
    }

    /// All of it, if nobody else holds it.
    fn exclusive(&mut self) -> Option<&mut StorageInner> {
        if !self.0.memory.is_exclusive() {
            return None;
        }
        self.0.get_mut()
    }

    /// Swaps the copy that fills it for another one; `false`, and nothing is changed, if somebody else holds it.
    pub(crate) fn swap_filler(&mut self, filler: &mut Option<Arc<Completion>>) -> bool {
        let memory = self.exclusive();
        memory.map(|memory| std::mem::swap(&mut memory.filled_by, filler)).is_some()
    }

    /// What tells the device from any other that is open; 0 is the host.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.0.device.as_ref().map_or(0, Device::identity)
    }

    /// Whether the program has allocated it.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Whether a range of it is memory that is there and filled, and that no stream uses.
    #[inline]
    pub(crate) fn is_plain(&self, offset: usize, bytes: usize) -> bool {
        self.pending().is_none()
            && !self.0.used.load(Ordering::Acquire)
            && offset.checked_add(bytes).is_some_and(|end| end <= self.0.bytes)
    }
}

/// What a device fills outside of any copy.
impl Retained for Storage {
    fn give_up(&self) -> usize {
        self.own_bytes()
    }
}

impl Drop for StorageInner {
    fn drop(&mut self) {
        // What lies in ordinary memory is the child's own, unless a stream of the parent uses it.
        if fork::is_child()
            && (self.device.is_some()
                || self.memory.buffer().kind() != MemoryKind::Pageable
                || !self.uses.get_mut().is_empty())
        {
            return;
        }
        // SAFETY: the field is not touched again.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // What is page-locked hands its owner on itself, behind its end.
        let is_foreign = self.is_lent() && PageLocked::of(memory.buffer()).is_none();
        let uses = std::mem::take(self.uses.get_mut());
        match (uses.is_empty(), memory) {
            (_, Memory::Split(part)) => part.whole().keep(uses),
            (_, Memory::Joined(joined)) => joined.whole().keep(uses),
            (true, Memory::Buffer(memory)) => {
                memory
                    .free_behind(SmallVec::new(), |buffer| deferred_release::drop_unused(buffer, is_foreign));
            }
            (true, Memory::Part(part)) => memory::let_go(part),
            (false, Memory::Buffer(memory)) => uses.release(memory, is_foreign),
            (false, Memory::Part(part)) => {
                let part: Box<dyn Buffer> = Box::new(part);
                uses.release(part.into(), is_foreign);
            }
        }
    }
}

impl StorageInner {
    fn is_lent(&self) -> bool {
        self.lent != Lent::No
    }

    /// Where the host reaches the memory. What a copy fills may be mapped only when that is done.
    #[inline]
    fn host(&self) -> Option<(NonNull<u8>, bool)> {
        match (self.host, &self.device) {
            (None, None) => self.memory.buffer().host_pointer(),
            (known, _) => known,
        }
    }
}
