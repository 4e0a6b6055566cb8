//! Memory that somebody else allocated: lent to be read or written, with an owner each or one for all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::thread;

use late_backend::LateConfig;
use support::{bytes_of, eventually, late, no_violations, on, with};
use transship_core::{
    Alignment, CopyOptions, DType, Device, Error, Layout, MemoryKind, RawMemory, SharedOwner, Tensor,
    start_copy, start_copy_into,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn bytes(count: usize) -> Layout {
    Layout::contiguous(DType::U8, &[count]).unwrap()
}

/// The memory of a vector, which must not be touched by its owner while it is lent.
fn memory_of(bytes: &mut [u8], kind: MemoryKind) -> RawMemory {
    RawMemory::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len(), kind)
}

/// catches: 298-lent-memory-written
#[test]
fn memory_is_written_where_that_was_allowed() {
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        let mut theirs = vec![1_u8; 8];
        let memory = memory_of(&mut theirs, kind);
        // SAFETY: nobody else touches it before the tensors have gone.
        let lend = |writable| unsafe {
            let lend = if writable { Tensor::from_raw_mut } else { Tensor::from_raw };
            lend(memory, Box::new(()), &[8], DType::U8, &Device::host()).unwrap()
        };
        let mut read = lend(false);
        assert!(matches!(read.as_mut_bytes(), Err(Error::NotWritable { why: "lent read-only", .. })));
        assert!(start_copy_into(Tensor::from(vec![2_u8; 8]), read, options()).is_err());

        let written = lend(true);
        assert_eq!(written.memory_kind().unwrap(), kind);
        let mut filled =
            start_copy_into(Tensor::from(vec![2_u8; 8]), written, options()).unwrap().wait().unwrap();
        assert_eq!(filled.as_slice::<u8>().unwrap(), [2; 8]);
        filled.as_mut_bytes().unwrap()[7] = 3;
        let twin = filled.clone();
        assert!(matches!(filled.as_mut_bytes(), Err(Error::NotWritable { .. })));
        drop((filled, twin));
        assert_eq!(theirs, [2, 2, 2, 2, 2, 2, 2, 3]);
    }
}

/// Results come down into it, straight where it is page-locked.
#[test]
fn results_come_down_into_memory_that_may_be_written() {
    let (late, device) = late();
    for (kind, count) in [(MemoryKind::Pageable, 8), (MemoryKind::Pinned, 8), (MemoryKind::Pinned, 3 << 20)] {
        let mut theirs = vec![0_u8; count];
        let memory = memory_of(&mut theirs, kind);
        // SAFETY: nobody else touches it before the tensor has gone.
        let held =
            unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[count], DType::U8, &Device::host()) };
        let there = on(&device, &vec![6; count]);
        drop(start_copy_into(there, held.unwrap(), options()).unwrap().wait().unwrap());
        assert_eq!(theirs, vec![6; count]);
    }
    no_violations(&late);
}

#[test]
fn memory_of_a_device_is_filled_where_that_was_allowed() {
    let (late, device) = late();
    let owner = on(&device, &[0; 8]);
    let memory = RawMemory::new(owner.address().unwrap().unwrap(), 8, MemoryKind::Device);
    // SAFETY: `owner` keeps the memory alive, and nobody else uses it.
    let held = unsafe { Tensor::from_raw_mut(memory, Box::new(owner), &[8], DType::U8, &device) }.unwrap();
    let filled = start_copy_into(Tensor::from(vec![4_u8; 8]), held, options()).unwrap().wait().unwrap();
    assert_eq!(bytes_of(&filled), [4; 8]);
    drop(filled);
    device.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 297-owner-of-many-goes-early, 299-owner-of-many-stays
#[test]
fn one_owner_stays_as_long_as_a_tensor() {
    let mut parts = [vec![1_u8, 2], vec![3], vec![4, 5, 6]];
    let counted = Arc::new(());
    let owner = SharedOwner::new(counted.clone(), &Device::host());
    // SAFETY: the vectors live until the end of the test, and nobody writes to them.
    let lend = |part: &mut Vec<u8>| unsafe {
        owner.tensor(memory_of(part, MemoryKind::Pageable), bytes(part.len())).unwrap()
    };
    let mut tensors: Vec<_> = parts.iter_mut().map(lend).collect();
    drop(owner);
    let last = tensors.pop().unwrap().narrow(0, 1, 2).unwrap();
    assert_eq!(tensors[0].as_slice::<u8>().unwrap(), [1, 2]);
    thread::spawn(|| drop(tensors)).join().unwrap();
    assert_eq!((Arc::strong_count(&counted), last.as_slice::<u8>().unwrap()), (2, &[5, 6][..]));
    drop(last);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn one_owner_waits_for_copies_in_flight() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let mut parts = vec![vec![7_u8; 5]; 20];
    let counted = Arc::new(());
    late.stall();
    let owner = SharedOwner::new(counted.clone(), &Device::host());
    // SAFETY: as above.
    let lend = |part: &mut Vec<u8>| unsafe {
        owner.tensor(memory_of(part, MemoryKind::Pinned), bytes(part.len())).unwrap()
    };
    let tensors: Vec<_> = parts.iter_mut().map(lend).collect();
    let copy = start_copy(tensors, &device, options()).unwrap();
    drop(owner);
    late.release();
    let there = copy.wait().unwrap();
    assert!(there.iter().all(|tensor| bytes_of(tensor) == [7; 5]));
    eventually("the owner has gone", || Arc::strong_count(&counted) == 1);
    no_violations(&late);
}

#[test]
fn ranges_of_a_device_have_one_owner_too() {
    let granularity = Alignment::new(4).unwrap();
    let (late, device) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("late") });
    let whole = on(&device, &(0..16).collect::<Vec<u8>>());
    let address = whole.address().unwrap().unwrap();
    let range = |start: u64, count| RawMemory::new(address + start, count, MemoryKind::Device);
    let owner = SharedOwner::new(whole.clone(), &device);
    // SAFETY: `owner` keeps the memory alive, and nobody else uses it.
    let lend = |start, count| unsafe { owner.tensor_mut(range(start, count), bytes(count)) };
    let refused = lend(0, 3).unwrap_err();
    assert!(matches!(refused, Error::InvalidMemory { bytes: 3, .. }), "{refused}");
    let (first, second) = (lend(0, 4).unwrap(), lend(8, 8).unwrap());
    drop((owner, whole));
    let source = vec![Tensor::from(vec![90_u8; 4]), Tensor::from(vec![91_u8; 8])];
    let filled = start_copy_into(source, vec![first, second], options()).unwrap().wait().unwrap();
    assert_eq!((bytes_of(&filled[0]), bytes_of(&filled[1])), (vec![90; 4], vec![91; 8]));
    drop(filled);
    device.synchronize().unwrap();
    no_violations(&late);
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let owner = SharedOwner::new((), &Device::host());
    // SAFETY: what is refused is not read, and the owner is nobody.
    let lend =
        |address, count, kind, layout| unsafe { owner.tensor(RawMemory::new(address, count, kind), layout) };
    let pageable = MemoryKind::Pageable;
    for (address, count, kind) in [(0, 1, pageable), (8, usize::MAX, pageable), (8, 8, MemoryKind::Device)] {
        assert!(matches!(lend(address, count, kind, bytes(1)), Err(Error::InvalidMemory { .. })));
    }
    assert!(matches!(lend(8, 3, pageable, bytes(4)), Err(Error::OutOfRange { .. })));
    let words = Layout::contiguous(DType::U16, &[1]).unwrap();
    assert!(matches!(lend(9, 2, pageable, words), Err(Error::Misaligned { .. })));
    assert_eq!(lend(0, 0, pageable, bytes(0)).unwrap().as_slice::<u8>().unwrap(), []);
}

/// Once, on this thread, before the error is there.
#[test]
fn what_a_refused_tensor_was_to_lie_in_is_dropped() {
    struct Bytes(Arc<[u8; 5]>);
    impl AsRef<[u8]> for Bytes {
        fn as_ref(&self) -> &[u8] {
            &*self.0
        }
    }
    for shape in [&[4][..], &[usize::MAX, 2]] {
        let theirs = Arc::new([0_u8; 5]);
        assert!(Tensor::from_owner(Bytes(theirs.clone()), DType::U8, shape).is_err());
        assert_eq!(Arc::strong_count(&theirs), 1);
        let memory = RawMemory::new(theirs.as_ptr().expose_provenance() as u64, 3, MemoryKind::Pageable);
        // SAFETY: the owner keeps the memory, and nobody writes to it.
        let refused =
            unsafe { Tensor::from_raw(memory, Box::new(theirs.clone()), shape, DType::U8, &Device::host()) };
        assert!(refused.is_err());
        assert_eq!(Arc::strong_count(&theirs), 1);
    }
}
