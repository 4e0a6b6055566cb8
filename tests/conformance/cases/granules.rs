//! Tensors that begin and end anywhere, on devices that copy whole granules only.

use libtest_mimic::Failed;
use transship::{CopyOptions, CopyPolicy, DType, Tensor};

use crate::backends::Need::{OwnMemory, SecondDevice};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(odd_views_come_down).needs(OwnMemory),
        case!(odd_views_come_down_unpacked).needs(OwnMemory),
        case!(odd_views_come_down_without_alignment).needs(OwnMemory),
        case!(odd_views_come_down_without_pinned_staging).needs(OwnMemory),
        case!(odd_views_come_down_mapped).needs(OwnMemory),
        case!(large_odd_views_come_down).needs(OwnMemory),
        case!(large_odd_views_come_down_mapped).needs(OwnMemory),
        case!(large_odd_views_come_down_in_pieces).needs(OwnMemory),
        case!(odd_views_are_copied_on_their_device).needs(OwnMemory),
        case!(odd_views_go_to_another_device).needs(SecondDevice),
        case!(odd_lengths_are_cleared),
        case!(packed_tensors_are_bindable),
    ]
}

/// Views of a tensor of one dimension: neighbours, some that overlap, and some that lie apart, by start and length.
fn views(of: &Tensor, spans: &[(usize, usize)]) -> transship::Result<Vec<Tensor>> {
    spans.iter().map(|(start, len)| of.narrow(0, *start, *len)).collect()
}

fn small_spans() -> Vec<(usize, usize)> {
    let neighbours = [(0, 1), (1, 1), (2, 3), (5, 7), (12, 2), (14, 5)];
    let others = [(3, 9), (101, 3), (102, 1), (1001, 997), (2047, 1), (333, 333), (2040, 8), (1, 2046)];
    neighbours.into_iter().chain(others).collect()
}

fn come_down(bed: &Bed, dtype: DType, options: &CopyOptions) -> Result<(), Failed> {
    let tensor = bed.tensor(dtype, &[2048]);
    let expected = Contents::of_all(&mut views(&tensor, &small_spans())?);
    let there = bed.up(tensor)?;
    let (mut back, _) = bed.copy(views(&there, &small_spans())?, &bed.host, options.clone())?;
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

fn all_odd_types(bed: &Bed, options: CopyOptions) -> Result<(), Failed> {
    [DType::Bool, DType::U8, DType::F16, DType::F32]
        .into_iter()
        .try_for_each(|dtype| come_down(bed, dtype, &options))
}

fn odd_views_come_down(bed: &Bed) -> Result<(), Failed> {
    all_odd_types(bed, bed.options())
}

fn odd_views_come_down_unpacked(bed: &Bed) -> Result<(), Failed> {
    all_odd_types(bed, bed.options().packing(false))
}

fn odd_views_come_down_without_alignment(bed: &Bed) -> Result<(), Failed> {
    all_odd_types(bed, bed.options().packed_alignment(1))
}

fn odd_views_come_down_without_pinned_staging(bed: &Bed) -> Result<(), Failed> {
    all_odd_types(bed, bed.options().pinned_staging(false))
}

fn odd_views_come_down_mapped(bed: &Bed) -> Result<(), Failed> {
    all_odd_types(bed, mapped(bed))
}

fn mapped(bed: &Bed) -> CopyOptions {
    // SAFETY: nobody destroys the device.
    unsafe { bed.options().mapped_results() }
}

/// More than a staging block each.
fn large(bed: &Bed, options: CopyOptions) -> Result<(), Failed> {
    const BYTES: usize = (5 << 20) + 7;
    let tensor = bed.bytes(2 * BYTES);
    let spans = [(1, BYTES), (BYTES + 1, 3), (BYTES + 6, BYTES - 6)];
    let expected = Contents::of_all(&mut views(&tensor, &spans)?);
    let there = bed.up(tensor)?;
    let (mut back, _) = bed.copy(views(&there, &spans)?, &bed.host, options)?;
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

fn large_odd_views_come_down(bed: &Bed) -> Result<(), Failed> {
    large(bed, bed.options())?;
    large(bed, bed.options().pinned_staging(false))
}

fn large_odd_views_come_down_mapped(bed: &Bed) -> Result<(), Failed> {
    large(bed, mapped(bed))?;
    large(bed, mapped(bed).max_bytes_in_flight((1 << 20) + 1))
}

fn large_odd_views_come_down_in_pieces(bed: &Bed) -> Result<(), Failed> {
    large(bed, bed.options().max_bytes_in_flight((1 << 20) + 1))
}

fn odd_views_are_copied_on_their_device(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::U8, &[2048]);
    let expected = Contents::of_all(&mut views(&tensor, &small_spans())?);
    let there = bed.up(tensor)?;
    let always = bed.options().policy(CopyPolicy::Always);
    let (copies, _) = bed.copy(views(&there, &small_spans())?, &bed.device, always)?;
    drop(there);
    assert_same(&expected, &Contents::of_all(&mut bed.down(copies)?));
    Ok(())
}

fn odd_views_go_to_another_device(bed: &Bed) -> Result<(), Failed> {
    let tensor = bed.tensor(DType::F16, &[2048]);
    let expected = Contents::of_all(&mut views(&tensor, &small_spans())?);
    let there = bed.up(tensor)?;
    let (copies, _) = bed.copy(views(&there, &small_spans())?, bed.second()?, bed.options())?;
    assert_same(&expected, &Contents::of_all(&mut bed.down(copies)?));
    Ok(())
}

fn odd_lengths_are_cleared(bed: &Bed) -> Result<(), Failed> {
    let tensors = [0, 1, 2, 3, 5, 1023].map(|len| Tensor::zeros(&[len], DType::U8, &bed.device));
    let there = tensors.into_iter().collect::<transship::Result<Vec<_>>>()?;
    for tensor in bed.down(there)? {
        assert!(tensor.to_bytes()?.iter().all(|byte| *byte == 0));
    }
    Ok(())
}

fn packed_tensors_are_bindable(bed: &Bed) -> Result<(), Failed> {
    let demanded = bed.device.limits().bindable_alignment;
    let (there, _) = bed.copy(bed.batch(30), &bed.device, bed.options().bindable(true))?;
    assert!(there.iter().all(|tensor| demanded.divides(tensor.offset())));
    let tight = bed.options().bindable(false).packed_alignment(1);
    let (there, _) = bed.copy(bed.batch(30), &bed.device, tight)?;
    assert!(demanded.bytes() <= 16 || there.iter().any(|tensor| !demanded.divides(tensor.offset())));
    Ok(())
}
