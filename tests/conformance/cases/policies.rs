//! What is copied at all: residents, aliases, copy policies, sources on several devices.

use libtest_mimic::Failed;
use transship::{CopyOptions, CopyPolicy, Error, Tensor, start_copy};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(residents_stay),
        case!(always_copies_residents),
        case!(compact_takes_small_tensors_out_of_large_chunks),
        case!(never_lets_residents_stay),
        case!(never_refuses_others).needs(OwnMemory),
        case!(aliases_stay_aliases),
        case!(other_views_of_the_same_memory_are_no_aliases),
        case!(host_and_device_in_one_structure).needs(OwnMemory),
        case!(three_sources_in_one_structure).needs(SecondDevice),
        case!(from_one_device_to_another).needs(SecondDevice),
        case!(large_from_one_device_to_another).needs(SecondDevice),
    ]
}

fn residents_stay(bed: &Bed) -> Result<(), Failed> {
    let before = bed.up(bed.batch(10))?;
    let (after, report) = bed.copy(before.clone(), &bed.device, CopyOptions::default())?;
    assert_eq!((report.resident, report.copies, report.chunks), (10, 0, 0));
    for (before, after) in before.iter().zip(&after) {
        assert!(before.shares_memory_with(after));
        assert_eq!(before.address()?, after.address()?);
    }
    Ok(())
}

fn always_copies_residents(bed: &Bed) -> Result<(), Failed> {
    let mut sent = bed.batch(10);
    let expected = Contents::of_all(&mut sent);
    let before = bed.up(sent)?;
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let (after, report) = bed.copy(before.clone(), &bed.device, options)?;
    assert_eq!(report.resident, 0);
    for (before, after) in before.iter().zip(&after) {
        assert!(!before.shares_memory_with(after));
    }
    assert_same(&expected, &Contents::of_all(&mut bed.down(after)?));
    assert_same(&expected, &Contents::of_all(&mut bed.down(before)?));
    Ok(())
}

fn compact_takes_small_tensors_out_of_large_chunks(bed: &Bed) -> Result<(), Failed> {
    let sent = (bed.bytes(100), bed.bytes(10_000));
    let expected = [Contents::of(&sent.0), Contents::of(&sent.1)];
    let (small, large) = bed.up(sent)?;
    assert!(small.shares_memory_with(&large) && small.retained_bytes() >= 10_100);
    let options = CopyOptions::default().policy(CopyPolicy::Compact);
    let (after, report) = bed.copy((small.clone(), large.clone()), &bed.device, options)?;
    assert_eq!((report.resident, report.alone), (1, 1), "{report}");
    assert!(after.1.shares_memory_with(&large), "it is most of its chunk");
    assert!(after.0.retained_bytes() <= 200, "it keeps {} bytes alive", after.0.retained_bytes());
    drop((small, large));
    let (small, large) = bed.down(after)?;
    assert_same(&expected, &[Contents::of(&small), Contents::of(&large)]);
    Ok(())
}

fn never_lets_residents_stay(bed: &Bed) -> Result<(), Failed> {
    let before = bed.up(bed.bytes(100))?;
    let options = CopyOptions::default().policy(CopyPolicy::Never);
    let (after, _) = bed.copy(before.clone(), &bed.device, options)?;
    assert!(before.shares_memory_with(&after));
    Ok(())
}

fn never_refuses_others(bed: &Bed) -> Result<(), Failed> {
    let mut sent = (bed.batch(5), bed.up(bed.bytes(9))?, String::from("kept"));
    let expected = Contents::of_all(&mut sent.0);
    let addresses: Vec<_> = sent.0.iter().map(Tensor::address).collect::<Result<_, _>>()?;
    let options = CopyOptions::default().policy(CopyPolicy::Never);
    let failed = start_copy(sent, &bed.device, options.clone()).expect_err("the host is somewhere else");
    let words = format!(
        "cannot move tensor from host to {} without copying; allow copying to do so",
        bed.device.id()
    );
    assert_eq!(failed.error().to_string(), words);
    let mut back = failed.into_value().expect("the structure comes back");
    assert_same(&expected, &Contents::of_all(&mut back.0));
    assert_eq!(back.0.iter().map(Tensor::address).collect::<Result<Vec<_>, _>>()?, addresses);
    assert_eq!((back.1.device_id()?, back.2.as_str()), (bed.device.id(), "kept"));

    let failed = start_copy(back.1, &bed.host, options).expect_err("and the other way round");
    assert!(
        matches!(failed.error(), Error::NeverCopy { from, to } if *from == bed.device.id() && to.is_host())
    );
    bed.still_works()
}

fn aliases_stay_aliases(bed: &Bed) -> Result<(), Failed> {
    for bytes in [100, 1 << 20] {
        let tensor = bed.bytes(bytes);
        let expected = Contents::of(&tensor);
        let sent = (tensor.clone(), bed.bytes(50), vec![tensor.clone(), tensor]);
        let (there, up) = bed.copy(sent, &bed.device, bed.options())?;
        assert_eq!((up.aliased, up.payload_bytes), (2, bytes as u64 + 50));
        let (back, down) = bed.copy(there, &bed.host, bed.options())?;
        assert_eq!((down.aliased, down.payload_bytes), (2, bytes as u64 + 50));
        for alias in &back.2 {
            assert!(alias.shares_memory_with(&back.0));
            assert_eq!(alias.address()?, back.0.address()?);
        }
        assert_ne!(back.1.address()?, back.0.address()?);
        assert_same(&[expected], &[Contents::of(&back.2[1])]);
    }
    Ok(())
}

fn other_views_of_the_same_memory_are_no_aliases(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(transship::DType::F32, &[8, 8]);
    let views =
        vec![tensor.clone(), tensor.transpose(0, 1)?, tensor.narrow(0, 0, 4)?, tensor.narrow(0, 4, 4)?];
    let trip = bed.round_trip(views, bed.options())?;
    assert_eq!(trip.up.aliased, 0);
    Ok(())
}

fn host_and_device_in_one_structure(bed: &Bed) -> Result<(), Failed> {
    let mut sent = (bed.batch(5), bed.batch(5), bed.bytes(1 << 20));
    let expected = Contents::of_all(&mut sent);
    let mixed = (sent.0, bed.up(sent.1)?, sent.2);
    let (there, report) = bed.copy(mixed, &bed.device, bed.options())?;
    assert_eq!((report.resident, report.packed, report.alone), (5, 5, 1));
    let mixed = (bed.down(there.0)?, there.1, there.2);
    let (mut back, report) = bed.copy(mixed, &bed.host, bed.options())?;
    assert_eq!((report.resident, report.packed, report.alone), (5, 5, 1));
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

fn three_sources_in_one_structure(bed: &Bed) -> Result<(), Failed> {
    let mut sent = [bed.batch(6), bed.batch(6), bed.batch(6)];
    let expected = Contents::of_all(&mut sent);
    let [on_host, first, second] = sent;
    let (second, _) = bed.copy(second, bed.second()?, bed.options())?;
    let mixed = [on_host, bed.up(first)?, second];
    let (there, report) = bed.copy(mixed, &bed.device, bed.options())?;
    assert_eq!((report.resident, report.packed, report.chunks), (6, 12, 2));
    let [on_host, first, second] = there;
    let (first, _) = bed.copy(first, bed.second()?, bed.options())?;
    let mixed = [bed.down(on_host)?, first, second];
    let (mut back, report) = bed.copy(mixed, &bed.host, bed.options())?;
    assert_eq!((report.resident, report.packed), (6, 12));
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

fn from_one_device_to_another(bed: &Bed) -> Result<(), Failed> {
    let mut sent = bed.batch(50);
    let expected = Contents::of_all(&mut sent);
    let (other, report) = bed.copy(bed.up(sent)?, bed.second()?, bed.options())?;
    assert_eq!((report.packed, report.chunks), (50, 1));
    assert_same(&expected, &Contents::of_all(&mut bed.down(other)?));
    Ok(())
}

fn large_from_one_device_to_another(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.bytes((9 << 20) + 3);
    let expected = Contents::of(&sent);
    let (other, _) = bed.copy(bed.up(sent)?, bed.second()?, bed.options())?;
    assert_same(&[expected], &[Contents::of(&bed.down(other)?)]);
    Ok(())
}
