//! Tensors whose elements do not lie in one run, and views of tensors on the device.

use libtest_mimic::Failed;
use transship::{DType, Tensor};

use crate::backends::Need::SecondDevice;
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(from_the_host),
        case!(from_the_host_unpacked),
        case!(large_from_the_host),
        case!(from_the_device),
        case!(from_the_device_unpacked),
        case!(one_view_of_a_device_tensor),
        case!(between_devices).needs(SecondDevice),
    ]
}

/// Views of `tensor`, which has the shape `[6, 8, 10]`.
fn views(tensor: &Tensor) -> transship::Result<Vec<Tensor>> {
    Ok(vec![
        tensor.transpose(0, 2)?,
        tensor.transpose(1, 2)?,
        tensor.permute(&[2, 0, 1])?,
        tensor.narrow(0, 2, 3)?,
        tensor.narrow(1, 1, 5)?,
        tensor.narrow(2, 3, 4)?,
        tensor.slice(0, 1..6, 2)?,
        tensor.slice(2, 0..10, 3)?,
        tensor.narrow(1, 2, 4)?.slice(2, 1..9, 4)?.transpose(0, 1)?,
        tensor.narrow(2, 7, 1)?.squeeze(2)?,
        tensor.as_strided(&[5, 10], &[0, 1], 20)?,
        tensor.as_strided(&[4, 3, 2], &[10, 0, 3], 1)?,
        tensor.as_strided(&[7], &[0], 5)?,
    ])
}

fn base(bed: &Bed, dtype: DType) -> Tensor {
    bed.tensor(dtype, &[6, 8, 10])
}

fn from_the_host(bed: &Bed) -> Result<(), Failed> {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::I64, DType::Complex128] {
        let trip = bed.round_trip(views(&base(bed, dtype))?, bed.options())?;
        assert!(trip.value.iter().all(Tensor::is_contiguous), "gathered while staging");
    }
    Ok(())
}

fn from_the_host_unpacked(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(views(&base(bed, DType::F32))?, bed.options().packing(false))?;
    assert_eq!(trip.up.packed, 0);
    Ok(())
}

/// More than a staging block, cut anywhere.
fn large_from_the_host(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::F32, &[1500, 1501]);
    bed.round_trip(vec![tensor.transpose(0, 1)?, tensor.slice(1, 1..1501, 7)?], bed.options())?;
    Ok(())
}

fn from_the_device(bed: &Bed) -> Result<(), Failed> {
    for dtype in [DType::U8, DType::F32, DType::Complex64] {
        views_come_down(bed, dtype, true)?;
    }
    Ok(())
}

fn from_the_device_unpacked(bed: &Bed) -> Result<(), Failed> {
    views_come_down(bed, DType::I32, false)
}

fn views_come_down(bed: &Bed, dtype: DType, packing: bool) -> Result<(), Failed> {
    let tensor = base(bed, dtype);
    let expected = Contents::of_all(&mut views(&tensor)?);
    let there = views(&bed.up(tensor)?)?;
    let (mut back, _) = bed.copy(there, &bed.host, bed.options().packing(packing))?;
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// The rest of the memory goes nowhere.
fn one_view_of_a_device_tensor(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::U8, &[1 << 20]);
    let expected = Contents::of(&tensor.narrow(0, 5000, 77)?);
    let view = bed.up(tensor)?.narrow(0, 5000, 77)?;
    let (back, report) = bed.copy(view, &bed.host, bed.options())?;
    assert_same(&[expected], &[Contents::of(&back)]);
    assert_eq!((report.payload_bytes, back.retained_bytes()), (77, report.chunk_bytes as usize));
    assert!(report.copied_bytes < 4096, "{report}");
    Ok(())
}

fn between_devices(bed: &Bed) -> Result<(), Failed> {
    let tensor = base(bed, DType::F32);
    let expected = Contents::of_all(&mut views(&tensor)?);
    let there = views(&bed.up(tensor)?)?;
    let (other, _) = bed.copy(there, bed.second()?, bed.options())?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(other)?));
    Ok(())
}
