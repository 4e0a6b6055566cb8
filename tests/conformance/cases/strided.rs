//! Tensors whose elements do not lie in one run, and views of tensors on the device.

use libtest_mimic::Failed;
use transship::{CopyOptions, CopyPolicy, CopyReport, DType, Device, Tensor, start_copy_into};

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
        case!(gaps_stay_on_the_device),
        case!(large_parts_down),
        case!(large_parts_down_to_ordinary_memory),
        case!(many_small_parts_beside_whole_ones),
        case!(within_the_device),
        case!(any_rank_and_type),
        case!(hostile_strides),
        case!(one_part_twice_and_its_neighbour),
        case!(into_memory_on_the_host),
        case!(into_memory_on_the_device),
        case!(between_devices).needs(SecondDevice),
        case!(large_parts_between_devices).needs(SecondDevice),
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

/// Whether the device that reads the tensors leaves their gaps out.
fn gathers(bed: &Bed) -> bool {
    bed.device.limits().gathers()
}

/// Copies the parts that `take` gives of a tensor on the device. Where gaps are left out, results lie in one run, and no more bytes
/// are copied than they have.
fn parts_come_over(
    bed: &Bed,
    tensor: &Tensor,
    take: impl Fn(&Tensor) -> transship::Result<Vec<Tensor>>,
    to: &Device,
    options: CopyOptions,
) -> Result<CopyReport, Failed> {
    let expected = Contents::of_all(&mut take(tensor)?);
    let there = take(&bed.up(tensor.clone())?)?;
    let (mut copied, report) = bed.copy(there, to, options)?;
    if gathers(bed) {
        assert!(copied.iter().all(Tensor::is_contiguous), "{report}");
        // What goes over the host is copied twice.
        let over_host = !to.is_host() && !to.backend().reaches(&**bed.device.backend());
        assert!(over_host || report.copied_bytes == report.payload_bytes, "{report}");
    }
    if !to.is_host() {
        copied = bed.down(copied)?;
    }
    assert_same(&expected, &Contents::of_all(&mut copied));
    Ok(report)
}

fn gaps_stay_on_the_device(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let columns = |tensor: &Tensor| Ok(vec![tensor.narrow(1, 16, 16)?]);
    let tensor = bed.tensor(DType::U8, &[100, 256]);
    for _ in 0..3 {
        let report = parts_come_over(bed, &tensor, columns, &bed.host, bed.options())?;
        // A kernel writes where the copy goes, or a copy behind it does.
        let copies = if bed.device.limits().gather_strided.is_some() { 1 } else { 2 };
        assert!(!gathers(bed) || (report.gathered == 1 && report.copies <= copies), "{report}");
    }
    Ok(())
}

/// More than one block of threads each, cut anywhere by what begins and ends where no wide access is possible.
fn large_parts(tensor: &Tensor) -> transship::Result<Vec<Tensor>> {
    let columns = tensor.shape()[1];
    Ok(vec![
        tensor.narrow(1, 1, 3)?,
        tensor.narrow(1, 8, columns / 2)?,
        tensor.slice(0, 1..tensor.shape()[0], 2)?,
        tensor.slice(1, 0..columns, 3)?,
        tensor.narrow(1, 5, 7)?.transpose(0, 1)?,
    ])
}

fn large_parts_down(bed: &Bed) -> Result<(), Failed> {
    for dtype in [DType::U8, DType::F16, DType::F64] {
        let tensor = bed.tensor(dtype, &[9001, 80]);
        parts_come_over(bed, &tensor, large_parts, &bed.host, bed.options())?;
    }
    Ok(())
}

/// Through staging blocks, a segment at a time.
fn large_parts_down_to_ordinary_memory(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let tensor = bed.tensor(DType::U8, &[30_011, 200]);
    for staging in [256 << 20, 64 << 10] {
        let device = bed.private()?;
        device.set_result_budget(64 << 10)?;
        device.set_staging_budget(staging)?;
        let expected = Contents::of_all(&mut large_parts(&tensor)?);
        let there = large_parts(&bed.copy(tensor.clone(), &device, bed.options())?.0)?;
        let (mut back, report) = bed.copy(there.clone(), &bed.host, bed.options())?;
        assert!(device.limits().host_writable || report.pageable_result_bytes > 0, "{report}");
        assert_same(&expected, &Contents::of_all(&mut back));
        let (mut back, _) = bed.copy(there, &bed.host, bed.options().pinned_staging(false))?;
        assert_same(&expected, &Contents::of_all(&mut back));
    }
    Ok(())
}

/// One table for both kinds.
fn many_small_parts_beside_whole_ones(bed: &Bed) -> Result<(), Failed> {
    let bed = &bed.alone()?;
    let mut tensors: Vec<Tensor> = (0..40).map(|rows| bed.tensor(DType::F16, &[2 * rows + 2, 9])).collect();
    tensors.push(bed.tensor(DType::U8, &[700, 64]));
    let part = |(index, tensor): (usize, &Tensor)| match index % 3 {
        0 => Ok(tensor.clone()),
        1 => tensor.slice(0, 0..tensor.shape()[0], 2),
        _ => tensor.narrow(1, index % 5, 4),
    };
    let parts =
        |tensors: &[Tensor]| tensors.iter().enumerate().map(part).collect::<transship::Result<Vec<_>>>();
    let expected = Contents::of_all(&mut parts(&tensors)?);
    let (there, _) = bed.copy(tensors, &bed.device, bed.options().packing(false))?;
    let there = parts(&there)?;
    for _ in 0..3 {
        let (mut back, report) = bed.copy(there.clone(), &bed.host, bed.options())?;
        // The last one is cut for the table.
        assert!(bed.device.limits().gather_strided.is_none() || report.gathered > 41, "{report}");
        assert_same(&expected, &Contents::of_all(&mut back));
    }
    let (packed, _) = bed.copy(there, &bed.device, bed.options().policy(CopyPolicy::Always))?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(packed)?));
    Ok(())
}

fn within_the_device(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::F32, &[3000, 70]);
    parts_come_over(bed, &tensor, large_parts, &bed.device, bed.options().policy(CopyPolicy::Always))?;
    Ok(())
}

/// Up to eight dimensions of runs are gathered; more are copied with their gaps.
fn any_rank_and_type(bed: &Bed) -> Result<(), Failed> {
    for dtype in DType::ALL {
        let tensor = bed.tensor(*dtype, &[3_usize.pow(9) + 1]);
        let there = bed.up(tensor.clone())?;
        for rank in [1, 2, 7, 8, 9] {
            let strides: Vec<usize> = (0..rank).rev().map(|dim| 2 * 3_usize.pow(dim)).collect();
            let every_other = |tensor: &Tensor| tensor.as_strided(&vec![2; strides.len()], &strides, 1);
            let (back, _) = bed.copy(every_other(&there)?, &bed.host, bed.options())?;
            assert_same(&[Contents::of(&every_other(&tensor)?)], &[Contents::of(&back)]);
            assert!(!gathers(bed) || back.is_contiguous() == (rank <= 8), "{dtype:?}, rank {rank}");
        }
    }
    Ok(())
}

/// The last element of a tensor, steps of nothing, sizes below a word, and runs that begin and end anywhere.
fn hostile_views(tensor: &Tensor) -> transship::Result<Vec<Tensor>> {
    let len = tensor.numel();
    let views: [(&[usize], &[usize], usize); 14] = [
        (&[2], &[len - 1], 0),
        (&[3], &[2], len - 5),
        (&[5], &[0], len - 1),
        (&[3, 3], &[0, 1], len - 3),
        (&[3, 3], &[1, 0], len - 3),
        (&[2; 8], &[1, 3, 7, 15, 31, 63, 127, 255], len - 503),
        (&[2, 1, 2, 3, 2, 1, 2, 2], &[0, 9, 401, 0, 97, 5, 0, 3], 1),
        (&[7, 5], &[1, 7], 1),
        (&[2, 3], &[len / 2, 1], 1),
        (&[11, 13], &[17, 1], 3),
        (&[3, 999], &[1, 4], 2),
        (&[9, 7, 5], &[100, 10, 1], 5),
        (&[5, 8], &[8, 2], 0),
        (&[1000, 3], &[4, 1], 1),
    ];
    views.into_iter().map(|(shape, strides, offset)| tensor.as_strided(shape, strides, offset)).collect()
}

/// Also in pieces that cut runs, and into memory that is there.
fn hostile_strides(bed: &Bed) -> Result<(), Failed> {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::F64, DType::Complex128] {
        let tensor = bed.tensor(dtype, &[4099]);
        let expected = Contents::of_all(&mut hostile_views(&tensor)?);
        let there = hostile_views(&bed.up(tensor)?)?;
        let always = bed.options().policy(CopyPolicy::Always);
        for options in [always.clone(), always.clone().packing(false), always.max_bytes_in_flight(4099)] {
            for target in [&bed.host, &bed.device] {
                let (copied, _) = bed.copy(there.clone(), target, options.clone())?;
                assert_same(&expected, &Contents::of_all(&mut bed.down(copied)?));
            }
        }
        if gathers(bed) {
            for to in [&bed.host, &bed.device] {
                let held = there.iter().map(|view| Tensor::zeros(view.shape(), dtype, to));
                let held = held.collect::<transship::Result<Vec<_>>>()?;
                let filled = start_copy_into(there.clone(), held, bed.options())?.wait()?;
                assert_same(&expected, &Contents::of_all(&mut bed.down(filled)?));
            }
        }
    }
    Ok(())
}

/// Aliases are the same elements in the same order; the same start is not enough.
fn one_part_twice_and_its_neighbour(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::I32, &[40, 30]);
    let views = |tensor: &Tensor| {
        let part = tensor.narrow(1, 3, 10)?.narrow(0, 0, 20)?;
        Ok(vec![
            part.clone(),
            part.clone(),
            tensor.narrow(1, 3, 20)?.narrow(0, 0, 10)?,
            part.transpose(0, 1)?,
            tensor.narrow(1, 3, 20)?.slice(1, 0..20, 2)?.narrow(0, 0, 20)?,
        ])
    };
    let report = parts_come_over(bed, &tensor, views, &bed.host, bed.options())?;
    assert!(!gathers(bed) || report.aliased == 1, "{report}");
    Ok(())
}

fn into_memory_on_the_host(bed: &Bed) -> Result<(), Failed> {
    into_memory(bed, &bed.host)
}

fn into_memory_on_the_device(bed: &Bed) -> Result<(), Failed> {
    into_memory(bed, &bed.device)
}

/// Memory that is there is filled without gaps, whatever the strides of the source; or the copy is refused.
fn into_memory(bed: &Bed, to: &Device) -> Result<(), Failed> {
    let tensor = base(bed, DType::F32);
    let expected = Contents::of_all(&mut views(&tensor)?);
    let there = views(&bed.up(tensor)?)?;
    let held = there.iter().map(|view| Tensor::zeros(view.shape(), view.dtype(), to));
    let held = held.collect::<transship::Result<Vec<_>>>()?;
    match start_copy_into(there, held, bed.options()) {
        Ok(copy) => {
            let mut filled = copy.wait()?;
            if !to.is_host() {
                filled = bed.down(filled)?;
            }
            assert_same(&expected, &Contents::of_all(&mut filled));
        }
        Err(refused) => {
            assert!(!gathers(bed) && format!("{refused:#}").contains("strided"), "{refused:#}");
            assert_eq!(refused.into_both().0.map(|value| value.len()), Some(expected.len()));
        }
    }
    Ok(())
}

fn large_parts_between_devices(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::F16, &[5003, 90]);
    parts_come_over(bed, &tensor, large_parts, bed.second()?, bed.options())?;
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
