//! Slots behind a word for each, in memory that several processes map. The words say who has which slot.

use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::param::page_size;
use transship_core::{DeviceId, Error};

use crate::error::IpcError;
use crate::mapping::Mapping;

const WORD: usize = size_of::<u64>();
/// In the word of a slot that nobody has.
const FREE: u64 = 0;
/// In the word of a slot that was handed over. A claim has less than 32 bits behind its owner, and is another number.
const LEASED: u64 = u64::MAX;

/// The first word counts claims, and one follows for each slot. The slots begin on the next page, and are whole pages.
pub(crate) struct SlotMemory {
    pub(crate) mapping: Arc<Mapping>,
    head: usize,
    slot_bytes: usize,
    slots: usize,
}

impl SlotMemory {
    /// New memory, in which all slots are free.
    pub(crate) fn new(slot_bytes: usize, slots: usize) -> Result<(Self, OwnedFd), IpcError> {
        let (head, slot_bytes, bytes) = sizes(slot_bytes, slots)?;
        let (mapping, descriptor) = Mapping::new("transship-slots", bytes)?;
        Ok((Self { mapping: Arc::new(mapping), head, slot_bytes, slots }, descriptor))
    }

    /// The same memory in another process. Fails unless it is as large as that.
    pub(crate) fn of(memory: impl AsFd, slot_bytes: usize, slots: usize) -> Result<Self, IpcError> {
        let (head, slot_bytes, bytes) = sizes(slot_bytes, slots)?;
        let mapping = Mapping::of(memory, bytes)?;
        Ok(Self { mapping: Arc::new(mapping), head, slot_bytes, slots })
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Where a slot lies; `None` if there is no such slot.
    pub(crate) fn start(&self, slot: usize) -> Option<NonNull<u8>> {
        let at = slot.checked_mul(self.slot_bytes)?.checked_add(self.head)?;
        self.mapping.at(at, self.slot_bytes).filter(|_| slot < self.slots)
    }

    /// Takes a free slot, and gives the word of the claim; `None` if there is none.
    pub(crate) fn claim(&self, owner: NonZero<u32>) -> Option<(usize, u64)> {
        let ticket = self.word(0)?.fetch_add(1, Ordering::Relaxed);
        let claim = u64::from(owner.get()) << 32 | ticket & u64::from(u32::MAX >> 1);
        // Each begins elsewhere, so that they seldom meet.
        let first = usize::try_from(ticket % self.slots.max(1) as u64).ok()?;
        let free = |slot: &usize| self.swap(*slot, FREE, claim);
        (first..self.slots).chain(0..first).find(free).map(|slot| (slot, claim))
    }

    /// Whether the slot had this claim. It is free then.
    pub(crate) fn give_up(&self, slot: usize, claim: u64) -> bool {
        claim != FREE && claim != LEASED && self.swap(slot, claim, FREE)
    }

    /// Whether the slot had this claim. It is leased then.
    pub(crate) fn lease(&self, slot: usize, claim: u64) -> bool {
        claim != FREE && claim != LEASED && self.swap(slot, claim, LEASED)
    }

    /// Lets a slot that was leased be claimed again.
    pub(crate) fn give_back(&self, slot: usize) {
        self.swap(slot, LEASED, FREE);
    }

    /// Frees what `owner` has claimed and not handed over, and says how many slots that were.
    pub(crate) fn take_back(&self, owner: NonZero<u32>) -> usize {
        let is_claimed = |slot: &usize| {
            let word = self.slot_word(*slot).map_or(FREE, |word| word.load(Ordering::Relaxed));
            word >> 32 == u64::from(owner.get()) && self.give_up(*slot, word)
        };
        (0..self.slots).filter(is_claimed).count()
    }

    /// How many slots nobody has at this moment.
    pub(crate) fn free(&self) -> usize {
        let is_free =
            |slot: &usize| self.slot_word(*slot).is_some_and(|word| word.load(Ordering::Relaxed) == FREE);
        (0..self.slots).filter(is_free).count()
    }

    /// What was written and read of the slot before comes before what the next one does with it.
    fn swap(&self, slot: usize, from: u64, to: u64) -> bool {
        let swapped = |word: &AtomicU64| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        self.slot_word(slot).is_some_and(|word| swapped(word).is_ok())
    }

    fn slot_word(&self, slot: usize) -> Option<&AtomicU64> {
        if slot < self.slots { self.word(slot.checked_add(1)?) } else { None }
    }

    fn word(&self, number: usize) -> Option<&AtomicU64> {
        let end = number.checked_add(1)?.checked_mul(WORD)?;
        let start = self.mapping.at(end - WORD, WORD).filter(|_| end <= self.head)?;
        // SAFETY: `at` has checked the range, which is a multiple of a word behind the start of a page, and mapped as long as `self` is there. Words
        // lie before the slots, and every process touches them as atomics only; one that breaks this changes what they say.
        Some(unsafe { AtomicU64::from_ptr(start.as_ptr().cast()) })
    }
}

/// Bytes before the slots, of a slot and of all. Fails for no slots, and for more than memory can have.
fn sizes(slot_bytes: usize, slots: usize) -> Result<(usize, usize, usize), IpcError> {
    if slots == 0 {
        let (value, reason) = ("0".to_owned(), "there is at least one");
        return Err(Error::InvalidOption { name: "slots", value, reason }.into());
    }
    let sizes = || {
        let head = slots.checked_add(1)?.checked_mul(WORD)?.checked_next_multiple_of(page_size())?;
        let slot_bytes = slot_bytes.max(1).checked_next_multiple_of(page_size())?;
        let bytes = slot_bytes.checked_mul(slots)?.checked_add(head)?;
        isize::try_from(bytes).is_ok().then_some((head, slot_bytes, bytes))
    };
    sizes().ok_or_else(|| too_large(slot_bytes.saturating_mul(slots)))
}

#[cold]
fn too_large(requested: usize) -> IpcError {
    let limit = isize::MAX.unsigned_abs();
    Error::TooLarge { device: DeviceId::HOST, kind: "host", requested, limit }.into()
}
