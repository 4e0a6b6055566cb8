//! Slots that processes fill whose work somebody else hands out: the end of the process that has the GPU.

use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, getpid};
use transship_core::{Device, MemoryKind, RawMemory, Registered};

use crate::error::IpcError;
use crate::locked::lock_for;
use crate::slot_memory::SlotMemory;

/// Slots of memory that other processes fill ([`SlotFiller`](crate::SlotFiller)) and this one copies from: a [`Feed`](crate::Feed) without its socket, for
/// loaders whose numbers come by a queue of their own, such as those of PyTorch.
///
/// A filler claims a slot, writes it, and hands it over: its number and that of the claim come here by whatever way there is. A
/// [lease](Self::lease) makes the slot this process's, until it is dropped. Who has which slot stands in the memory itself. A filler that breaks
/// the rules can spoil the bytes of any slot and the words about it, and nothing beside: whatever reads a slot reads through raw pointers.
///
/// ```
/// use std::num::NonZero;
/// use std::sync::Arc;
/// use transship_ipc::{SlotFiller, Slots};
///
/// let slots = Arc::new(Slots::new(1 << 16, 2)?);
/// let owner = NonZero::new(1).ok_or("0")?;
///
/// // Another process, usually, which has inherited the descriptor.
/// let filler = SlotFiller::of(slots.descriptor(), 1 << 16, 2)?;
/// let claimed = filler.claim(owner).ok_or("none is free")?;
/// let start = claimed.memory().address; // to be written through a raw pointer
/// let (slot, claim) = claimed.hand_over();
///
/// let lease = slots.lease(slot, claim).ok_or("not handed over")?;
/// assert_eq!(slots.free(), 1);
/// drop(lease);
/// assert_eq!(slots.free(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Slots {
    /// What keeps it page-locked. Nothing is read through it.
    registered: OnceLock<Option<Registered>>,
    /// Held by who locks it.
    locking: Mutex<()>,
    memory: SlotMemory,
    descriptor: OwnedFd,
    process: Pid,
}

/// A slot that was handed over. Dropped, it may be claimed again; in a process that was forked from that of the slots this does nothing.
pub struct SlotLease {
    slots: Arc<Slots>,
    slot: usize,
}

impl Slots {
    /// `slots` slots of `slot_bytes` bytes each, rounded up to pages. All of the memory is there from now on.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if there is not so much; [`IpcError::Tensors`] if there are no slots, or more than any memory has room for.
    pub fn new(slot_bytes: usize, slots: usize) -> Result<Self, IpcError> {
        let (memory, descriptor) = SlotMemory::new(slot_bytes, slots)?;
        Ok(Self {
            registered: OnceLock::new(),
            locking: Mutex::new(()),
            memory,
            descriptor,
            process: getpid(),
        })
    }

    /// What fillers map. It is closed where this process starts another program; one that is forked has it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Page-locks the slots for `device`, once: a second call does nothing. Devices that lock no memory of others stage what lies here. Takes
    /// milliseconds for each 100 MiB.
    ///
    /// # Errors
    ///
    /// [`IpcError::Tensors`] with what the driver says.
    pub fn page_lock(&self, device: &Device) -> Result<(), IpcError> {
        let _alone = self.locking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.registered.get().is_none() {
            let mapping = &self.memory.mapping;
            let registered = lock_for(device, mapping, Arc::clone(mapping))?;
            let _ = self.registered.set(registered);
        }
        Ok(())
    }

    /// Which kind of memory the slots are now.
    pub fn kind(&self) -> MemoryKind {
        let registered = self.registered.get().and_then(Option::as_ref);
        registered.map_or(MemoryKind::Pageable, Registered::memory_kind)
    }

    /// Takes over the slot that was handed over with this claim; `None` if it was not, or was taken over or [taken back](Self::take_back) since.
    pub fn lease(self: &Arc<Self>, slot: usize, claim: u64) -> Option<SlotLease> {
        let is_leased = self.memory.lease(slot, claim);
        is_leased.then(|| SlotLease { slots: Arc::clone(self), slot })
    }

    /// Frees what fillers claimed for `owner` and nobody has leased, and says how many slots that were. To be called once none of these
    /// fillers writes any more: a slot that is still written would be somebody else's meanwhile.
    pub fn take_back(&self, owner: NonZero<u32>) -> usize {
        self.memory.take_back(owner)
    }

    /// How many slots nobody has at this moment.
    pub fn free(&self) -> usize {
        self.memory.free()
    }

    /// The size of a slot, in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    /// How many there are.
    pub fn slots(&self) -> usize {
        self.memory.slots()
    }

    /// Whether all of these bytes lie in one of the slots.
    pub fn contains(&self, address: u64, bytes: usize) -> bool {
        self.slot_of(address, bytes).is_some()
    }

    /// The address of the slot that all of these bytes lie in; `None` if they lie in none.
    pub fn slot_of(&self, address: u64, bytes: usize) -> Option<u64> {
        let first = self.memory.start(0)?.as_ptr().addr() as u64;
        let size = self.memory.slot_bytes() as u64;
        let slot = address.checked_sub(first)?.checked_div(size)?;
        let start = slot.checked_mul(size)?.checked_add(first)?;
        let is_within = address.checked_add(bytes as u64)? <= start.checked_add(size)?;
        (slot < self.memory.slots() as u64 && is_within).then_some(start)
    }
}

impl SlotLease {
    /// The memory of the slot, which fillers map too: it is read through raw pointers, until this is dropped.
    pub fn memory(&self) -> RawMemory {
        let start = self.slots.memory.start(self.slot);
        let address = start.map_or(0, |start| start.as_ptr().expose_provenance() as u64);
        RawMemory::new(address, self.slots.slot_bytes(), self.slots.kind())
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if self.slots.process == getpid() {
            self.slots.memory.give_back(self.slot);
        }
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (slots, bytes) = (self.slots(), self.slot_bytes());
        f.debug_struct("Slots").field("slots", &slots).field("slot_bytes", &bytes).finish()
    }
}

impl std::fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotLease").field("slot", &self.slot).finish()
    }
}
