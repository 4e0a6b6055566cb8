//! One tensor out of many pieces of memory of a device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use late_backend::{Call, LateConfig};
use support::{bytes_of, eventually, late, no_violations, on, two, with};
use transship_core::backend::Ticket;
use transship_core::{
    Alignment, Cast, CopyOptions, CopyPolicy, DType, Device, Error, MemoryKind, RawMemory, Result,
    SharedOwner, StreamPriority, Tensor, start_copy, start_copy_into,
};

/// Memory of a device: several allocations with known contents.
struct Memory {
    device: Device,
    allocations: Vec<(Tensor, Vec<u8>)>,
}

/// A piece: the number of its allocation, where it begins there, its size, and its offset in the list.
#[derive(Clone, Copy)]
struct Place {
    allocation: usize,
    start: usize,
    bytes: usize,
    to: usize,
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

impl Memory {
    fn new(device: &Device, sizes: &[usize]) -> Arc<Self> {
        let allocation = |(number, bytes): (usize, &usize)| {
            let content: Vec<u8> = (0..*bytes).map(|at| (number * 89 + at * 7 + at / 251) as u8).collect();
            (on(device, &content), content)
        };
        let allocations = sizes.iter().enumerate().map(allocation).collect();
        Arc::new(Self { device: device.clone(), allocations })
    }

    fn raw(&self, place: Place) -> RawMemory {
        let start = self.allocations[place.allocation].0.address().unwrap().unwrap();
        RawMemory::new(start + place.start as u64, place.bytes, MemoryKind::Device)
    }

    fn content(&self, place: Place) -> &[u8] {
        &self.allocations[place.allocation].1[place.start..][..place.bytes]
    }

    /// Each piece where it belongs. Returns what lies between them.
    fn assert_copied(&self, copy: &[u8], places: &[Place]) -> Vec<u8> {
        let (mut end, mut between) = (0, Vec::new());
        for place in places {
            between.extend(&copy[end..place.to]);
            end = place.to + place.bytes;
            assert!(copy[place.to..end] == *self.content(*place), "at {}", place.to);
        }
        assert_eq!(end, copy.len());
        between
    }
}

fn gathered(memory: &Arc<Memory>, places: &[Place]) -> Result<Tensor> {
    // What keeps the memory holds no device.
    let owner: Vec<Tensor> = memory.allocations.iter().map(|(tensor, _)| tensor.clone()).collect();
    let owner = SharedOwner::new((owner, memory.allocations.len()), &memory.device);
    // SAFETY: the owner keeps the memory, which nobody writes.
    unsafe { owner.gathered(places.iter().map(|place| (memory.raw(*place), place.to))) }
}

/// So many pieces in any order, out of three allocations: of many sizes, some of which no kernel copies. With gaps between them, or without.
fn places(count: usize, gaps: bool) -> Vec<Place> {
    let mut end = 0;
    let place = |number: usize| {
        let large = if number % 97 == 50 { 600_000 } else { 0 };
        let bytes = number * 7919 % 5_000 + large;
        let to = end + if gaps { [0, 3, 64][number % 3] } else { 0 };
        end = to + bytes;
        Place { allocation: number % 3, start: number * 3571 % 300_000, bytes, to }
    };
    (0..count).map(place).collect()
}

const SIZES: [usize; 3] = [1 << 20, 950_000, 905_000];

fn kernels() -> LateConfig {
    LateConfig { gather: Some(24), gather_strided: Some(128), ..LateConfig::new("late") }
}

/// All ways from a device: by kernels or not, into page-locked and into ordinary memory, within it, and to another one, which reaches it or not. What lies
/// between the pieces is not written.
///
/// catches: 641-behind-the-end-of-a-range, 688-what-is-between-comes-out-of-a-block
#[test]
fn each_piece_comes_to_its_offset() {
    for (config, peers) in [(kernels(), true), (kernels(), false), (LateConfig::new("late"), true)] {
        let (late, device, other) = two(LateConfig { peers, ..config });
        let memory = Memory::new(&device, &SIZES);
        let places = places(300, true);
        let bytes = places.last().map_or(0, |last| last.to + last.bytes);
        let held = |to: &Device| match to.is_host() {
            true => Tensor::from(vec![200_u8; bytes]),
            false => on(to, &vec![200; bytes]),
        };
        let pinned = || {
            let mut pinned = Tensor::empty_pinned(&[bytes], DType::U8, &device).unwrap();
            pinned.as_mut_slice::<u8>().unwrap().fill(200);
            pinned
        };
        for pinned_staging in [true, false] {
            let all = [pinned(), held(&Device::host()), held(&device), held(&other)];
            for (number, held) in all.into_iter().enumerate() {
                let list = gathered(&memory, &places).unwrap();
                let options = options().pinned_staging(pinned_staging);
                let copy = start_copy_into(list, held, options).unwrap().wait().unwrap();
                let between = memory.assert_copied(&bytes_of(&copy), &places);
                assert!(between.iter().all(|byte| *byte == 200), "to {number}");
            }
        }
        no_violations(&late);
    }
}

/// Deliberate bug: such a list is copied as memory that it has none of.
#[test]
fn a_list_of_nothing_but_gaps_writes_nothing() {
    for peers in [true, false] {
        let (late, device, other) = two(LateConfig { peers, ..kernels() });
        let memory = Memory::new(&device, &[10]);
        let nothing = [Place { allocation: 0, start: 5, bytes: 0, to: 100 }];
        for held in [Tensor::from(vec![200_u8; 100]), on(&device, &[200; 100]), on(&other, &[200; 100])] {
            let copy = start_copy_into(gathered(&memory, &nothing).unwrap(), held, options()).unwrap();
            assert_eq!(bytes_of(&copy.wait().unwrap()), [200; 100]);
        }
        no_violations(&late);
    }
}

/// Its blocks are smaller than it, and segments begin within pieces.
///
/// catches: 640-a-range-read-from-its-start
#[test]
fn a_list_larger_than_a_block_is_cut() {
    for peers in [true, false] {
        let (late, device, other) = two(LateConfig { peers, ..kernels() });
        device.set_staging_budget(64 << 10).unwrap();
        other.set_staging_budget(64 << 10).unwrap();
        let memory = Memory::new(&device, &SIZES);
        let places = places(200, true);
        let bytes = places.last().map_or(0, |last| last.to + last.bytes);
        for held in [Tensor::from(vec![0_u8; bytes]), on(&other, &vec![0; bytes])] {
            let copy = start_copy_into(gathered(&memory, &places).unwrap(), held, options());
            memory.assert_copied(&bytes_of(&copy.unwrap().wait().unwrap()), &places);
        }
        no_violations(&late);
    }
}

/// catches: 642-each-range-asked-about
#[test]
fn a_kernel_makes_all_copies_of_small_pieces() {
    let (late, device) = with(kernels());
    let memory = Memory::new(&device, &SIZES);
    let places: Vec<Place> = places(40, true).into_iter().filter(|place| place.bytes > 0).collect();
    late.clear_calls();
    let list = gathered(&memory, &places).unwrap();
    let calls = |call| late.calls().iter().filter(|record| record.call == call).count();
    assert_eq!((calls(Call::AllocationOf), calls(Call::Wrap)), (3, 3));
    let pinned = Tensor::empty_pinned(&[list.numel()], DType::U8, &device).unwrap();
    let copy = start_copy_into(list, pinned, options()).unwrap();
    let (copy, report) = copy.wait_with_report().unwrap();
    memory.assert_copied(&copy.to_bytes().unwrap(), &places);
    let bytes: usize = places.iter().map(|place| place.bytes).sum();
    assert_eq!((report.leaves, report.alone, report.payload_bytes), (1, 1, copy.nbytes() as u64));
    assert_eq!((report.gathered, report.copied_bytes), (places.len() as u64, bytes as u64));
    assert_eq!(report.submissions, 1);
    no_violations(&late);
}

/// It is beside tensors, some of which have gaps, which other kernels leave out; and parts of it are copied.
#[test]
fn it_is_copied_beside_others_and_in_part() {
    let (late, device) = with(kernels());
    let memory = Memory::new(&device, &SIZES);
    let (places, plain) = (places(40, false), on(&device, &[9; 5_000]));
    let list = gathered(&memory, &places).unwrap();
    let part = |list: &Tensor| list.narrow(0, 4_000, 9_000).unwrap();
    let column = || plain.reshape(&[1_000, 5]).unwrap().narrow(1, 1, 2).unwrap();
    let down = start_copy(
        vec![plain.clone(), column(), part(&list), list.clone(), list],
        &Device::host(),
        options(),
    );
    let down = down.unwrap().wait().unwrap();
    let whole = down[3].to_bytes().unwrap();
    memory.assert_copied(&whole, &places);
    assert_eq!(
        (down[2].to_bytes().unwrap(), down[4].to_bytes().unwrap()),
        (whole[4_000..13_000].to_vec(), whole.clone())
    );
    assert_eq!((down[0].to_bytes().unwrap(), down[1].to_bytes().unwrap()), (vec![9; 5_000], vec![9; 2_000]));
    // To memory with gaps.
    let rows = on(&device, &vec![1; 3 * whole.len()]).slice(0, 0..3 * whole.len(), 3).unwrap();
    let filled =
        start_copy_into(gathered(&memory, &places).unwrap(), rows, options()).unwrap().wait().unwrap();
    assert_eq!(bytes_of(&filled), whole);
    no_violations(&late);
}

/// It is no memory of the device that a tensor could stay in.
#[test]
fn a_copy_on_its_device_is_one() {
    let (late, device) = late();
    let memory = Memory::new(&device, &SIZES);
    let places = places(40, false);
    for policy in [CopyPolicy::IfNeeded, CopyPolicy::Always, CopyPolicy::Compact] {
        let list = gathered(&memory, &places).unwrap();
        assert_eq!(list.address().unwrap(), None);
        let copy = start_copy(list, &device, options().policy(policy)).unwrap().wait().unwrap();
        assert!(copy.address().unwrap().is_some());
        memory.assert_copied(&bytes_of(&copy), &places);
    }
    no_violations(&late);
}

/// catches: 643-gaps-in-new-memory
#[test]
fn what_cannot_be_copied_is_refused() {
    let (late, device) = late();
    let memory = Memory::new(&device, &SIZES);
    let with_gaps = || gathered(&memory, &places(40, true)).unwrap();
    let refused = |tensors: Vec<Tensor>, to: &Device, policy| {
        let failed = start_copy(tensors, to, options().policy(policy)).unwrap_err();
        assert!(
            matches!(failed.error(), Error::UnsuitedTensor { .. } | Error::Unsupported { .. }),
            "{failed}"
        );
        failed.error().to_string()
    };
    let text = refused(vec![with_gaps()], &Device::host(), CopyPolicy::IfNeeded);
    assert!(text.contains("use start_copy_into, or leave no gaps"), "{text}");
    // Behind a tensor that is lent as well, and was looked at.
    let plain = memory.raw(Place { allocation: 0, start: 0, bytes: 100, to: 0 });
    // SAFETY: the owner keeps the memory, which nobody writes.
    let plain = unsafe {
        Tensor::from_raw(plain, Box::new(memory.allocations[0].0.clone()), &[100], DType::U8, &device)
    };
    refused(vec![plain.unwrap(), with_gaps()], &device, CopyPolicy::Always);
    let square = gathered(&memory, &[Place { allocation: 1, start: 5, bytes: 100, to: 0 }]).unwrap();
    let square = square.reshape(&[10, 10]).unwrap().transpose(0, 1).unwrap();
    let text = refused(vec![square], &Device::host(), CopyPolicy::IfNeeded);
    assert!(text.contains("views with strides"), "{text}");

    assert!(matches!(with_gaps().to_bytes(), Err(Error::SharedMemory)));
    let cast = options().cast(Cast::new(DType::U8, DType::U16));
    let failed = start_copy(with_gaps(), &Device::host(), cast).unwrap_err();
    assert!(matches!(failed.error(), Error::SharedMemory), "{}", failed.error());
    let failed = start_copy_into(Tensor::from(vec![1_u8; with_gaps().numel()]), with_gaps(), options());
    assert!(matches!(failed.unwrap_err().error(), Error::UnsuitedTensor { .. }));
    device.synchronize().unwrap();
    no_violations(&late);
}

/// catches: 644-ranges-in-any-order
#[test]
fn pieces_lie_on_its_device() {
    let (late, device, other) = two(LateConfig::new("late"));
    let (memory, elsewhere) = (Memory::new(&device, &[100, 50]), Memory::new(&other, &[100]));
    let place = |allocation, start, bytes, to| Place { allocation, start, bytes, to };
    let first = (memory.raw(place(0, 0, 100, 0)), 0);
    let list = |second: (RawMemory, usize)| {
        // SAFETY: nothing is read, or what the test keeps.
        unsafe { SharedOwner::new((), &device).gathered([first, second]) }
    };
    let beyond = memory.raw(place(1, 40, 11, 0));
    let pinned = RawMemory::new(beyond.address, 5, MemoryKind::Pinned);
    let endless = RawMemory::new(u64::MAX - 2, 5, MemoryKind::Device);
    for (wrong, at) in [
        (beyond, 100),
        (elsewhere.raw(place(0, 0, 10, 0)), 100),
        (pinned, 100),
        (endless, 100),
        (memory.raw(place(1, 0, 5, 0)), 99),
        (memory.raw(place(1, 0, 5, 0)), usize::MAX - 2),
    ] {
        let refused = list((wrong, at)).unwrap_err();
        assert!(matches!(refused, Error::InvalidMemory { .. }), "{wrong:?} at {at}: {refused}");
    }
    assert_eq!(list((memory.raw(place(1, 40, 10, 0)), 100)).unwrap().shape(), [110]);
    // SAFETY: nothing is lent.
    assert_eq!(unsafe { SharedOwner::new((), &device).gathered([]) }.unwrap().shape(), [0]);

    let granularity = Alignment::new(4).unwrap();
    let (_, granular) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("granular") });
    // SAFETY: as above.
    let refused = unsafe { SharedOwner::new((), &granular).gathered([]) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
    drop((memory, elsewhere));
    no_violations(&late);
}

/// What fills the pieces is waited for, and what keeps them goes behind the copy.
///
/// catches: 645-a-list-read-before-it-is-filled
#[test]
fn its_memory_is_kept_and_waited_for() {
    let (late, device) = with(kernels());
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let memory = Memory::new(&device, &SIZES);
    let places: Vec<Place> = places(40, true).into_iter().filter(|place| place.bytes < 600_000).collect();
    let owner = Arc::new(memory.allocations.iter().map(|(tensor, _)| tensor.clone()).collect::<Vec<_>>());
    late.stall_stream(&**stream.backend_stream());
    // Stands for a kernel that fills them.
    let backend = stream.backend_stream().clone();
    let filled = Ticket { position: backend.record().unwrap(), stream: backend };
    let lent = SharedOwner::new(owner.clone(), &device).filled_at(filled);
    // SAFETY: the owner keeps the memory, which nobody writes.
    let list = unsafe { lent.gathered(places.iter().map(|place| (memory.raw(*place), place.to))) }.unwrap();
    drop(lent);
    let pinned = Tensor::empty_pinned(&[list.numel()], DType::U8, &device).unwrap();
    let copy = start_copy_into(list, pinned, options()).unwrap();
    eventually("it is submitted", || copy.report().submitted_after.is_some());
    assert!((0..64).all(|_| !copy.is_ready().unwrap()), "it was read before it was filled");
    assert!(Arc::strong_count(&owner) > 1, "the memory is not kept");
    late.release();
    memory.assert_copied(&copy.wait().unwrap().to_bytes().unwrap(), &places);
    eventually("the owner goes", || Arc::strong_count(&owner) == 1);
    device.synchronize().unwrap();
    no_violations(&late);
}

/// A handle that was dropped, and a submission that fails.
#[test]
fn a_copy_that_does_not_end_keeps_its_memory_as_long_as_it_must() {
    let (late, device) = with(kernels());
    let memory = Memory::new(&device, &SIZES);
    let places = places(40, true);
    let bytes = places.last().map_or(0, |last| last.to + last.bytes);
    let owner = Arc::new(memory.allocations.iter().map(|(tensor, _)| tensor.clone()).collect::<Vec<_>>());
    let list = || {
        let owner = SharedOwner::new(owner.clone(), &device);
        // SAFETY: the owner keeps the memory, which nobody writes.
        unsafe { owner.gathered(places.iter().map(|place| (memory.raw(*place), place.to))) }.unwrap()
    };
    let pinned = || Tensor::empty_pinned(&[bytes], DType::U8, &device).unwrap();
    let warm = start_copy_into(list(), pinned(), options()).unwrap().wait().unwrap();
    eventually("the owner goes", || Arc::strong_count(&owner) == 1);
    late.stall();
    drop(start_copy_into(list(), pinned(), options()).unwrap());
    assert!(Arc::strong_count(&owner) > 1, "the memory is not kept");
    late.release();
    eventually("the owner goes", || Arc::strong_count(&owner) == 1);

    late.fail_next(Call::Submit, 0);
    match start_copy_into(list(), warm, options()) {
        Ok(copy) => drop(copy.wait().unwrap_err()),
        Err(failed) => assert_eq!(failed.into_both().0.unwrap().numel(), bytes),
    }
    eventually("the owner goes", || Arc::strong_count(&owner) == 1);
    device.synchronize().unwrap();
    no_violations(&late);
}
