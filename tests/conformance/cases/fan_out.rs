//! One structure to several devices.

use libtest_mimic::Failed;
use transship::{CopyReport, DType, Device, Tensor, start_copy_to_all};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(to_the_host_and_twice_to_the_device),
        case!(to_two_devices).needs(SecondDevice),
        case!(large_to_two_devices).needs(SecondDevice),
        case!(what_lies_on_one_of_them_stays).needs(SecondDevice),
        case!(dropping_one_leaves_the_others_alone).needs(OwnMemory),
    ]
}

/// Copies `sent` to all and waits; looks whether each has its own, with the same bytes.
fn to_all(bed: &Bed, mut sent: Vec<Tensor>, to: &[Device]) -> Result<Vec<CopyReport>, Failed> {
    let expected = Contents::of_all(&mut sent);
    let copies = start_copy_to_all(sent, to, bed.options())?;
    assert_eq!(copies.len(), to.len());
    let mut reports = Vec::new();
    let mut trees = Vec::new();
    for (copy, device) in copies.into_iter().zip(to) {
        let (tree, report) = copy.wait_with_report()?;
        assert!(tree.iter().all(|tensor| tensor.device_id().is_ok_and(|id| id == device.id())));
        reports.push(report);
        trees.push(tree);
    }
    for tree in trees {
        assert_same(&expected, &Contents::of_all(&mut bed.down(tree)?));
    }
    Ok(reports)
}

/// Mixed types, a strided one, two over the same memory, one without elements.
fn batch(bed: &Bed) -> Result<Vec<Tensor>, Failed> {
    let mut batch = bed.batch(40);
    batch.push(bed.tensor(DType::F32, &[9, 14]).transpose(0, 1)?);
    batch.push(batch[7].clone());
    batch.push(bed.bytes(0));
    Ok(batch)
}

fn to_the_host_and_twice_to_the_device(bed: &Bed) -> Result<(), Failed> {
    let to = [bed.device.clone(), bed.host.clone(), bed.device.clone()];
    to_all(bed, batch(bed)?, &to).map(|_| ())
}

fn to_two_devices(bed: &Bed) -> Result<(), Failed> {
    let to = [bed.device.clone(), bed.second()?.clone()];
    for _ in 0..3 {
        are_staged_once(&to, &to_all(bed, batch(bed)?, &to)?);
    }
    Ok(())
}

fn large_to_two_devices(bed: &Bed) -> Result<(), Failed> {
    let to = [bed.second()?.clone(), bed.device.clone()];
    are_staged_once(&to, &to_all(bed, vec![bed.bytes(9 << 20), bed.bytes(77), bed.bytes(5 << 20)], &to)?);
    Ok(())
}

/// Where the second device reads the blocks of the first; else each is staged for itself, or written where its memory lies.
fn are_staged_once(devices: &[Device; 2], reports: &[CopyReport]) {
    let [first, second] = devices;
    let staged: Vec<_> = reports.iter().map(|report| report.pinned_staging_bytes).collect();
    // What lies between chunks is staged as well.
    let is_staged = |number: usize| staged[number] >= reports[number].chunk_bytes;
    if second.backend().reads_staging_of(&**first.backend()) {
        assert!(is_staged(0) && staged[1] == 0, "{staged:?}");
    } else if first.limits().largest_open == second.limits().largest_open {
        assert_eq!(staged[0], staged[1]);
    } else {
        let is_open = |number: usize| staged[number] == 0 && devices[number].limits().largest_open > 0;
        assert!((0..2).all(|number| is_staged(number) || is_open(number)), "{staged:?}");
    }
}

fn what_lies_on_one_of_them_stays(bed: &Bed) -> Result<(), Failed> {
    let resident = bed.up(bed.bytes(300))?;
    let to = [bed.second()?.clone(), bed.device.clone()];
    let mut copies = start_copy_to_all((resident.clone(), bed.bytes(9)), &to, bed.options())?;
    let (stayed, _) = copies.pop().ok_or("a handle for each")?.wait()?;
    let (moved, _) = copies.pop().ok_or("a handle for each")?.wait()?;
    assert!(stayed.shares_memory_with(&resident) && !moved.shares_memory_with(&resident));
    assert_same(&[Contents::of(&bed.down(resident)?)], &[Contents::of(&bed.down(moved)?)]);
    Ok(())
}

fn dropping_one_leaves_the_others_alone(bed: &Bed) -> Result<(), Failed> {
    let mut sent = vec![bed.bytes(3 << 20), bed.bytes(5)];
    let expected = Contents::of_all(&mut sent);
    let to = [bed.device.clone(), bed.device.clone(), bed.host.clone(), bed.device.clone()];
    for dropped in [0, 1, 3] {
        let mut copies = start_copy_to_all(sent.clone(), &to, bed.options())?;
        drop(copies.remove(dropped));
        for copy in copies {
            assert_same(&expected, &Contents::of_all(&mut bed.down(copy.wait()?)?));
        }
    }
    Ok(())
}
