//! Tensors that begin and end anywhere, on devices that copy whole granules only.

use libtest_mimic::Failed;
use transship::{CopyOptions, CopyPolicy, DType, Device, Error, Tensor, start_copy_into};

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
        case!(what_lies_behind_an_odd_view_is_kept),
        case!(odd_tensors_and_last_parts_are_filled),
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

/// Fills `len` elements of a part, from `start` on, and looks at all of them and at the part before. A device of granules may refuse it.
fn fill_a_view(bed: &Bed, to: &Device, value: Tensor, (start, len): (usize, usize)) -> Result<(), Failed> {
    const PARTS: [usize; 2] = [4, 12];
    let (dtype, size) = (value.dtype(), value.dtype().size());
    let all = bed.tensor(dtype, &[PARTS.iter().sum()]);
    let mut expected = all.to_bytes()?;
    let there = bed.copy(all, to, bed.options().policy(CopyPolicy::Always))?.0;
    let mut parts = there.split(0, &PARTS)?;
    let view = parts.pop().ok_or("there are two parts")?.narrow(0, start, len)?;
    let filling = bed.down(value.clone())?.to_bytes()?;
    let view = match start_copy_into(value, view, bed.options()) {
        Ok(copy) => {
            let first = (PARTS[0] + start) * size;
            expected[first..first + filling.len()].copy_from_slice(&filling);
            copy.wait()?
        }
        Err(refused) => {
            let granularity = to.limits().copy_granularity;
            let is_odd = !granularity.divides(start * size) || !granularity.divides(filling.len());
            let error = refused.error().to_string();
            assert!(is_odd && error.contains("is not a multiple of 4"), "{error}");
            assert!(
                matches!(refused.error(), Error::UnsuitedTensor { error, .. } if matches!(**error, Error::Misaligned { .. })),
                "{error}"
            );
            refused.into_both().1.ok_or("the memory comes back")?
        }
    };
    parts.push(view);
    let back = bed.copy(Tensor::join(parts)?, &bed.host, bed.options().policy(CopyPolicy::Always))?.0;
    assert_eq!(back.to_bytes()?, expected, "{dtype}, {len} elements from {start} on");
    Ok(())
}

/// Deliberate bug: a copy writes the rest of the last granule of a view, whoever has elements there.
///
/// catches: 733-elements-behind-a-view-overwritten
fn what_lies_behind_an_odd_view_is_kept(bed: &Bed) -> Result<(), Failed> {
    let cases =
        [DType::U8, DType::F16].into_iter().flat_map(|dtype| [(dtype, &bed.device), (dtype, &bed.host)]);
    for (dtype, to) in cases {
        for span in [(0, 1), (0, 5), (4, 3), (8, 4), (8, 3), (11, 1), (1, 3), (0, 12)] {
            fill_a_view(bed, to, bed.tensor(dtype, &[span.1]), span)?;
            let there = bed.up(bed.tensor(dtype, &[span.1]))?;
            fill_a_view(bed, to, there, span)?;
            // Elements that lie behind the source are no padding.
            let longer = bed.up(bed.tensor(dtype, &[span.1 + 7]))?;
            fill_a_view(bed, to, longer.narrow(0, 4, span.1)?, span)?;
        }
    }
    Ok(())
}

/// What is behind them in their last granule is nobody else's.
fn odd_tensors_and_last_parts_are_filled(bed: &Bed) -> Result<(), Failed> {
    for dtype in [DType::U8, DType::F16] {
        let zeros = |len: usize| Tensor::zeros(&[len], dtype, &bed.device);
        let value = |len: usize| bed.tensor(dtype, &[len]);
        let same = |expected: &Tensor, there: Tensor| -> Result<(), Failed> {
            assert_same(&[Contents::of(expected)], &[Contents::of(&bed.down(there)?)]);
            Ok(())
        };
        let whole = value(9);
        same(&whole, start_copy_into(whole.clone(), zeros(9)?, bed.options())?.wait()?)?;

        let (head, tail) = (value(4), value(5));
        let [first, last] =
            <[Tensor; 2]>::try_from(zeros(9)?.split(0, &[4, 5])?).map_err(|_| "there are two")?;
        let last = start_copy_into(tail.clone(), last, bed.options())?.wait()?;
        let first = start_copy_into(head.clone(), first, bed.options())?.wait()?;
        same(&tail, last.clone())?;
        let whole = Tensor::join(vec![first, last])?;
        same(&head, whole.narrow(0, 0, 4)?)?;
        same(&tail, whole.narrow(0, 4, 5)?)?;

        // The end of a part, and a view of a tensor that is gone.
        let part = zeros(17)?.split(0, &[17])?.remove(0);
        let end = part.narrow(0, 8, 9)?;
        drop(part);
        let value = value(9);
        same(&value, start_copy_into(value.clone(), end, bed.options())?.wait()?)?;
        let view = zeros(16)?.narrow(0, 0, 9)?;
        same(&value, start_copy_into(value.clone(), view, bed.options())?.wait()?)?;
    }
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
