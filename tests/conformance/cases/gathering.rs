//! Many small allocations of a device, copied out of it: by one kernel where the device has one.

use libtest_mimic::Failed;
use transship::{
    Alignment, BackgroundWork, CopyPolicy, CopyReport, DType, Device, Error, MemoryKind, RawMemory,
    SharedOwner, Tensor, start_copy, start_copy_into,
};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(down).needs(OwnMemory),
        case!(down_beside_large_ones).needs(OwnMemory),
        case!(in_parts).needs(OwnMemory),
        case!(few_down).needs(OwnMemory),
        case!(thousands_down).needs(OwnMemory),
        case!(thousands_by_the_callers_thread).needs(OwnMemory),
        case!(much_by_the_callers_thread).needs(OwnMemory),
        case!(thousands_down_with_little_staging).needs(OwnMemory),
        case!(thousands_without_staging).needs(OwnMemory),
        case!(down_to_ordinary_memory).needs(OwnMemory),
        case!(odd_places_down).needs(OwnMemory),
        case!(parts_of_a_few_down).needs(OwnMemory),
        case!(on_the_device).needs(OwnMemory),
        case!(to_another_device).needs(SecondDevice),
        case!(while_the_device_stands_still).needs(OwnMemory),
        case!(pieces_as_one_tensor).needs(OwnMemory),
        case!(pieces_as_one_tensor_to_another_device).needs(SecondDevice),
    ]
}

/// Each in an allocation of its own.
fn scattered(bed: &Bed, tensors: Vec<Tensor>) -> Result<(Vec<Contents>, Vec<Tensor>), Failed> {
    let mut tensors = tensors;
    let expected = Contents::of_all(&mut tensors);
    let (there, _) = bed.copy(tensors, &bed.device, bed.options().packing(false))?;
    Ok((expected, there))
}

fn small(bed: &Bed, count: usize) -> Vec<Tensor> {
    (0..count).map(|index| bed.bytes(index % 300 + 1)).collect()
}

/// Where `places` scattered tensors were read together, a kernel did it, and that all of them; unless the backend chooses itself
/// what a kernel gathers.
fn check(bed: &Bed, report: &CopyReport, places: u64, others: u64) {
    let limits = bed.device.limits();
    match limits.gather {
        Some(_) => assert_eq!((report.gathered, report.copies), (places, others + 1), "{report}"),
        None if limits.copies_at_once > 64 => {
            assert!(report.gathered <= places && report.copies <= places + others, "{report}");
        }
        None => assert_eq!((report.gathered, report.copies), (0, places + others), "{report}"),
    }
}

fn down(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    for _ in 0..3 {
        let (expected, there) = scattered(bed, small(bed, 40))?;
        let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
        check(bed, &report, 40, 0);
        assert_same(&expected, &Contents::of_all(&mut back));
    }
    Ok(())
}

fn down_beside_large_ones(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let mut tensors = small(bed, 20);
    tensors.insert(7, bed.bytes((512 << 10) + 1));
    tensors.push(bed.bytes(1 << 20));
    let (expected, there) = scattered(bed, tensors)?;
    let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
    check(bed, &report, 20, 2);
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// A block of threads copies a part of 32 KiB: whole parts, a byte more or less, and the largest that a kernel copies.
///
/// catches: 725-parts-of-a-range-over-each-other
fn in_parts(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let part = 32 << 10;
    let sizes = [part - 1, part, part + 1, 2 * part, 16 * part - 1, 16 * part];
    let halves = |tensors: &[Tensor]| -> transship::Result<Vec<Tensor>> {
        tensors.iter().map(|tensor| tensor.narrow(0, 0, tensor.numel().div_ceil(2))).collect()
    };
    for _ in 0..2 {
        let tensors: Vec<_> = sizes.iter().map(|bytes| bed.bytes(*bytes)).chain(small(bed, 20)).collect();
        let expected_halves = Contents::of_all(&mut halves(&tensors)?);
        let (expected, there) = scattered(bed, tensors)?;
        let (mut back, report) = bed.copy(there.clone(), &bed.host, bed.options())?;
        let parts = 20 + sizes.iter().map(|bytes| bytes.div_ceil(part) as u64).sum::<u64>();
        assert!(bed.device.limits().gather.is_none() || report.gathered == parts, "{report}");
        assert_same(&expected, &Contents::of_all(&mut back));
        let (mut back, _) = bed.copy(halves(&there)?, &bed.host, bed.options())?;
        assert_same(&expected_halves, &Contents::of_all(&mut back));
    }
    Ok(())
}

fn few_down(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (expected, there) = scattered(bed, small(bed, 3))?;
    let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
    assert_eq!((report.gathered, report.copies), (0, 3), "{report}");
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

fn thousands_down(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (expected, there) = scattered(bed, small(bed, 5000))?;
    let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
    assert!(bed.device.limits().gather.is_none() || report.gathered == 5000, "{report}");
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// Where no worker may come, the caller's thread writes a table of any size: as many copies of their own take several times as long.
///
/// catches: 722-never-by-single-copies
fn thousands_by_the_callers_thread(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let options = bed.options().background(BackgroundWork::Never);
    let all_by_kernel = |report: &CopyReport| bed.device.limits().gather.is_none() || report.gathered == 5000;
    let (expected, there) = scattered(bed, small(bed, 5000))?;
    let (again, report) = bed.copy(there.clone(), &bed.device, options.clone().policy(CopyPolicy::Always))?;
    assert!(all_by_kernel(&report), "{report}");
    assert_same(&expected, &Contents::of_all(&mut bed.down(again)?));
    let (mut back, report) = bed.copy(there, &bed.host, options.clone())?;
    assert!(all_by_kernel(&report), "{report}");
    assert_same(&expected, &Contents::of_all(&mut back));
    // Into ordinary memory, through staging.
    let device = bed.private()?;
    device.set_result_budget(64 << 10)?;
    let (there, _) = bed.copy(back, &device, bed.options().packing(false))?;
    let (mut back, report) = bed.copy(there, &bed.host, options)?;
    assert!(report.pageable_result_bytes > 0 && all_by_kernel(&report), "{report}");
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// The same where the tensors are few and have many bytes: their table is larger than the smallest block.
///
/// catches: 723-never-by-single-copies-where-there-is-much, 727-a-range-has-one-entry
fn much_by_the_callers_thread(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (expected, there) = scattered(bed, (0..220).map(|_| bed.bytes(400 << 10)).collect())?;
    let options = bed.options().background(BackgroundWork::Never).policy(CopyPolicy::Always);
    let (again, report) = bed.copy(there, &bed.device, options)?;
    let parts = 220 * 400_u64.div_ceil(32);
    assert!(bed.device.limits().gather.is_none() || report.gathered == parts, "{report}");
    assert_same(&expected, &Contents::of_all(&mut bed.down(again)?));
    Ok(())
}

/// The table of all places is larger than the budget: smaller ones are made, as far as a block is idle.
fn thousands_down_with_little_staging(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    bed.device.set_staging_budget(64 << 10)?;
    let (expected, there) = scattered(bed, small(bed, 5000))?;
    let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
    assert!(bed.device.limits().gather.is_none() || report.gathered > 0, "{report}");
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// While another copy has the only block, each tensor is a copy of its own, on the caller's thread as well: nothing has to be waited for.
///
/// catches: 724-never-waits-for-a-table
fn thousands_without_staging(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    bed.device.set_staging_budget(64 << 10)?;
    let (expected, there) = scattered(bed, small(bed, 3000))?;
    let options = bed.options().background(BackgroundWork::Never);
    let held = bed.hold();
    let other = start_copy(bed.bytes(100), &bed.device, options.clone())?;
    let again = start_copy(there, &bed.device, options.policy(CopyPolicy::Always))?;
    let is_held = held.holds();
    drop(held);
    let (again, report) = again.wait_with_report()?;
    assert!(!is_held || (report.gathered == 0 && report.copies >= 3000), "{report}");
    assert_same(&expected, &Contents::of_all(&mut bed.down(again)?));
    other.wait()?;
    Ok(())
}

fn down_to_ordinary_memory(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let device = bed.private()?;
    device.set_result_budget(64 << 10)?;
    let mut tensors: Vec<Tensor> = (0..30).map(|_| bed.bytes(5001)).collect();
    let expected = Contents::of_all(&mut tensors);
    let (there, _) = bed.copy(tensors, &device, bed.options().packing(false))?;
    let (mut back, report) = bed.copy(there, &bed.host, bed.options())?;
    assert!(report.pageable_result_bytes > 0, "{report}");
    check(bed, &report, 30, 0);
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// Views that begin and end anywhere.
fn odd_places_down(bed: &Bed) -> Result<(), Failed> {
    let views = |tensors: &[Tensor]| -> transship::Result<Vec<Tensor>> {
        tensors.iter().enumerate().map(|(index, tensor)| tensor.narrow(0, index % 7, 90 + index)).collect()
    };
    let tensors: Vec<Tensor> = (0..30).map(|_| bed.bytes(200)).collect();
    let expected = Contents::of_all(&mut views(&tensors)?);
    let (_, there) = scattered(bed, tensors)?;
    let (mut back, _) = bed.copy(views(&there)?, &bed.host, bed.options())?;
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// Many views of few tensors, which overlap, and some of no bytes.
fn parts_of_a_few_down(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (_, there) = scattered(bed, vec![bed.bytes(5000), bed.bytes(70_001), bed.bytes(1 << 20)])?;
    let (here, _) = bed.copy(there.clone(), &bed.host, bed.options())?;
    let parts = |of: &[Tensor]| -> transship::Result<Vec<Tensor>> {
        let part = |number: usize| of[number % 3].narrow(0, number * 37 % 4001, number * 13 % 700);
        (0..300).map(part).collect()
    };
    let expected = Contents::of_all(&mut parts(&here)?);
    for _ in 0..2 {
        let (mut back, _) = bed.copy(parts(&there)?, &bed.host, bed.options())?;
        assert_same(&expected, &Contents::of_all(&mut back));
    }
    Ok(())
}

fn on_the_device(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (expected, there) = scattered(bed, small(bed, 40))?;
    let always = bed.options().policy(CopyPolicy::Always);
    let (packed, report) = bed.copy(there, &bed.device, always)?;
    check(bed, &report, 40, 0);
    assert_same(&expected, &Contents::of_all(&mut bed.down(packed)?));
    Ok(())
}

fn to_another_device(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (expected, there) = scattered(bed, small(bed, 40))?;
    // The table needs a block of this size, which a small copy takes only where one is idle.
    bed.copy(small(bed, 40), bed.second()?, bed.options())?;
    let (packed, report) = bed.copy(there, bed.second()?, bed.options())?;
    assert!(bed.device.limits().gather.is_none() || report.gathered == 40, "{report}");
    assert_same(&expected, &Contents::of_all(&mut bed.down(packed)?));
    Ok(())
}

/// Tables are not written again before their kernels have read them.
fn while_the_device_stands_still(bed: &Bed) -> Result<(), Failed> {
    let rounds = (0..6).map(|_| scattered(bed, small(bed, 20))).collect::<Result<Vec<_>, _>>()?;
    let held = bed.hold();
    let mut copies = Vec::new();
    for (expected, there) in rounds {
        copies.push((expected, start_copy(there, &Device::host(), bed.options())?));
    }
    drop(held);
    for (expected, copy) in copies {
        assert_same(&expected, &Contents::of_all(&mut copy.wait()?));
    }
    Ok(())
}

/// What lies in `there`, as one tensor with gaps, and what it is. `None` where memory has no addresses, or copies consist of granules.
fn list(bed: &Bed, there: &[Tensor]) -> Result<Option<(Tensor, Vec<u8>)>, Failed> {
    let (here, _) = bed.copy(there.to_vec(), &bed.host, bed.options())?;
    let (mut pieces, mut expected) = (Vec::new(), Vec::new());
    for (number, (piece, here)) in there.iter().zip(here).enumerate() {
        expected.resize(expected.len() + number % 4, 0);
        let memory = RawMemory::new(piece.address()?.unwrap_or(0), piece.nbytes(), MemoryKind::Device);
        pieces.push((memory, expected.len()));
        expected.extend(here.to_bytes()?);
    }
    // SAFETY: the owner keeps the memory, which nobody writes.
    let list = unsafe { SharedOwner::new(there.to_vec(), &bed.device).gathered(pieces) };
    match list {
        Err(Error::Unsupported { .. }) => {
            let has_addresses = there.first().is_some_and(|tensor| matches!(tensor.address(), Ok(Some(_))));
            assert!(!has_addresses || bed.device.limits().copy_granularity != Alignment::ONE);
            Ok(None)
        }
        list => Ok(Some((list?, expected))),
    }
}

/// Small ones and one that no kernel copies.
fn pieces(bed: &Bed) -> Vec<Tensor> {
    let mut tensors = small(bed, 40);
    tensors.insert(17, bed.bytes((512 << 10) + 3));
    tensors
}

fn pieces_as_one_tensor(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (_, there) = scattered(bed, pieces(bed))?;
    let Some((list, expected)) = list(bed, &there)? else { return Ok(()) };
    drop(there);
    let zeros = || Tensor::from(vec![0_u8; expected.len()]);
    let pinned = Tensor::empty_pinned(&[expected.len()], DType::U8, &bed.device)?;
    for into in [zeros(), pinned, bed.up(zeros())?] {
        let is_pinned = into.memory_kind()? == MemoryKind::Pinned;
        let (filled, report) = start_copy_into(list.clone(), into, bed.options())?.wait_with_report()?;
        if is_pinned && bed.device.limits().gather.is_some() {
            assert_eq!((report.gathered, report.copies), (40, 2), "{report}");
        }
        assert!(bed.down(filled)?.to_bytes()? == expected);
    }
    Ok(())
}

fn pieces_as_one_tensor_to_another_device(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let (_, there) = scattered(bed, pieces(bed))?;
    let Some((list, expected)) = list(bed, &there)? else { return Ok(()) };
    drop(there);
    let (into, _) = bed.copy(Tensor::from(vec![0_u8; expected.len()]), bed.second()?, bed.options())?;
    // Pieces only: over the host anything comes between them.
    let filled = bed.down(start_copy_into(list.clone(), into, bed.options())?.wait()?)?.to_bytes()?;
    let here = Tensor::from(vec![0_u8; expected.len()]);
    let here = start_copy_into(list, here, bed.options())?.wait()?.to_bytes()?;
    assert!(here == expected);
    assert!(filled.iter().zip(&expected).all(|(filled, expected)| filled == expected || *expected == 0));
    Ok(())
}
