//! The memory of one loader as the feed has it: page-locked for its device, in slots.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::param::page_size;
use transship_core::{Device, Error, MemoryKind, Registered};

use crate::error::IpcError;
use crate::event_fd::EventFd;
use crate::locked::lock_for;
use crate::mapping::Mapping;
use crate::options::FeedOptions;

/// It stays until the last tensor over one of its slots has gone.
pub(crate) struct Ring {
    /// What keeps it page-locked. Nothing is read through it.
    registered: Option<Registered>,
    mapping: Arc<Mapping>,
    slot_bytes: usize,
    returned: Box<[AtomicBool]>,
    event: Arc<EventFd>,
}

/// What a batch has a slot by. Dropped, it gives the slot back.
pub(crate) struct Lease {
    ring: Arc<Ring>,
    slot: usize,
}

impl Ring {
    /// New memory, locked for `device` where that needs it, and the descriptor for the loader. Takes milliseconds for each 100 MiB.
    pub(crate) fn new(
        device: &Device,
        options: &FeedOptions,
        event: &Arc<EventFd>,
    ) -> Result<(Self, OwnedFd), IpcError> {
        let (slot_bytes, bytes) = sizes(options)?;
        let (mapping, descriptor) = Mapping::new("transship-ring", bytes)?;
        let mapping = Arc::new(mapping);
        let registered = lock_for(device, &mapping, Arc::clone(&mapping))?;
        let returned = (0..options.slots).map(|_| AtomicBool::new(false)).collect();
        Ok((Self { registered, mapping, slot_bytes, returned, event: Arc::clone(event) }, descriptor))
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn slots(&self) -> usize {
        self.returned.len()
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.registered.as_ref().map_or(MemoryKind::Pageable, Registered::memory_kind)
    }

    /// Where a slot lies.
    pub(crate) fn address(&self, slot: usize) -> Option<u64> {
        let start = self.mapping.at(slot.checked_mul(self.slot_bytes)?, self.slot_bytes)?;
        Some(start.as_ptr().expose_provenance() as u64)
    }

    /// A copy of a part of a slot; `None` if it does not lie there.
    pub(crate) fn copy(&self, slot: usize, at: usize, bytes: usize) -> Option<Vec<u8>> {
        let is_within = at.checked_add(bytes)? <= self.slot_bytes;
        let start = slot.checked_mul(self.slot_bytes)?;
        if is_within { self.mapping.copy(start.checked_add(at)?, bytes) } else { None }
    }

    /// Whether the batch that had the slot has given it back, since this was asked last.
    pub(crate) fn take_back(&self, slot: usize) -> bool {
        // What others read of the slot came before the lease was dropped.
        self.returned.get(slot).is_some_and(|returned| returned.swap(false, Ordering::Acquire))
    }
}

impl Lease {
    pub(crate) fn new(ring: &Arc<Ring>, slot: usize) -> Self {
        Self { ring: Arc::clone(ring), slot }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(returned) = self.ring.returned.get(self.slot) {
            returned.store(true, Ordering::Release);
        }
        self.ring.event.signal();
    }
}

/// The bytes of a slot, and of all. Fails for more than memory can have.
pub(crate) fn sizes(options: &FeedOptions) -> Result<(usize, usize), IpcError> {
    let sizes = || {
        let slot_bytes = options.slot_bytes.max(1).checked_next_multiple_of(page_size())?;
        let bytes = slot_bytes.checked_mul(options.slots)?;
        isize::try_from(bytes).is_ok().then_some((slot_bytes, bytes))
    };
    sizes().ok_or_else(|| too_large(options))
}

#[cold]
fn too_large(options: &FeedOptions) -> IpcError {
    let value = format!("{} for each of {} slots", options.slot_bytes, options.slots);
    let reason = "no memory has so many bytes; pass the size of the largest batch (FeedOptions::new)";
    Error::InvalidOption { name: "slot_bytes", value, reason }.into()
}
