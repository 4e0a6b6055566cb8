//! Slots without a feed: who has which.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Pid, WaitOptions, waitpid};
use transship_core::{
    CopyOptions, DType, Device, Layout, MemoryKind, RawMemory, SharedOwner, Tensor, start_copy,
};
use transship_ipc::{ClaimedSlot, IpcError, SlotFiller, SlotLease, Slots};

use crate::exported::pair;
use crate::support::{case, devices, eventually, folder};

const BYTES: usize = 300 << 10;
/// In which whoever has a slot gives it back.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_claim_is_leased_once_and_by_its_number", a_claim_is_leased_once_and_by_its_number),
        case("what_is_claimed_is_taken_back_by_its_owner", what_is_claimed_is_taken_back_by_its_owner),
        case("fillers_never_meet_in_a_slot", fillers_never_meet_in_a_slot),
        case("a_forked_child_gives_no_slot_back", a_forked_child_gives_no_slot_back),
        case("slots_are_copied_from_as_they_lie", slots_are_copied_from_as_they_lie),
        case("bytes_lie_in_one_slot_or_in_none", bytes_lie_in_one_slot_or_in_none),
        case(
            "words_that_make_no_sense_reach_no_other_memory",
            words_that_make_no_sense_reach_no_other_memory,
        ),
        case("memory_of_another_size_is_no_slots", memory_of_another_size_is_no_slots),
        case("more_memory_than_there_is_is_not_asked_for", more_memory_than_there_is_is_not_asked_for),
    ]
}

/// catches: 544-any-claim-is-leased
fn a_claim_is_leased_once_and_by_its_number() {
    let (slots, filler) = made(2);
    let (slot, claim) = filler.claim(owner(1)).unwrap().hand_over();
    assert!(slots.lease(slot, claim ^ 1).is_none());
    assert!(slots.lease(1 - slot, claim).is_none());
    assert!(slots.lease(2, claim).is_none() && slots.lease(usize::MAX, claim).is_none());
    assert!(slots.lease(slot, 0).is_none() && slots.lease(slot, u64::MAX).is_none());
    let lease = slots.lease(slot, claim).unwrap();
    assert!(slots.lease(slot, claim).is_none());
    assert!(slots.lease(slot, u64::MAX).is_none());
    drop(lease);
    assert!(slots.lease(slot, claim).is_none());
    // A later claim of the same slot is another one.
    let further: Vec<_> = (0..2).map(|_| filler.claim(owner(1)).unwrap().hand_over()).collect();
    assert!(filler.claim(owner(1)).is_none());
    assert!(slots.lease(slot, claim).is_none());
    assert!(further.iter().all(|(slot, claim)| slots.lease(*slot, *claim).is_some()));
    assert_eq!(slots.free(), 2);
}

/// catches: 545-leased-slots-are-taken-back
fn what_is_claimed_is_taken_back_by_its_owner() {
    let (slots, filler) = made(5);
    let leased = lease(&slots, filler.claim(owner(7)).unwrap());
    let handed_over = filler.claim(owner(7)).unwrap().hand_over();
    let written = filler.claim(owner(7)).unwrap();
    let others = filler.claim(owner(8)).unwrap();
    drop(filler.claim(owner(7)).unwrap());
    let of_all = filler.claim(owner(u32::MAX)).unwrap();
    assert_eq!((slots.free(), slots.take_back(owner(7)), slots.free()), (0, 2, 2));
    assert!(slots.lease(handed_over.0, handed_over.1).is_none());
    assert_eq!(slots.take_back(owner(7)), 0);
    let again = [filler.claim(owner(9)).unwrap(), filler.claim(owner(9)).unwrap()];
    // It is somebody else's now.
    drop(written);
    assert_eq!(slots.free(), 0);
    drop((again, others, leased));
    assert_eq!((slots.free(), slots.take_back(owner(u32::MAX))), (4, 1));
    drop(of_all);
    assert_eq!(slots.free(), 5);
}

/// catches: 657-across-two-slots
fn bytes_lie_in_one_slot_or_in_none() {
    let (slots, filler) = made(3);
    let claimed: Vec<_> = (0..3).map(|_| filler.claim(owner(1)).unwrap()).collect();
    let leases: Vec<_> = claimed.into_iter().map(|claimed| lease(&slots, claimed)).collect();
    let mut starts: Vec<u64> = leases.iter().map(|lease| lease.memory().address).collect();
    starts.sort_unstable();
    let size = slots.slot_bytes();
    for start in &starts {
        for (offset, bytes) in [(0, 0), (0, size), (1, size - 1), (size as u64 - 1, 1)] {
            assert_eq!(slots.slot_of(start + offset, bytes), Some(*start), "{offset}, {bytes}");
        }
        for (offset, bytes) in [(0, size + 1), (1, size), (size as u64 - 1, 2), (5, usize::MAX)] {
            assert_eq!(slots.slot_of(start + offset, bytes), None, "{offset}, {bytes}");
        }
    }
    let end = starts[2] + size as u64;
    for address in [0, 1, starts[0] - 1, end, end + 1, u64::MAX] {
        assert_eq!(slots.slot_of(address, 1), None, "{address:#x}");
    }
}

/// Two slots, and four that fill them: what is written meanwhile shows.
///
/// catches: 546-a-slot-is-claimed-without-a-look
fn fillers_never_meet_in_a_slot() {
    const EACH: u64 = 3000;
    let (slots, _) = made(2);
    let (filled, taken) = mpsc::sync_channel(8);
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let (filler, filled) = (filler(&slots), filled.clone());
            scope.spawn(move || {
                for batch in 0..EACH {
                    let begin = Instant::now();
                    let claimed = loop {
                        match filler.claim(owner(number as u32 + 1)) {
                            Some(claimed) => break claimed,
                            None => thread::yield_now(),
                        }
                        assert!(begin.elapsed() < PATIENCE, "no slot is given back");
                    };
                    let word = number << 32 | batch;
                    write(claimed.memory(), word);
                    thread::yield_now();
                    assert_eq!(read(claimed.memory()), word);
                    filled.send((claimed.hand_over(), word)).unwrap();
                }
            });
        }
        drop(filled);
        let mut count = 0;
        for ((slot, claim), word) in taken {
            let lease = slots.lease(slot, claim).unwrap();
            assert_eq!(read(lease.memory()), word);
            thread::yield_now();
            assert_eq!(read(lease.memory()), word);
            count += 1;
        }
        assert_eq!(count, 4 * EACH);
    });
    assert_eq!(slots.free(), 2);
}

/// catches: 547-a-forked-child-gives-slots-back, 658-a-forked-child-gives-claims-back
fn a_forked_child_gives_no_slot_back() {
    let (slots, filler) = made(2);
    let lease = lease(&slots, filler.claim(owner(1)).unwrap());
    let claimed = filler.claim(owner(1)).unwrap();
    // SAFETY: the child drops what needs no lock and no thread, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop((lease, claimed));
            // SAFETY: it ends the process, and runs nothing else of it.
            unsafe { libc::_exit(0) }
        }
        child => assert!(waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().is_some()),
    }
    assert!(slots.free() == 0 && filler.claim(owner(1)).is_none());
    drop((lease, claimed));
    assert_eq!(slots.free(), 2);
}

/// One slot, and a device that copies as late as it may.
fn slots_are_copied_from_as_they_lie() {
    let [host, late] = devices();
    let (slots, filler) = made(1);
    slots.page_lock(late).unwrap();
    slots.page_lock(late).unwrap();
    let kind = slots.kind();
    for number in 0..5_u8 {
        eventually("the slot is free", || slots.free() == 1);
        let claimed = filler.claim(owner(1)).unwrap();
        let start = std::ptr::with_exposed_provenance_mut::<u8>(claimed.memory().address as usize);
        // SAFETY: the slot is this filler's, and has so many bytes.
        unsafe { start.write_bytes(number, BYTES) };
        let lease = lease(&slots, claimed);
        assert!(slots.contains(lease.memory().address, slots.slot_bytes()));
        assert!(!slots.contains(lease.memory().address + 1, slots.slot_bytes()));
        assert_eq!(lease.memory().kind, kind);
        let memory = RawMemory::new(lease.memory().address, BYTES, kind);
        let owner = SharedOwner::new(lease, host);
        let layout = Layout::contiguous(DType::U8, &[BYTES]).unwrap();
        // SAFETY: the owner has the lease, which keeps the memory.
        let tensor: Tensor = unsafe { owner.tensor_over_shared(memory, layout) }.unwrap();
        drop(owner);
        let there = start_copy(tensor, late, CopyOptions::default()).unwrap().wait().unwrap();
        let back = start_copy(there, host, CopyOptions::default()).unwrap().wait().unwrap();
        assert!(back.as_slice::<u8>().unwrap().iter().all(|byte| *byte == number));
    }
}

/// A filler that means harm writes all of the words.
fn words_that_make_no_sense_reach_no_other_memory() {
    for word in [0, 1, 1 << 32, u64::MAX, u64::MAX - 1] {
        let (slots, filler) = made(3);
        let lease = lease(&slots, filler.claim(owner(1)).unwrap());
        let copy = slots.descriptor().try_clone_to_owned().unwrap();
        for at in 0..4 {
            rustix::io::pwrite(&copy, &u64::to_ne_bytes(word), at * 8).unwrap();
        }
        assert!(slots.free() <= 3);
        let mut leased = Vec::new();
        while let Some(claimed) = filler.claim(owner(1)) {
            write(claimed.memory(), 7);
            let (slot, claim) = claimed.hand_over();
            let lease = slots.lease(slot, claim).unwrap();
            assert!(slots.contains(lease.memory().address, slots.slot_bytes()));
            assert_eq!(read(lease.memory()), 7);
            leased.push(lease);
        }
        assert!(slots.take_back(owner(1)) <= 3);
        assert!(slots.lease(0, word).is_none() || (1..u64::MAX).contains(&word));
        drop(lease);
    }
}

/// Without the look before, the system gives all the memory of the machine, and ends processes then.
fn more_memory_than_there_is_is_not_asked_for() {
    let error = Slots::new(1 << 46, 1).err().unwrap();
    let IpcError::System { error, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("70368744181760 bytes are asked for"), "{error}");
    let (_folder, path) = folder();
    let (mut connection, _importer) = pair(&path, &Device::host());
    let broadcast = Tensor::from(vec![1_u8]).as_strided(&[1 << 46], &[0], 0).unwrap();
    let error = connection.export(&vec![broadcast]).err().unwrap();
    assert!(matches!(error, IpcError::System { .. }), "{error}");
}

fn memory_of_another_size_is_no_slots() {
    let (slots, _) = made(2);
    let of = |bytes, count| SlotFiller::of(slots.descriptor(), bytes, count).err();
    assert!(matches!(of(BYTES, 3), Some(IpcError::Protocol { .. })));
    assert!(matches!(of(BYTES * 2, 2), Some(IpcError::Protocol { .. })));
    for (bytes, count) in [(BYTES, 0), (BYTES, usize::MAX), (usize::MAX, 2), (usize::MAX / 2, 2)] {
        assert!(matches!(of(bytes, count), Some(IpcError::Tensors(_))));
        assert!(matches!(Slots::new(bytes, count), Err(IpcError::Tensors(_))));
    }
    let none = of(BYTES, 0).unwrap().to_string();
    assert!(none.contains("option slots cannot be 0"), "{none}");
    let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, 1 << 20).unwrap();
    assert!(matches!(SlotFiller::of(&unsealed, 4096, 1), Err(IpcError::Protocol { .. })));
    assert!(SlotFiller::of(File::open("/dev/null").unwrap().as_fd(), 4096, 1).is_err());
}

fn made(slots: usize) -> (Arc<Slots>, SlotFiller) {
    let slots = Arc::new(Slots::new(BYTES, slots).unwrap());
    assert_eq!(slots.kind(), MemoryKind::Pageable);
    let filler = filler(&slots);
    (slots, filler)
}

fn filler(slots: &Slots) -> SlotFiller {
    SlotFiller::of(slots.descriptor(), BYTES, slots.slots()).unwrap()
}

fn lease(slots: &Arc<Slots>, claimed: ClaimedSlot) -> SlotLease {
    let (slot, claim) = claimed.hand_over();
    slots.lease(slot, claim).unwrap()
}

fn owner(number: u32) -> NonZero<u32> {
    NonZero::new(number).unwrap()
}

fn write(memory: RawMemory, word: u64) {
    let start = std::ptr::with_exposed_provenance_mut::<u64>(memory.address as usize);
    // SAFETY: the slot begins there, on a page.
    unsafe { start.write_volatile(word) };
}

fn read(memory: RawMemory) -> u64 {
    let start = std::ptr::with_exposed_provenance::<u64>(memory.address as usize);
    // SAFETY: as above.
    unsafe { start.read_volatile() }
}
