//! Slots that processes fill whose work somebody else hands out: the end of a process that fills them.

use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::process::{Pid, getpid};
use transship_core::{MemoryKind, RawMemory};

use crate::error::IpcError;
use crate::slot_memory::SlotMemory;

/// A process that fills [`Slots`](crate::Slots). It opens no device and starts no thread.
pub struct SlotFiller(Arc<SlotMemory>);

/// A slot that this process writes. Dropped, it is free again; in a process that was forked from that which has claimed it this does nothing.
pub struct ClaimedSlot {
    memory: Arc<SlotMemory>,
    slot: usize,
    claim: u64,
    process: Pid,
}

impl SlotFiller {
    /// Maps the slots that `descriptor` is of, with the sizes that they were made with. The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`IpcError::Protocol`] if it is of no such memory; [`IpcError::System`]; [`IpcError::Tensors`] for sizes that no memory has.
    pub fn of(descriptor: impl AsFd, slot_bytes: usize, slots: usize) -> Result<Self, IpcError> {
        SlotMemory::of(descriptor, slot_bytes, slots).map(Arc::new).map(Self)
    }

    /// A free slot, `None` if there is none. `owner` is by whom it is [taken back](crate::Slots::take_back) should this process die.
    pub fn claim(&self, owner: NonZero<u32>) -> Option<ClaimedSlot> {
        let (slot, claim) = self.0.claim(owner)?;
        Some(ClaimedSlot { memory: Arc::clone(&self.0), slot, claim, process: getpid() })
    }
}

impl ClaimedSlot {
    /// Where it lies: to be written through a raw pointer before it is handed over. It stays mapped as long as this or the filler is there.
    pub fn memory(&self) -> RawMemory {
        let address =
            self.memory.start(self.slot).map_or(0, |start| start.as_ptr().expose_provenance() as u64);
        RawMemory::new(address, self.memory.slot_bytes(), MemoryKind::Pageable)
    }

    /// Leaves the slot to who [leases](crate::Slots::lease) it: with its number, and that of the claim.
    pub fn hand_over(mut self) -> (usize, u64) {
        let handed_over = (self.slot, self.claim);
        self.claim = 0;
        handed_over
    }
}

impl Drop for ClaimedSlot {
    fn drop(&mut self) {
        if self.process == getpid() {
            self.memory.give_up(self.slot, self.claim);
        }
    }
}

impl std::fmt::Debug for SlotFiller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (slots, bytes) = (self.0.slots(), self.0.slot_bytes());
        f.debug_struct("SlotFiller").field("slots", &slots).field("slot_bytes", &bytes).finish()
    }
}

impl std::fmt::Debug for ClaimedSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimedSlot").field("slot", &self.slot).finish()
    }
}
