//! Copies into memory that the caller holds.

use std::time::Duration;

use libtest_mimic::Failed;
use transship::{CopyPolicy, CopyReport, DType, Device, Error, Tensor, start_copy_into};

use crate::backends::Need::{OwnMemory, Pinned, SecondDevice, Streams};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_packed_batch_again_and_again),
        case!(large_tensors),
        case!(new_tensors),
        case!(down_into_earlier_results),
        case!(down_into_ordinary_memory),
        case!(down_into_pinned_memory).needs(Pinned),
        case!(from_the_same_device),
        case!(from_another_device).needs(SecondDevice),
        case!(parts_of_what_was_packed),
        case!(sources_of_two_places_in_turn).needs(OwnMemory),
        case!(handed_to_a_stream_in_between).needs(Streams),
        case!(refusals_give_both_structures_back),
        case!(memory_elsewhere_is_refused).needs(OwnMemory),
        case!(dropped_handles_leave_memory_alone),
        case!(late_copies_say_so_and_both_structures_serve_again),
    ]
}

/// Copies `value` into `held`, which stays where it is, and compares what comes out.
fn fill(
    bed: &Bed,
    expected: &[Contents],
    value: Vec<Tensor>,
    held: Vec<Tensor>,
) -> Result<(Vec<Tensor>, CopyReport), Failed> {
    let places = |held: &[Tensor]| {
        held.iter().map(|tensor| Ok((tensor.address()?, tensor.offset()))).collect::<Result<Vec<_>, Error>>()
    };
    let before = places(&held)?;
    let (held, report) = start_copy_into(value, held, bed.options())?.wait_with_report()?;
    assert_eq!(places(&held)?, before);
    assert!(held.iter().all(|tensor| tensor.is_ready().is_ok_and(|ready| ready)));
    assert_same(expected, &Contents::of_all(&mut bed.down(held.clone())?));
    Ok((held, report))
}

/// Three times another value of the same shapes, as `make` makes it on the host and `bring` brings it to where it shall come from.
fn fill_often(
    bed: &Bed,
    mut held: Vec<Tensor>,
    make: impl Fn() -> Vec<Tensor>,
    bring: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>, Failed>,
) -> Result<Vec<Tensor>, Failed> {
    for _ in 0..3 {
        let mut value = make();
        let expected = Contents::of_all(&mut value);
        held = fill(bed, &expected, bring(value)?, held)?.0;
    }
    Ok(held)
}

/// Of all types, one without elements.
fn batch(bed: &Bed) -> Vec<Tensor> {
    let mut batch = bed.batch(40);
    batch.push(bed.bytes(0));
    batch.push(bed.bytes(5));
    batch
}

fn large(bed: &Bed) -> Vec<Tensor> {
    vec![bed.bytes((9 << 20) + 3), bed.bytes(77), bed.tensor(DType::F32, &[1 << 20])]
}

fn a_packed_batch_again_and_again(bed: &Bed) -> Result<(), Failed> {
    let first = bed.up(batch(bed))?;
    fill_often(bed, first, || batch(bed), Ok)?;
    let mut value = batch(bed);
    let expected = Contents::of_all(&mut value);
    let bed = bed.alone()?;
    let held = bed.up(batch(&bed))?;
    let (_, report) = fill(&bed, &expected, value, held)?;
    assert_eq!((report.chunks, report.packed, report.empty), (1, 41, 1), "they lie side by side: {report}");
    assert!(report.copies <= 1, "{report}");
    Ok(())
}

fn large_tensors(bed: &Bed) -> Result<(), Failed> {
    let first = bed.up(large(bed))?;
    fill_often(bed, first, || large(bed), Ok).map(|_| ())
}

fn new_tensors(bed: &Bed) -> Result<(), Failed> {
    let make = || vec![bed.bytes(100), bed.tensor(DType::F64, &[3, 5]), bed.bytes(3)];
    let new = [Tensor::zeros as fn(&[usize], DType, &Device) -> _, Tensor::empty];
    for new in new {
        let shapes = make();
        let held = shapes.iter().map(|tensor| new(tensor.shape(), tensor.dtype(), &bed.device));
        fill_often(bed, held.collect::<Result<_, _>>()?, make, Ok)?;
    }
    Ok(())
}

fn down_into_earlier_results(bed: &Bed) -> Result<(), Failed> {
    for make in [batch, large] {
        let first = bed.down(bed.up(make(bed))?)?;
        fill_often(bed, first, || make(bed), |value| bed.up(value))?;
    }
    Ok(())
}

/// Of a `Vec`, or of zeros, touched before.
fn down_into_ordinary_memory(bed: &Bed) -> Result<(), Failed> {
    for make in [batch, large] {
        let held = fill_often(bed, make(bed), || make(bed), |value| bed.up(value))?;
        drop(held);
    }
    let held = vec![Tensor::from(vec![1_u8; 1001])];
    let mut held = fill_often(bed, held, || vec![bed.bytes(1001)], |value| bed.up(value))?;
    held[0].as_mut_bytes()?.fill(0);
    Ok(())
}

fn down_into_pinned_memory(bed: &Bed) -> Result<(), Failed> {
    let held = vec![Tensor::empty_pinned(&[100_003], DType::U8, &bed.device)?];
    fill_often(bed, held, || vec![bed.bytes(100_003)], |value| bed.up(value)).map(|_| ())
}

fn from_the_same_device(bed: &Bed) -> Result<(), Failed> {
    for make in [batch, large] {
        let first = bed.up(make(bed))?;
        fill_often(bed, first, || make(bed), |value| bed.up(value))?;
    }
    Ok(())
}

fn from_another_device(bed: &Bed) -> Result<(), Failed> {
    let second = bed.second()?;
    for make in [batch, large] {
        let first = bed.up(make(bed))?;
        fill_often(bed, first, || make(bed), |value| Ok(bed.copy(value, second, bed.options())?.0))?;
    }
    Ok(())
}

/// Every third tensor of a packed batch; the others are gone.
fn parts_of_what_was_packed(bed: &Bed) -> Result<(), Failed> {
    let third = |tensors: Vec<Tensor>| tensors.into_iter().step_by(3).collect::<Vec<_>>();
    let first = third(bed.up(bed.batch(40))?);
    fill_often(bed, first, || third(bed.batch(40)), Ok).map(|_| ())
}

/// What lies between two tensors of one source in packed memory may be one of another source, and is left alone.
fn sources_of_two_places_in_turn(bed: &Bed) -> Result<(), Failed> {
    let whole = bed.bytes(4096);
    let there = bed.up(whole.clone())?;
    let gathers = bed.device.limits().gathers();
    let part = |tensor: &Tensor, index: usize| match index % 3 {
        0 | 1 => tensor.narrow(0, index * 64, 64),
        _ => tensor.slice(0, 4..196, 3),
    };
    for to in [&bed.host, &bed.device] {
        for turn in 0..2 {
            let packed = (0..12).map(|_| bed.bytes(64)).collect::<Vec<_>>();
            let (held, _) = bed.copy(packed, to, bed.options().policy(CopyPolicy::Always))?;
            let is_there = |index: usize| index % 2 == turn && (gathers || index % 3 < 2);
            let value = (0..12).map(|index| part(if is_there(index) { &there } else { &whole }, index));
            let expected = (0..12).map(|index| Ok(Contents::of(&part(&whole, index)?)));
            let expected = expected.collect::<transship::Result<Vec<_>>>()?;
            fill(bed, &expected, value.collect::<transship::Result<_>>()?, held)?;
        }
    }
    Ok(())
}

fn handed_to_a_stream_in_between(bed: &Bed) -> Result<(), Failed> {
    let stream = bed.device.create_stream(transship::StreamPriority::Normal)?;
    let mut held = bed.up(batch(bed))?;
    for _ in 0..5 {
        held = start_copy_into(batch(bed), held, bed.options())?.wait_on(&stream)?;
    }
    stream.synchronize()?;
    fill_often(bed, held, || batch(bed), Ok).map(|_| ())
}

fn refusals_give_both_structures_back(bed: &Bed) -> Result<(), Failed> {
    let mut value = batch(bed);
    let expected = Contents::of_all(&mut value);
    let mut held = bed.up(batch(bed))?;

    let twin = held[3].clone();
    let shared = start_copy_into(value, held, bed.options()).expect_err("a clone is alive");
    let (index, error) = unsuited(shared.error())?;
    assert!(index == 0 && matches!(error, Error::NotWritable { .. }), "{error}");
    (value, held) = both(shared.into_both())?;
    drop(twin);

    let last = value.pop().ok_or("there are some")?;
    let fewer = start_copy_into(value, held, bed.options()).expect_err("one is missing");
    assert!(matches!(fewer.error(), Error::StructureMismatch { .. }), "{fewer}");
    assert!(fewer.error().to_string().contains("41 items to copy, but 42 items"), "{fewer}");
    (value, held) = both(fewer.into_both())?;

    value.push(bed.bytes(6));
    let larger = start_copy_into(value, held, bed.options()).expect_err("one is larger");
    assert!(matches!(larger.error(), Error::DestinationMismatch { path, .. } if path == "[41]"), "{larger}");
    (value, held) = both(larger.into_both())?;
    value.pop();
    value.push(last);
    fill(bed, &expected, value, held).map(|_| ())
}

fn memory_elsewhere_is_refused(bed: &Bed) -> Result<(), Failed> {
    let held = vec![bed.up(bed.bytes(4))?, bed.bytes(4)];
    let mixed = start_copy_into(vec![bed.bytes(4), bed.bytes(4)], held, bed.options());
    let mixed = mixed.expect_err("one is on the host, the other one is not");
    let (index, error) = unsuited(mixed.error())?;
    let expected = bed.device.id();
    assert!(matches!(error, Error::WrongDevice { expected: there, .. } if there == expected) && index == 1);
    bed.still_works()
}

fn dropped_handles_leave_memory_alone(bed: &Bed) -> Result<(), Failed> {
    for make in [batch, large] {
        for to in [&bed.device, &Device::host()] {
            let held = bed.copy(make(bed), to, bed.options())?.0;
            let value = bed.up(make(bed))?;
            let stands_still = bed.hold();
            drop(start_copy_into(value, held, bed.options())?);
            drop(stands_still);
            bed.still_works()?;
        }
    }
    Ok(())
}

fn late_copies_say_so_and_both_structures_serve_again(bed: &Bed) -> Result<(), Failed> {
    let mut value = bed.up(batch(bed))?;
    let mut held = bed.up(batch(bed))?;
    let expected = Contents::of_all(&mut bed.down(value.clone())?);
    let stands_still = bed.hold();
    let soon = bed.options().deadline(Duration::from_millis(5));
    let copied = start_copy_into(value.clone(), held, soon).and_then(transship::CopyHandle::wait);
    assert!(!stands_still.holds() || copied.is_err(), "the device stands still");
    drop(stands_still);
    held = match copied {
        Ok(filled) => filled,
        Err(late) => {
            assert!(matches!(late.error(), Error::DeadlineExceeded { .. }), "{late}");
            let held = late.into_both().1.ok_or("the memory comes back")?;
            assert!(matches!(held[0].is_ready(), Err(Error::CopyFailed(_))));
            held
        }
    };
    // Copies in flight hold both until the device is done with them.
    bed.device.synchronize()?;
    for _ in 0..1000 {
        match start_copy_into(value, held, bed.options()) {
            Ok(copy) => {
                let mut filled = bed.down(copy.wait()?)?;
                assert_same(&expected, &Contents::of_all(&mut filled));
                return Ok(());
            }
            Err(refused) => {
                let (_, error) = unsuited(refused.error())?;
                assert!(matches!(error, Error::NotWritable { .. }), "{error}");
                (value, held) = both(refused.into_both())?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Err("the memory is in flight for ever".into())
}

fn unsuited(error: &Error) -> Result<(usize, Error), Failed> {
    match error {
        Error::UnsuitedTensor { index, error, .. } => Ok((*index, Error::clone(error))),
        other => Err(other.clone().into()),
    }
}

fn both<S>((value, held): (Option<S>, Option<S>)) -> Result<(S, S), Failed> {
    Ok((value.ok_or("the value comes back")?, held.ok_or("the memory comes back")?))
}
