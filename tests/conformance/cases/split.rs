//! Tensors that are split into parts, each filled and used by itself, and joined again.

use libtest_mimic::Failed;
use transship::{CopyPolicy, DType, Error, StreamPriority, Tensor, start_copy_into};

use crate::backends::Need::{OwnMemory, Streams};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(split_parts_are_filled_one_by_one_and_joined),
        case!(split_parts_of_the_host_are_filled_from_the_device),
        case!(split_parts_are_copied_into_each_other),
        case!(split_parts_are_filled_while_others_are_read),
        case!(split_parts_are_joined_while_they_are_filled).needs(Streams),
        case!(split_inside_of_a_granule).needs(OwnMemory),
    ]
}

const ROWS: usize = 6;

/// A batch of rows on the host, of so many floats each.
fn rows(bed: &Bed, count: usize, floats: usize) -> Tensor {
    bed.tensor(DType::F32, &[count, floats])
}

fn same(bed: &Bed, expected: &Tensor, there: &Tensor) -> Result<(), Failed> {
    // A part keeps the memory of all: read through a copy wherever it lies.
    let options = bed.options().policy(CopyPolicy::Always);
    let back = bed.copy(there.clone(), &bed.host, options)?.0;
    assert_same(&[Contents::of(expected)], &[Contents::of(&back)]);
    Ok(())
}

fn split_parts_are_filled_one_by_one_and_joined(bed: &Bed) -> Result<(), Failed> {
    for floats in [64, 100_000] {
        let whole = Tensor::zeros(&[ROWS, floats], DType::F32, &bed.device)?;
        let address = whole.address()?;
        let expected = rows(bed, ROWS, floats);
        let parts = whole.split(0, &[1, 2, 0, 3])?;
        let mut first = 0;
        let mut filled = Vec::new();
        for part in parts {
            let value = expected.narrow(0, first, part.shape()[0])?;
            first += part.shape()[0];
            let part = start_copy_into(value.clone(), part, bed.options())?.wait()?;
            same(bed, &value, &part)?;
            filled.push(part);
        }
        let whole = Tensor::join(filled)?;
        assert_eq!((whole.address()?, whole.shape()), (address, &[ROWS, floats][..]));
        same(bed, &expected, &whole)?;
        let value = rows(bed, ROWS, floats);
        same(bed, &value, &start_copy_into(value.clone(), whole, bed.options())?.wait()?)?;
    }
    Ok(())
}

fn split_parts_of_the_host_are_filled_from_the_device(bed: &Bed) -> Result<(), Failed> {
    for floats in [7, 100_000] {
        let mut parts = Tensor::zeros(&[3, floats], DType::F32, &bed.host)?.split(0, &[1, 1, 1])?;
        let value = rows(bed, 1, floats);
        let there = bed.up(value.clone())?;
        parts[0].as_mut_slice::<f32>()?.fill(1.0);
        let middle = start_copy_into(there, parts.remove(1), bed.options())?;
        parts[1].as_mut_slice::<f32>()?.fill(2.0);
        parts.insert(1, middle.wait()?);
        let whole = Tensor::join(parts)?;
        let all = whole.as_slice::<f32>()?;
        assert_eq!((all[floats - 1], all[2 * floats]), (1.0, 2.0));
        same(bed, &value, &whole.narrow(0, 1, 1)?)?;
    }
    Ok(())
}

/// Both lie in one buffer.
fn split_parts_are_copied_into_each_other(bed: &Bed) -> Result<(), Failed> {
    for floats in [64, 1 << 20] {
        let value = rows(bed, 3, floats);
        let mut parts = bed
            .copy(value.clone(), &bed.device, bed.options().policy(CopyPolicy::Always))?
            .0
            .split(0, &[1; 3])?;
        let filled = start_copy_into(parts[0].clone(), parts.remove(2), bed.options())?.wait()?;
        same(bed, &value.narrow(0, 0, 1)?, &filled)?;
        parts.push(filled);
        let whole = Tensor::join(parts)?;
        same(bed, &value.narrow(0, 0, 2)?, &whole.narrow(0, 0, 2)?)?;
    }
    Ok(())
}

fn split_parts_are_filled_while_others_are_read(bed: &Bed) -> Result<(), Failed> {
    let value = rows(bed, 2, 1 << 14);
    let whole = bed.copy(value.clone(), &bed.device, bed.options().policy(CopyPolicy::Always))?.0;
    let [read, filled] = <[Tensor; 2]>::try_from(whole.split(0, &[1, 1])?).map_err(|_| "there are two")?;
    let first = value.narrow(0, 0, 1)?;
    let values = (0..20).map(|_| rows(bed, 1, 1 << 14)).collect::<Vec<_>>();
    let (read, filled) = std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            values.iter().try_fold(filled, |part, value| {
                let part = start_copy_into(value.clone(), part, bed.options())?.wait()?;
                same(bed, value, &part).map(|()| part)
            })
        });
        let reading = (0..20).try_for_each(|_| same(bed, &first, &read));
        let filled = filling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        reading.and(filled).map(|filled| (read, filled))
    })?;
    let whole = Tensor::join(vec![read, filled])?;
    same(bed, &first, &whole.narrow(0, 0, 1)?)?;
    same(bed, values.last().ok_or("there are some")?, &whole.narrow(0, 1, 1)?)
}

/// Nobody waits between the first fill and the copy down.
fn split_parts_are_joined_while_they_are_filled(bed: &Bed) -> Result<(), Failed> {
    let compute = bed.device.create_stream(StreamPriority::Normal)?;
    let expected = rows(bed, ROWS, 1000);
    let mut whole = Tensor::zeros(&[ROWS, 1000], DType::F32, &bed.device)?;
    for _ in 0..3 {
        let mut filled = Vec::new();
        for (row, part) in whole.split(0, &[1; ROWS])?.into_iter().enumerate() {
            let stream = bed.device.create_stream(StreamPriority::Normal)?;
            let options = bed.options().stream(&stream);
            filled.push(start_copy_into(expected.narrow(0, row, 1)?, part, options)?.wait_on(&compute)?);
        }
        whole = Tensor::join(filled)?;
        let back = bed.start(whole.clone(), &bed.host, bed.options().policy(CopyPolicy::Always))?;
        assert_same(&[Contents::of(&expected)], &[Contents::of(&back.wait()?)]);
        compute.synchronize()?;
        bed.device.synchronize()?;
    }
    Ok(())
}

fn split_inside_of_a_granule(bed: &Bed) -> Result<(), Failed> {
    let value = bed.bytes(12);
    let there = bed.up(value.clone())?;
    match there.split(0, &[3, 5, 4]) {
        Ok(parts) => {
            assert!(bed.device.limits().copy_granularity.divides(3));
            let part = start_copy_into(value.narrow(0, 0, 5)?, parts[1].clone(), bed.options());
            assert!(part.is_err(), "a clone of the part is alive");
        }
        Err(refused) => {
            assert!(matches!(refused.error(), Error::NotSplittable { .. }), "{refused}");
            assert!(refused.to_string().contains("part 1 would begin at byte 3"), "{refused}");
            let mut parts = refused.into_value().split(0, &[4, 8])?;
            let filled = start_copy_into(value.narrow(0, 4, 4)?, parts.remove(0), bed.options())?.wait()?;
            same(bed, &value.narrow(0, 4, 4)?, &filled)?;
            same(bed, &value.narrow(0, 4, 8)?, &parts[0])?;
        }
    }
    Ok(())
}
