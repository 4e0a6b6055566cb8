//! Copies into memory that the caller holds with gaps, or in another order than that of its dimensions.

use libtest_mimic::Failed;
use transship::{
    Alignment, Cast, CopyOptions, CopyPolicy, DType, Device, Error, Tensor, start_copy, start_copy_into,
};

use crate::backends::Need::{OwnMemory, Pinned, SecondDevice};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(up_into_views),
        case!(within_the_device_into_views),
        case!(from_another_device_into_views).needs(SecondDevice),
        case!(down_into_views),
        case!(large_views),
        case!(sources_with_gaps_of_their_own),
        case!(any_type_at_any_byte),
        case!(many_dimensions),
        case!(parts_of_one_tensor_side_by_side),
        case!(without_pinned_memory),
        case!(again_and_again),
        case!(from_and_to_pinned_memory).needs(Pinned),
        case!(elements_that_overlap_are_refused),
        case!(parts_of_granules_are_refused),
        case!(casts_into_views),
        case!(casts_within_a_device_are_refused).needs(OwnMemory),
    ]
}

/// Takes views of a tensor.
type Take = fn(&Tensor) -> transship::Result<Vec<Tensor>>;

/// Brings tensors from the host to where they are copied from.
type Bring<'a> = &'a dyn Fn(Vec<Tensor>) -> Result<Vec<Tensor>, Failed>;

/// One copy.
struct Copying<'a> {
    to: &'a Device,
    bring: Bring<'a>,
    options: CopyOptions,
}

impl<'a> Copying<'a> {
    fn of(bed: &Bed, to: &'a Device, bring: Bring<'a>) -> Self {
        Self { to, bring, options: bed.options() }
    }

    /// Copies random elements into the views that `take` gives of a tensor, each alone: looks at where they lie, at them, and at all that
    /// lies between them.
    fn fill(&self, bed: &Bed, dtype: DType, shape: &[usize], take: Take) -> Result<(), Failed> {
        let count = take(&bed.tensor(dtype, shape))?.len();
        for index in 0..count {
            self.fill_all(bed, dtype, shape, |whole| Ok(vec![take(whole)?.swap_remove(index)]))?;
        }
        Ok(())
    }

    /// The same, all of them by one copy.
    fn fill_all(
        &self,
        bed: &Bed,
        dtype: DType,
        shape: &[usize],
        take: impl Fn(&Tensor) -> transship::Result<Vec<Tensor>>,
    ) -> Result<(), Failed> {
        let whole = bed.tensor(dtype, shape);
        let held =
            take(&bed.copy(whole.clone(), self.to, CopyOptions::default().policy(CopyPolicy::Always))?.0)?;
        let values = held.iter().map(|view| bed.tensor(dtype, view.shape())).collect::<Vec<_>>();
        let mut expected = whole.to_bytes()?;
        for (view, value) in take(&whole)?.iter().zip(&values) {
            write(&mut expected, view, &value.to_bytes()?);
        }
        let before = held.iter().map(Place::of).collect::<Result<Vec<_>, _>>()?;
        let copied = start_copy_into((self.bring)(values.clone())?, held, self.options.clone())?;
        let (held, report) = copied.wait_with_report()?;
        assert_eq!(held.iter().map(Place::of).collect::<Result<Vec<_>, _>>()?, before, "{report}");
        let values = values.iter().map(Contents::of).collect::<Vec<_>>();
        assert_same(&values, &Contents::of_all(&mut bed.down(held.clone())?));
        for view in &held {
            let span = view.layout().span() / dtype.size();
            let around = bed.down(view.as_strided(&[span], &[1], 0)?)?.to_bytes()?;
            assert_eq!(
                around,
                expected[view.offset()..][..around.len()],
                "{:?} {:?}",
                view.shape(),
                view.strides()
            );
        }
        Ok(())
    }
}

/// Where a tensor lies.
#[derive(Debug, PartialEq)]
struct Place(Option<u64>, usize, Vec<usize>);

impl Place {
    fn of(tensor: &Tensor) -> Result<Self, Error> {
        Ok(Self(tensor.address()?, tensor.offset(), tensor.strides().to_vec()))
    }
}

/// Writes elements to where those of `view` lie in the bytes of its memory, by the definition of strides.
fn write(memory: &mut [u8], view: &Tensor, elements: &[u8]) {
    let size = view.dtype().size();
    let mut places = vec![view.offset()];
    for (count, stride) in view.shape().iter().zip(view.strides().iter()) {
        let along = |place: usize| (0..*count).map(move |index| place + index * stride * size);
        places = places.into_iter().flat_map(along).collect();
    }
    for (place, element) in places.into_iter().zip(elements.chunks(size)) {
        memory[place..place + size].copy_from_slice(element);
    }
}

/// Views of a tensor of shape `[6, 8, 12]`, none of whose elements overlap.
fn views(whole: &Tensor) -> transship::Result<Vec<Tensor>> {
    Ok(vec![
        whole.narrow(0, 2, 3)?,
        whole.narrow(1, 1, 5)?,
        whole.narrow(2, 4, 4)?,
        whole.slice(0, 1..6, 2)?,
        whole.slice(1, 0..8, 3)?,
        whole.slice(2, 0..12, 5)?,
        whole.transpose(0, 2)?,
        whole.permute(&[2, 0, 1])?,
        whole.permute(&[2, 1, 0])?.narrow(0, 3, 5)?,
        whole.narrow(1, 2, 4)?.slice(2, 1..9, 4)?.transpose(0, 1)?,
        whole.narrow(2, 7, 1)?,
        whole.narrow(2, 7, 1)?.squeeze(2)?.unsqueeze(0)?,
        whole.as_strided(&[1, 5, 1, 3], &[1_000_000, 12, 0, 2], 1)?,
        whole.as_strided(&[4, 2, 2], &[1, 200, 50], 3)?,
        whole.as_strided(&[0, 4], &[0, 0], 7)?,
        whole.as_strided(&[], &[], 11)?,
    ])
}

const SHAPE: [usize; 3] = [6, 8, 12];

fn up_into_views(bed: &Bed) -> Result<(), Failed> {
    let up = Copying::of(bed, &bed.device, &Ok);
    [DType::F32, DType::Complex128].iter().try_for_each(|dtype| up.fill(bed, *dtype, &SHAPE, views))
}

fn within_the_device_into_views(bed: &Bed) -> Result<(), Failed> {
    let bring = |value| bed.up(value);
    Copying::of(bed, &bed.device, &bring).fill(bed, DType::I64, &SHAPE, views)
}

fn from_another_device_into_views(bed: &Bed) -> Result<(), Failed> {
    let second = bed.second()?;
    let bring = |value| Ok(bed.copy(value, second, bed.options())?.0);
    Copying::of(bed, &bed.device, &bring).fill(bed, DType::F32, &SHAPE, views)
}

fn down_into_views(bed: &Bed) -> Result<(), Failed> {
    let bring = |value| bed.up(value);
    let down = Copying::of(bed, &bed.host, &bring);
    [DType::U8, DType::F16, DType::F32, DType::Complex128]
        .iter()
        .try_for_each(|dtype| down.fill(bed, *dtype, &SHAPE, views))
}

/// More than the largest staging block, cut anywhere. Of wide elements, since what takes time here is their number.
fn large_views(bed: &Bed) -> Result<(), Failed> {
    const LARGEST_BLOCK: usize = 4 << 20;
    let columns: Take = |whole| Ok(vec![whole.narrow(1, 20, 250)?]);
    let turned: Take = |whole| Ok(vec![whole.narrow(1, 3, 260)?.transpose(0, 1)?]);
    const { assert!(1101 * 250 * DType::Complex128.size() > LARGEST_BLOCK) };
    let bring = |value| bed.up(value);
    for to in [&bed.device, &bed.host] {
        for bring in [&Ok as Bring<'_>, &bring] {
            let copying = Copying::of(bed, to, bring);
            copying.fill(bed, DType::Complex128, &[1101, 300], columns)?;
            // Without a kernel each element is a copy of its own.
            let shape = if scatters(bed, to, DType::Complex128) { [1101, 300] } else { [25, 300] };
            copying.fill(bed, DType::Complex128, &shape, turned)?;
        }
    }
    Ok(())
}

/// Whether the host or a kernel writes elements of that type one by one there, if there are many.
fn scatters(bed: &Bed, to: &Device, dtype: DType) -> bool {
    let limits = bed.device.limits();
    to.is_host() || limits.gather_strided.is_some() || limits.largest_scattered_run >= dtype.size()
}

/// On the host, and on a device that gathers.
fn sources_with_gaps_of_their_own(bed: &Bed) -> Result<(), Failed> {
    let turned = |tensor: &Tensor| -> Result<Tensor, Failed> {
        let rank = tensor.rank();
        let other = (0..rank).rev().collect::<Vec<_>>();
        Ok(tensor.permute(&other)?.contiguous()?.permute(&other)?)
    };
    let here = |value: Vec<Tensor>| value.iter().map(turned).collect();
    let there = |value: Vec<Tensor>| {
        let turned_back = value.iter().map(|tensor| {
            let other = (0..tensor.rank()).rev().collect::<Vec<_>>();
            let strides = turned(tensor)?.strides().to_vec();
            let across = bed.up(tensor.permute(&other)?.contiguous()?)?;
            Ok(across.as_strided(tensor.shape(), &strides, 0)?)
        });
        turned_back.collect()
    };
    for to in [&bed.device, &bed.host] {
        Copying::of(bed, to, &here).fill(bed, DType::F32, &SHAPE, views)?;
        if bed.device.limits().gathers() {
            Copying::of(bed, to, &there).fill(bed, DType::F32, &SHAPE, views)?;
        }
    }
    Ok(())
}

/// Where a device copies single bytes, and on the host.
fn any_type_at_any_byte(bed: &Bed) -> Result<(), Failed> {
    let bring = |value| bed.up(value);
    for to in [&bed.device, &bed.host] {
        if to.limits().copy_granularity > Alignment::ONE {
            continue;
        }
        for bring in [&Ok as Bring<'_>, &bring] {
            let copying = Copying::of(bed, to, bring);
            for dtype in [DType::U8, DType::Bool, DType::F16, DType::BF16] {
                copying.fill(bed, dtype, &SHAPE, views)?;
            }
            let odd: Take = |whole| {
                Ok(vec![
                    whole.as_strided(&[7, 3], &[13, 1], 1)?,
                    whole.as_strided(&[7, 16], &[17, 1], 3)?,
                    whole.as_strided(&[5, 16], &[32, 1], 16)?,
                    whole.as_strided(&[3, 5, 2], &[2, 64, 1], 5)?,
                ])
            };
            copying.fill(bed, DType::U8, &[400], odd)?;
        }
    }
    Ok(())
}

/// Eight of them by a kernel, nine by a copy for each run.
fn many_dimensions(bed: &Bed) -> Result<(), Failed> {
    let take: Take = |whole| {
        let of = |rank: usize| {
            let strides = (0..rank).map(|dim| 2 * 3_usize.pow(dim as u32)).collect::<Vec<_>>();
            whole.as_strided(&vec![2; rank], &strides, 0)
        };
        Ok(vec![of(8)?, of(9)?])
    };
    let bring = |value| bed.up(value);
    for to in [&bed.device, &bed.host] {
        for bring in [&Ok as Bring<'_>, &bring] {
            Copying::of(bed, to, bring).fill(bed, DType::F32, &[20_000], take)?;
        }
    }
    Ok(())
}

/// Columns of one tensor beside each other, and what lies in their gaps, by one copy.
fn parts_of_one_tensor_side_by_side(bed: &Bed) -> Result<(), Failed> {
    let take = |whole: &Tensor| {
        Ok(vec![
            whole.narrow(1, 16, 16)?,
            whole.narrow(1, 0, 8)?,
            whole.narrow(1, 40, 8)?.transpose(0, 1)?,
            whole.narrow(0, 3, 1)?.narrow(1, 8, 8)?,
            whole.narrow(0, 4, 1)?.narrow(1, 8, 4)?,
            whole.narrow(1, 48, 0)?,
        ])
    };
    let bring = |value| bed.up(value);
    for to in [&bed.device, &bed.host] {
        for bring in [&Ok as Bring<'_>, &bring] {
            for background in [transship::BackgroundWork::Auto, transship::BackgroundWork::Always] {
                let mut copying = Copying::of(bed, to, bring);
                copying.options = copying.options.background(background);
                copying.fill_all(bed, DType::F32, &[30, 64], take)?;
            }
        }
    }
    Ok(())
}

/// Kernels do not read the blocks then.
fn without_pinned_memory(bed: &Bed) -> Result<(), Failed> {
    let bring = |value| bed.up(value);
    for to in [&bed.device, &bed.host] {
        for bring in [&Ok as Bring<'_>, &bring] {
            let mut copying = Copying::of(bed, to, bring);
            copying.options = copying.options.pinned_staging(false);
            copying.fill(bed, DType::F32, &SHAPE, views)?;
        }
    }
    Ok(())
}

fn again_and_again(bed: &Bed) -> Result<(), Failed> {
    let mut held = vec![bed.up(bed.tensor(DType::F32, &[64, 32]))?.narrow(1, 4, 8)?];
    for _ in 0..5 {
        let value = bed.tensor(DType::F32, &[64, 8]);
        let expected = Contents::of(&value);
        held = start_copy_into(vec![value], held, bed.options())?.wait()?;
        assert_same(&[expected], &Contents::of_all(&mut bed.down(held.clone())?));
    }
    Ok(())
}

/// Large sources in pinned memory, and memory to fill that is pinned.
///
/// catches: 332-pinned-source-goes-to-gaps-directly, 333-runs-of-pinned-memory-one-by-one
fn from_and_to_pinned_memory(bed: &Bed) -> Result<(), Failed> {
    let value = bed.tensor(DType::F32, &[600, 300]);
    let mut pinned = Tensor::empty_pinned(&[600, 300], DType::F32, &bed.device)?;
    pinned.as_mut_bytes()?.copy_from_slice(value.as_bytes()?);
    let there = bed.up(bed.tensor(DType::F32, &[600, 512]))?.narrow(1, 100, 300)?;
    let there = start_copy_into(pinned, there, bed.options())?.wait()?;
    assert_same(&[Contents::of(&value)], &[Contents::of(&bed.down(there)?)]);

    let mut pinned = Tensor::empty_pinned(&[600, 512], DType::F32, &bed.device)?;
    pinned.as_mut_bytes()?.fill(7);
    let held = pinned.narrow(1, 100, 300)?;
    drop(pinned);
    let copied = start_copy_into(bed.up(value.clone())?, held, bed.options())?;
    let (held, report) = copied.wait_with_report()?;
    assert!(report.copies < 100, "each run was copied on its own: {report}");
    assert_same(&[Contents::of(&value)], &[Contents::of(&held)]);
    let gaps = held.as_strided(&[599, 212], &[512, 1], 300)?.to_bytes()?;
    assert!(gaps.iter().all(|byte| *byte == 7), "what lies between rows was written");
    Ok(())
}

/// The error names shape and strides, and gives both structures back.
///
/// catches: 326-elements-that-overlap-are-filled
fn elements_that_overlap_are_refused(bed: &Bed) -> Result<(), Failed> {
    for (shape, strides) in [(vec![4], vec![0]), (vec![3, 4], vec![3, 1]), (vec![3, 2], vec![2, 3])] {
        let held = vec![bed.up(bed.tensor(DType::F32, &[64]))?.as_strided(&shape, &strides, 8)?];
        let failed = start_copy_into(vec![bed.tensor(DType::F32, &shape)], held, bed.options());
        let failed = failed.expect_err("its elements overlap or interleave");
        let said = failed.error().to_string();
        assert!(said.contains(&format!("shape {shape:?} with strides {strides:?}")), "{said}");
        let (value, held) = failed.into_both();
        assert_eq!(value.ok_or("the value comes back")?[0].shape(), shape);
        assert_eq!(held.ok_or("the memory comes back")?[0].strides()[..], strides);
    }
    for (first, overlap) in [(3, true), (4, false)] {
        let whole = bed.up(bed.tensor(DType::F32, &[64]))?;
        let held = vec![whole.as_strided(&[6, 4], &[10, 1], 0)?, whole.as_strided(&[6, 4], &[10, 1], first)?];
        drop(whole);
        let value = (0..2).map(|_| bed.tensor(DType::F32, &[6, 4])).collect::<Vec<_>>();
        match start_copy_into(value, held, bed.options()) {
            Ok(copy) => assert!(copy.wait().is_ok() && !overlap, "a column belongs to both"),
            Err(failed) => {
                let Error::UnsuitedTensor { index: 1, error, .. } = failed.error() else {
                    return Err(failed.to_string().into());
                };
                assert!(overlap && matches!(**error, Error::NotWritable { .. }), "{error}");
            }
        }
    }
    Ok(())
}

/// What a device copies in granules has runs of whole ones.
fn parts_of_granules_are_refused(bed: &Bed) -> Result<(), Failed> {
    let whole = bed.device.limits().copy_granularity == Alignment::ONE;
    for (shape, strides, offset) in [([4, 4], [10, 1], 0), ([4, 6], [12, 1], 0), ([4, 4], [12, 1], 2)] {
        let held = vec![bed.up(bed.tensor(DType::U8, &[64]))?.as_strided(&shape, &strides, offset)?];
        match start_copy_into(vec![bed.tensor(DType::U8, &shape)], held, bed.options()) {
            Ok(copy) => assert!(copy.wait().is_ok() && whole, "no whole granules"),
            Err(refused) => {
                let Error::UnsuitedTensor { error, .. } = refused.error() else {
                    return Err(refused.to_string().into());
                };
                assert!(!whole && matches!(**error, Error::Misaligned { .. }), "{error}");
            }
        }
    }
    Ok(())
}

/// The host casts before, or a kernel on the way down.
///
/// catches: 336-narrow-elements-scattered
fn casts_into_views(bed: &Bed) -> Result<(), Failed> {
    let cast = bed.options().cast(Cast::new(DType::F32, DType::F64));
    let value = || bed.tensor(DType::F32, &[200, 300]);
    let kernel = bed.device.limits().gathers() && !bed.device.is_host();
    let bring = |value: &Tensor, up: bool| if up { bed.up(value.clone()) } else { Ok(value.clone()) };
    for (to, up) in [(&bed.device, false), (&bed.host, false), (&bed.host, kernel)] {
        let here = value();
        let whole = Tensor::zeros(&[200, 640], DType::F64, to)?;
        let held = whole.narrow(1, 10, 300)?;
        drop(whole);
        let held = start_copy_into(bring(&here, up)?, held, cast.clone())?.wait()?;
        assert!(!held.is_contiguous() && held.dtype() == DType::F64);
        let expected = start_copy(here, &bed.host, cast.clone())?.wait()?;
        assert_same(&[Contents::of(&expected)], &[Contents::of(&bed.down(held)?)]);
    }
    Ok(())
}

/// catches: 335-scattered-without-its-cast
fn casts_within_a_device_are_refused(bed: &Bed) -> Result<(), Failed> {
    let cast = bed.options().cast(Cast::new(DType::F32, DType::F64));
    let value = bed.up(bed.tensor(DType::F32, &[20, 30]))?;
    let held = Tensor::zeros(&[20, 64], DType::F64, &bed.device)?.narrow(1, 10, 30)?;
    let refused = start_copy_into(value, held, cast).expect_err("no kernel casts and scatters");
    assert!(refused.error().to_string().contains("cast"), "{refused}");
    assert!(refused.into_both().1.ok_or("the memory comes back")?.is_ready().is_ok());
    bed.still_works()
}
