//! Conversion of elements on the way.

use half::{bf16, f16};
use libtest_mimic::Failed;
use transship::{Cast, CopyOptions, DType, Error, ErrorKind, Tensor, start_copy, start_copy_into};

use crate::backends::Need::OwnMemory;
use crate::bed::Bed;
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_batch_of_many_types),
        case!(one_large_tensor),
        case!(pieces_in_flight_that_cut_elements),
        case!(into_memory_that_is_there),
        case!(values_that_do_not_fit),
        case!(tensors_of_devices_are_refused).needs(OwnMemory),
    ]
}

fn casts(bed: &Bed) -> CopyOptions {
    bed.options()
        .cast(Cast::new(DType::F32, DType::BF16))
        .cast(Cast::new(DType::F64, DType::F16))
        .cast(Cast::new(DType::I64, DType::I8).saturating())
        .cast(Cast::new(DType::U8, DType::F32).scaled(0.5, -1.0))
}

/// What the casts make of a tensor on the host, by other means.
fn expected(tensor: &Tensor) -> Vec<u8> {
    match tensor.dtype() {
        DType::F32 => bytes(tensor.to_vec::<f32>(), |value| bf16::from_f32(value).to_ne_bytes()),
        DType::F64 => bytes(tensor.to_vec::<f64>(), |value| f16::from_f64(value).to_ne_bytes()),
        DType::I64 => bytes(tensor.to_vec::<i64>(), |value| (value.clamp(-128, 127) as i8).to_ne_bytes()),
        DType::U8 => bytes(tensor.to_vec::<u8>(), |value| (f32::from(value) * 0.5 - 1.0).to_ne_bytes()),
        _ => tensor.to_bytes().expect("a tensor on the host"),
    }
}

fn bytes<T, const N: usize>(values: Result<Vec<T>, Error>, of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.expect("a tensor on the host").into_iter().flat_map(of).collect()
}

/// Numbers that 16 bits hold exactly or next to it, in different shapes, contiguous and not.
fn batch(bed: &Bed) -> Vec<Tensor> {
    let number = |index: usize| (index as f64) * 0.25 - 40.0;
    (0..48).map(|index| tensor(bed, index, &[index % 5 + 1, 2 * index + 1], number)).collect()
}

fn tensor(bed: &Bed, kind: usize, shape: &[usize], number: impl Fn(usize) -> f64) -> Tensor {
    let values = 0..shape.iter().product();
    let tensor = match kind % 5 {
        0 => Tensor::from_vec(values.map(|index| number(index) as f32 * 1.001).collect(), shape),
        1 => Tensor::from_vec(values.map(number).collect(), shape),
        2 => Tensor::from_vec(values.map(|index| number(index) as i64 * 5).collect(), shape),
        3 => Ok(bed.tensor(DType::U8, shape)),
        _ => Ok(bed.tensor(DType::I16, shape)),
    };
    let tensor = tensor.expect("as many values as the shape says");
    if kind.is_multiple_of(3) { tensor.transpose(0, 1).expect("two dimensions") } else { tensor }
}

/// Up with the casts, and down without.
fn round_trip(bed: &Bed, batch: Vec<Tensor>, options: CopyOptions) -> Result<(), Failed> {
    let expected: Vec<_> = batch.iter().map(|tensor| (tensor.shape().to_vec(), expected(tensor))).collect();
    let there = start_copy(batch, &bed.device, options)?.wait()?;
    for ((shape, bytes), tensor) in expected.iter().zip(bed.down(there)?) {
        assert_eq!(tensor.shape(), shape);
        assert!(tensor.to_bytes()? == *bytes, "{} of shape {shape:?}", tensor.dtype());
    }
    Ok(())
}

fn a_batch_of_many_types(bed: &Bed) -> Result<(), Failed> {
    round_trip(bed, batch(bed), casts(bed))?;
    round_trip(bed, batch(bed), casts(bed).packing(false))
}

fn one_large_tensor(bed: &Bed) -> Result<(), Failed> {
    let large = |kind| tensor(bed, kind, &[3, 250_001], |index| (index % 1999) as f64);
    [0, 3].into_iter().try_for_each(|kind| round_trip(bed, vec![large(kind)], casts(bed)))
}

fn pieces_in_flight_that_cut_elements(bed: &Bed) -> Result<(), Failed> {
    let options = casts(bed).max_bytes_in_flight(4099);
    round_trip(
        bed,
        vec![tensor(bed, 3, &[3, 7001], |_| 0.0), tensor(bed, 0, &[5, 4999], |index| index as f64)],
        options,
    )
}

fn into_memory_that_is_there(bed: &Bed) -> Result<(), Failed> {
    let mut held = start_copy(batch(bed), &bed.device, casts(bed))?.wait()?;
    for _ in 0..2 {
        let value = batch(bed);
        let expected: Vec<_> = value.iter().map(expected).collect();
        held = start_copy_into(value, held, casts(bed))?.wait()?;
        for (bytes, tensor) in expected.iter().zip(bed.down(held.clone())?) {
            assert!(tensor.to_bytes()? == *bytes, "{}", tensor.dtype());
        }
    }
    Ok(())
}

fn values_that_do_not_fit(bed: &Bed) -> Result<(), Failed> {
    let value = vec![Tensor::from(vec![1_i64, 200, 3])];
    let options = bed.options().cast(Cast::new(DType::I64, DType::I8));
    let failed = start_copy(value, &bed.device, options).expect_err("200 does not fit");
    assert!(matches!(failed.error(), Error::DoesNotFit { element: 1, value: 200, .. }), "{failed}");
    assert_eq!(failed.into_parts().1.ok_or("nothing came back")?[0].to_vec::<i64>()?, [1, 200, 3]);
    bed.still_works()
}

fn tensors_of_devices_are_refused(bed: &Bed) -> Result<(), Failed> {
    let there = bed.up(vec![bed.tensor(DType::F32, &[9])])?;
    let failed = start_copy(there, &bed.host, casts(bed)).expect_err("no device casts");
    assert_eq!(failed.error().kind(), ErrorKind::Unsupported, "{failed}");
    let back = failed.into_parts().1.ok_or("nothing came back")?;
    assert_eq!((back[0].dtype(), back[0].device_id()?), (DType::F32, bed.device.id()));
    Ok(())
}
