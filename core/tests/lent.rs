//! Memory that somebody else allocated: lent to be read or written, with an owner each or one for all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use support::{bytes_of, eventually, late, no_violations, on, two, with};
use transship_core::backend::Ticket;
use transship_core::{
    Alignment, CopyOptions, DType, Device, Error, Layout, MemoryKind, RawMemory, SharedOwner, StreamPriority,
    Tensor, start_copy, start_copy_into,
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

/// By way of staging blocks: whose driver has page-locked it is not known.
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

/// Deliberate bugs: what is page-locked for one device is written by another one; it is staged all the same.
///
/// catches: 686-lent-memory-is-written-by-any-device, 687-page-locked-memory-is-staged
#[test]
fn results_come_down_straight_into_memory_that_is_page_locked_for_their_device() {
    let config = LateConfig { gather: Some(24), ..LateConfig::new("late") };
    let (late, device, other) = two(config);
    for count in [8, 3 << 20] {
        for (locked_for, is_staged) in [(&device, false), (&other, true), (&Device::host(), true)] {
            let mut theirs = vec![0_u8; count];
            let memory = memory_of(&mut theirs, MemoryKind::Pinned);
            // SAFETY: nobody else touches it before the tensor has gone; these devices write to all memory of the host.
            let held = unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[count], DType::U8, locked_for) };
            let held = held.unwrap();
            assert!(held.device_id().unwrap().is_host());
            let there = on(&device, &vec![6; count]);
            let (held, report) = start_copy_into(there, held, options()).unwrap().wait_with_report().unwrap();
            assert_eq!(report.pinned_staging_bytes > 0, is_staged, "{report}");
            drop(held);
            assert_eq!(theirs, vec![6; count]);
        }
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

/// Pieces of `whole`, each at an offset and with so many bytes, with one owner.
fn pieces_of(whole: &Tensor, device: &Device, places: &[(u64, usize)]) -> Vec<Tensor> {
    let address = whole.address().unwrap().unwrap();
    let piece = |&(start, count): &(u64, usize)| {
        (RawMemory::new(address + start, count, MemoryKind::Device), bytes(count))
    };
    let owner = SharedOwner::new(whole.clone(), device);
    // SAFETY: `owner` keeps the memory alive, and nobody writes to it.
    unsafe { owner.tensors(places.iter().map(piece)) }.unwrap()
}

/// catches: 502-each-piece-asked-about
#[test]
fn pieces_of_one_allocation_are_lent_at_once() {
    let (late, device) = late();
    let content: Vec<u8> = (0..200).collect();
    let (first, second) = (on(&device, &content), on(&device, &[7; 50]));
    let places: Vec<(u64, usize)> = (0..50).map(|number| ((49 - number) * 4, 3)).collect();
    late.clear_calls();
    let pieces = pieces_of(&first, &device, &places);
    let calls = |call| late.calls().iter().filter(|record| record.call == call).count();
    assert_eq!((calls(Call::AllocationOf), calls(Call::Wrap)), (1, 1));
    assert!(pieces[0].shares_memory_with(&pieces[49]));
    for (piece, (start, count)) in pieces.iter().zip(&places) {
        assert_eq!(bytes_of(piece), content[*start as usize..][..*count]);
    }
    drop(first);
    assert_eq!(bytes_of(&pieces[3]), [184, 185, 186], "a piece keeps the memory");
    let alone = pieces_of(&second, &device, &[(10, 5)]);
    assert_eq!((bytes_of(&alone[0]), alone[0].retained_bytes()), (vec![7; 5], 5));
    drop((pieces, second, alone));
    device.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 503-gaps-between-pieces-are-read
#[test]
fn what_lies_between_pieces_is_not_read() {
    let (late, device) = late();
    let whole = on(&device, &(0..64).collect::<Vec<u8>>());
    let down = |tensors: Vec<Tensor>| {
        let before = device.counters();
        let there = start_copy(tensors, &Device::host(), options().packed_alignment(16));
        let there = there.unwrap().wait().unwrap();
        assert_eq!((bytes_of(&there[0]), bytes_of(&there[1])), (vec![0, 1, 2], vec![16, 17, 18, 19]));
        device.counters().bytes_down - before.bytes_down
    };
    // Its own memory is read over the gap, which is as wide in the results.
    assert_eq!(down(vec![whole.narrow(0, 0, 3).unwrap(), whole.narrow(0, 16, 4).unwrap()]), 20);
    assert_eq!(down(pieces_of(&whole, &device, &[(0, 3), (16, 4)])), 7);
    no_violations(&late);
}

/// catches: 505-streams-not-forgotten
#[test]
fn memory_that_forgets_its_streams_goes_with_its_last_copy() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let whole = on(&device, &[0; 8]);
    let memory = RawMemory::new(whole.address().unwrap().unwrap(), 8, MemoryKind::Device);
    let counted = Arc::new(whole);
    let fill = || {
        // SAFETY: the owner keeps the memory, and nobody else uses it.
        let held =
            unsafe { Tensor::from_raw_mut(memory, Box::new(counted.clone()), &[8], DType::U8, &device) };
        let source = Tensor::from(vec![4_u8; 8]);
        start_copy_into(source, held.unwrap(), options().stream(&stream)).unwrap()
    };
    let filled = fill().wait().unwrap();
    late.stall();
    let other = start_copy(Tensor::from(vec![1_u8; 8]), &device, options().stream(&stream)).unwrap();
    // SAFETY: what the stream does now has nothing to do with the memory.
    unsafe { filled.forget_streams() }.unwrap();
    drop(filled);
    assert_eq!(Arc::strong_count(&counted), 1, "it waits for the stream");

    let filling = fill().wait_on(&stream).unwrap();
    // SAFETY: nothing but the copy uses it.
    unsafe { filling.forget_streams() }.unwrap();
    drop(filling);
    assert_eq!(Arc::strong_count(&counted), 2, "the copy in flight has lost it");
    late.release();
    drop(other.wait().unwrap());
    eventually("the owner has gone", || Arc::strong_count(&counted) == 1);
    drop(counted);
    device.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 504-layouts-of-pieces-not-checked
#[test]
fn a_piece_ends_where_its_owner_says() {
    let (late, device) = late();
    let whole = on(&device, &[1; 64]);
    let address = whole.address().unwrap().unwrap();
    let owner = SharedOwner::new(whole.clone(), &device);
    let lend = |pieces: [(u64, usize, usize); 2]| {
        let piece = |(start, count, elements): (u64, usize, usize)| {
            (RawMemory::new(address + start, count, MemoryKind::Device), bytes(elements))
        };
        // SAFETY: `owner` keeps the memory alive, nobody writes to it, and what is refused is not read.
        unsafe { owner.tensors(pieces.map(piece)) }
    };
    let refused = lend([(0, 4, 5), (8, 8, 8)]).unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
    let refused = lend([(0, 4, 4), (60, 8, 8)]).unwrap_err();
    assert!(matches!(refused, Error::InvalidMemory { .. }), "{refused}");
    assert_eq!(lend([(0, 4, 4), (60, 4, 4)]).unwrap().len(), 2);
    drop((owner, whole));
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

/// Columns of one matrix of the program's, which lie between each other, are filled by one copy; what no part is over is left alone.
///
/// catches: 563-a-part-without-its-offset
#[test]
fn parts_of_one_piece_of_memory_are_filled_by_one_copy() {
    let mut theirs: Vec<u8> = (0..32).collect();
    let memory = memory_of(&mut theirs, MemoryKind::Pageable);
    let column = |offset, width| (offset, Layout::strided(DType::U8, &[4, width], &[8, 1]).unwrap());
    let owner = SharedOwner::new((), &Device::host());
    // SAFETY: nobody else touches it before the tensors have gone.
    let lend = |parts: Vec<(usize, Layout)>| unsafe { owner.parts_mut(memory, parts) };
    let values = || {
        vec![
            Tensor::from_vec(vec![100_u8; 8], &[4, 2]).unwrap(),
            Tensor::from_vec(vec![200_u8; 12], &[4, 3]).unwrap(),
        ]
    };

    let overlapping = lend(vec![column(0, 2), column(1, 3)]).unwrap();
    let refused = start_copy_into(values(), overlapping, options()).unwrap_err().into_error();
    assert!(matches!(refused, Error::UnsuitedTensor { index: 1, .. }));
    assert!(lend(vec![column(6, 3)]).is_err());

    let apart = lend(vec![column(0, 2), column(5, 3)]).unwrap();
    assert!(apart[0].shares_memory_with(&apart[1]));
    drop(start_copy_into(values(), apart, options()).unwrap().wait().unwrap());
    for (row, bytes) in theirs.chunks(8).enumerate() {
        let kept = |column: usize| (row * 8 + column) as u8;
        assert_eq!(bytes, [100, 100, kept(2), kept(3), kept(4), 200, 200, 200]);
    }
}

/// Deliberate bug: what a backend does not take as one range is an error.
#[test]
fn pieces_of_known_allocations_are_lent_by_each_backend() {
    let (late, device) = late();
    let wholes: Vec<_> = (0..20_u8).map(|value| on(&device, &[value; 64])).collect();
    let piece = |whole: &Tensor| {
        let start = whole.address().unwrap().unwrap();
        (start..start + 64, RawMemory::new(start + 4, 8, MemoryKind::Device), bytes(8))
    };
    let known: Vec<_> = wholes.iter().map(piece).collect();
    let owner = SharedOwner::new(wholes.clone(), &device);
    // SAFETY: `owner` keeps the memory alive, nobody writes to it, and all of it is of this device.
    let pieces = unsafe { owner.tensors_of_allocations(known) }.unwrap();
    drop((owner, wholes));
    let down = start_copy(pieces, &Device::host(), options()).unwrap().wait().unwrap();
    for (value, tensor) in down.iter().enumerate() {
        assert_eq!(bytes_of(tensor), [value as u8; 8]);
    }
    device.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 620-lent-pieces-read-before-they-are-filled, 621-lent-memory-read-before-it-is-filled
#[test]
fn what_is_lent_before_it_is_filled_is_waited_for() {
    for in_pieces in [true, false] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let whole = on(&device, &[5; 64]);
        let start = whole.address().unwrap().unwrap();
        let piece = |offset| RawMemory::new(start + offset, 8, MemoryKind::Device);
        let known = |offset| (start..start + 64, piece(offset), bytes(8));
        late.stall_stream(&**stream.backend_stream());
        // Stands for a kernel that fills it.
        let backend = stream.backend_stream().clone();
        let filled = Ticket { position: backend.record().unwrap(), stream: backend };
        let owner = SharedOwner::new(whole, &device).filled_at(filled);
        // SAFETY: `owner` keeps the memory alive, nobody writes to it, and all of it is of this device.
        let lent = unsafe {
            match in_pieces {
                true => owner.tensors_of_allocations([known(4), known(40)]).unwrap(),
                false => vec![owner.tensor(piece(20), bytes(8)).unwrap()],
            }
        };
        drop(owner);
        let copy = start_copy(lent, &Device::host(), options()).unwrap();
        eventually("it is submitted", || copy.report().submitted_after.is_some());
        // More looks than there are operations: whatever may run has run then.
        assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it was read before it was filled");
        late.release();
        assert!(copy.wait().unwrap().iter().all(|tensor| bytes_of(tensor) == [5; 8]));
        device.synchronize().unwrap();
        no_violations(&late);
    }
}

/// Others write it while a device copies it as late as it may: every byte that arrives is an old or a new one.
#[test]
fn memory_that_others_write_is_copied_and_read_in_no_other_way() {
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        let (late, device) = with(LateConfig::new("shared"));
        let mut theirs = vec![1_u8; 300 << 10];
        let memory = memory_of(&mut theirs, kind);
        let owner = Arc::new(());
        let lent = SharedOwner::new(Arc::clone(&owner), &Device::host());
        // SAFETY: the memory stays until the owner has gone, which is seen below.
        let tensor = unsafe { lent.tensor_over_shared(memory, bytes(300 << 10)) }.unwrap();
        drop(lent);
        assert!(matches!(tensor.as_bytes(), Err(Error::SharedMemory)));
        assert!(matches!(tensor.to_bytes(), Err(Error::SharedMemory)));
        assert!(matches!(tensor.narrow(0, 0, 9).unwrap().item::<u8>(), Err(Error::SharedMemory)));
        assert_eq!(tensor.narrow(0, 0, 0).unwrap().as_slice::<u8>().unwrap(), [0; 0]);

        let copy = start_copy(tensor.clone(), &device, options()).unwrap();
        let to_host = start_copy(tensor, &Device::host(), options()).unwrap().wait().unwrap();
        assert_eq!(to_host.as_slice::<u8>().unwrap(), [1; 300 << 10]);
        let there = copy.wait().unwrap();
        assert_eq!(bytes_of(&there), [1; 300 << 10]);
        eventually("the owner has gone", || Arc::strong_count(&owner) == 1);
        no_violations(&late);
    }
}

/// Deliberate bugs: what a peer may write at any time is given out as the result of a copy to where it lies; so is what lies beside it, or is copied with it; a kernel
/// gets it.
///
/// catches: 622-shared-memory-of-a-device-stays
/// catches: 623-what-lies-beside-shared-memory-is-copied
/// catches: 624-a-kernel-gets-shared-memory
#[test]
fn memory_of_a_device_that_others_write_is_copied_and_read_in_no_other_way() {
    let (late, device) = with(LateConfig::new("shared"));
    let theirs = on(&device, &[3; 8]);
    let (address, owner) = (theirs.address().unwrap().unwrap(), Arc::new(()));
    let lent = SharedOwner::new((Arc::clone(&owner), theirs), &device);
    let memory = RawMemory::new(address, 8, MemoryKind::Device);
    // SAFETY: the owner is the tensor that the memory is of; nobody writes there.
    let shared = unsafe { lent.tensor_over_shared(memory, bytes(8)) }.unwrap();
    // SAFETY: as above.
    let beside = unsafe { lent.tensor(memory, bytes(8)) }.unwrap();
    drop(lent);
    assert!(matches!(shared.elements_address::<u8>(), Err(Error::SharedMemory)));
    assert_eq!(beside.elements_address::<u8>().unwrap(), address);

    let pair = vec![shared.clone(), beside];
    let there = start_copy(pair, &device, options()).unwrap().wait().unwrap();
    let addresses: Vec<_> = there.iter().map(|tensor| tensor.elements_address::<u8>().unwrap()).collect();
    assert!(addresses[0] != address && addresses[1] == address, "{addresses:?}, {address}");
    assert_eq!(bytes_of(&there[0]), [3; 8]);
    let down = start_copy(shared, &Device::host(), options()).unwrap().wait().unwrap();
    assert_eq!(down.as_slice::<u8>().unwrap(), [3; 8]);
    drop((there, down));
    device.synchronize().unwrap();
    eventually("the owner has gone", || Arc::strong_count(&owner) == 1);
    no_violations(&late);
}

/// Whoever lends memory orders its use by streams. By way of the host it is read on another stream than the caller's.
///
/// catches: 580-by-way-of-the-host-before-the-callers-stream
#[test]
fn what_goes_by_way_of_the_host_is_read_behind_the_callers_stream() {
    for waits_for_others in [true, false] {
        let config = LateConfig { peers: false, waits_for_others, ..LateConfig::new("late") };
        let (late, source, target) = two(config);
        let theirs = on(&source, &[1; 8]);
        let memory = RawMemory::new(theirs.address().unwrap().unwrap(), 8, MemoryKind::Device);
        let stream_of = |device: &Device| device.create_stream(StreamPriority::Normal).unwrap();
        let (writing, callers) = (stream_of(&source), stream_of(&target));
        // SAFETY: `theirs` keeps the memory; it is written and read in the order of `writing` and `callers`.
        let (written, read) = unsafe {
            let written = Tensor::from_raw_mut(memory, Box::new(theirs.clone()), &[8], DType::U8, &source);
            (written.unwrap(), Tensor::from_raw(memory, Box::new(theirs), &[8], DType::U8, &source).unwrap())
        };
        late.stall_stream(&**writing.backend_stream());
        let write =
            start_copy_into(Tensor::from(vec![2_u8; 8]), written, options().stream(&writing)).unwrap();
        if waits_for_others {
            callers.wait_stream(&writing).unwrap();
        } else {
            late.stall_stream(&**callers.backend_stream());
        }
        let copy = start_copy(read, &target, options().stream(&callers)).unwrap();
        thread::sleep(Duration::from_millis(20));
        late.release_stream(&**writing.backend_stream());
        drop(write.wait().unwrap());
        late.release();
        assert_eq!(bytes_of(&copy.wait().unwrap()), [2; 8], "{waits_for_others}");
        no_violations(&late);
    }
}
