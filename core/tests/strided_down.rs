//! Strided tensors of a device: where it can, it leaves their gaps out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::LateConfig;
use proptest::prelude::*;
use support::{in_time, no_violations, on, with};
use transship_core::{
    Alignment, Cast, CopyOptions, CopyPolicy, DType, Device, ErrorKind, Tensor, start_copy, start_copy_into,
};

const BYTES: usize = 100_000;

fn gathering() -> LateConfig {
    LateConfig { gather: Some(24), gather_strided: Some(176), ..LateConfig::new("late") }
}

/// Beside other copies, without a table, and in granules.
fn gathering_granules() -> LateConfig {
    LateConfig {
        largest_strided: 1 << 30,
        copy_granularity: Alignment::new(4).unwrap(),
        ..LateConfig::new("late")
    }
}

fn numbers() -> Vec<u8> {
    (0..BYTES).map(|index| (index % 251) as u8).collect()
}

/// Shape, strides and offset of a view of as many bytes.
type View = (Vec<usize>, Vec<usize>, usize);

fn view() -> impl Strategy<Value = View> {
    let dim = || (1..9_usize, prop_oneof![0..4_usize, 0..200_usize]);
    let long = (1..3000_usize, 1..9_usize);
    (prop::collection::vec(dim(), 0..5), prop::option::of(long), 0..1000_usize).prop_map(
        |(mut dims, long, offset)| {
            dims.extend(long);
            let (shape, strides) = dims.into_iter().unzip();
            (shape, strides, offset)
        },
    )
}

fn views(tensor: &Tensor, views: &[View]) -> Vec<Tensor> {
    let one = |(shape, strides, offset): &View| tensor.as_strided(shape, strides, *offset).unwrap();
    views.iter().map(one).collect()
}

fn contents(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

#[test]
fn gaps_are_left_out_without_pinned_memory_as_well() {
    gaps_are_left_out_without_pinned_memory(gathering(), 0);
}

/// A kernel that needs no table reaches ordinary memory. Runs of 3 bytes are no copies there.
///
/// catches: 420-runs-that-are-no-granules
#[test]
fn kernels_without_a_table_write_to_ordinary_memory() {
    gaps_are_left_out_without_pinned_memory(gathering_granules(), 10);
}

fn gaps_are_left_out_without_pinned_memory(config: LateConfig, gathered: u64) {
    let (late, device) = with(LateConfig { staging_memory: 0, ..config });
    let there = on(&device, &numbers());
    let columns = |tensor: &Tensor| {
        let matrix = tensor.reshape(&[1000, 100]).unwrap();
        (0..10).map(|column| matrix.narrow(1, column * 10, 3).unwrap()).collect::<Vec<_>>()
    };
    let copy = start_copy(columns(&there), &Device::host(), CopyOptions::default()).unwrap();
    let (back, report) = copy.wait_with_report().unwrap();
    assert_eq!(contents(&back), contents(&columns(&Tensor::from(numbers()))));
    assert!(back.iter().all(Tensor::is_contiguous));
    assert_eq!((report.copied_bytes, report.gathered), (30_000, gathered), "{report}");
    no_violations(&late);
}

/// Where kernels reach so far only, what lies farther apart is copied as it lies. One run has no gaps, whatever its size.
///
/// catches: 421-larger-than-the-device-gathers, 422-one-run-is-too-large-to-be-cast
#[test]
fn what_is_larger_than_the_device_gathers_keeps_its_gaps() {
    let (late, device) = with(LateConfig { largest_strided: 60_000, ..gathering_granules() });
    let columns = |rows: usize| {
        let matrix = Tensor::from(numbers()).reshape(&[1000, 100]).unwrap();
        let columns = |tensor: Tensor| tensor.narrow(0, 0, rows).unwrap().narrow(1, 8, 4).unwrap();
        let there = on(&device, &numbers()).reshape(&[1000, 100]).unwrap();
        (columns(matrix).to_bytes().unwrap(), columns(there))
    };
    for (rows, is_gathered) in [(600, true), (601, false)] {
        let (expected, there) = columns(rows);
        let back = start_copy(there.clone(), &Device::host(), CopyOptions::default()).unwrap();
        let (back, report) = back.wait_with_report().unwrap();
        assert_eq!(
            (back.is_contiguous(), report.gathered),
            (is_gathered, u64::from(is_gathered)),
            "{report}"
        );
        assert_eq!(back.to_bytes().unwrap(), expected);
        let cast = CopyOptions::default().cast(Cast::new(DType::U8, DType::U16));
        match start_copy(there, &Device::host(), cast) {
            Ok(copy) => assert_eq!((copy.wait().unwrap().dtype(), is_gathered), (DType::U16, true)),
            Err(refused) => {
                assert_eq!((refused.error().kind(), is_gathered), (ErrorKind::Unsupported, false));
                assert!(format!("{refused:#}").contains("largest_strided"), "{refused:#}");
            }
        }
    }
    let held = Tensor::zeros(&[601, 4], DType::U8, &Device::host()).unwrap();
    let refused = start_copy_into(columns(601).1, held, CopyOptions::default()).unwrap_err();
    assert!(format!("{refused:#}").contains("largest_strided"), "{refused:#}");
    // A tensor that is repeated has few bytes there.
    let repeated = on(&device, &numbers()).as_strided(&[60_001, 2], &[0, 2], 1).unwrap();
    let back = start_copy(repeated, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert!(!back.is_contiguous() && back.to_bytes().unwrap() == [1, 3].repeat(60_001));
    let cast = CopyOptions::default().cast(Cast::new(DType::U8, DType::U16));
    let back = start_copy(on(&device, &numbers()), &Device::host(), cast).unwrap().wait().unwrap();
    assert_eq!(back.to_vec::<u16>().unwrap(), numbers().into_iter().map(u16::from).collect::<Vec<_>>());
    no_violations(&late);
}

/// The table has an entry for each part of a tensor, and is larger than the smallest block.
#[test]
fn many_tensors_are_gathered_in_many_parts() {
    let (late, device) = with(gathering());
    let columns = |tensor: &Tensor| {
        let matrix = tensor.reshape(&[1000, 100]).unwrap();
        (0..80).map(|column| matrix.narrow(1, column, 20).unwrap()).collect::<Vec<_>>()
    };
    let there = columns(&on(&device, &numbers()));
    // The first copy finds no block for the table.
    for _ in 0..2 {
        let copy = start_copy(there.clone(), &Device::host(), CopyOptions::default()).unwrap();
        let (back, report) = copy.wait_with_report().unwrap();
        assert_eq!(contents(&back), contents(&columns(&Tensor::from(numbers()))));
        assert!((report.gathered, report.copies) == (400, 1) || report.background, "{report}");
    }
    no_violations(&late);
}

/// The memory of a view that was copied without its gaps is not kept by the copy.
#[test]
fn a_small_part_of_a_large_tensor_takes_little_memory() {
    let (late, device) = with(gathering());
    let column = on(&device, &numbers()).reshape(&[1000, 100]).unwrap().narrow(1, 7, 1).unwrap();
    let always = CopyOptions::default().policy(CopyPolicy::Always);
    let copy = start_copy(column, &device, always).unwrap().wait().unwrap();
    assert!(copy.is_contiguous() && copy.retained_bytes() < 2000, "{}", copy.retained_bytes());
    no_violations(&late);
}

/// What counts is what a copy would move.
#[test]
fn columns_of_a_large_matrix_are_compacted() {
    let (late, device) = with(gathering());
    let compact = || CopyOptions::default().policy(CopyPolicy::Compact);
    for (to, there) in [(device.clone(), on(&device, &numbers())), (Device::host(), Tensor::from(numbers()))]
    {
        let columns = there.reshape(&[1000, 100]).unwrap().narrow(1, 5, 30).unwrap();
        let compacted = start_copy(columns, &to, compact()).unwrap().wait().unwrap();
        assert!(compacted.is_contiguous() && compacted.retained_bytes() < 2 * 30_000, "on {}", to.id());
        let most = there.reshape(&[1000, 100]).unwrap().narrow(1, 5, 60).unwrap();
        let kept = start_copy(most, &to, compact()).unwrap().wait().unwrap();
        assert!(kept.shares_memory_with(&there), "on {}", to.id());
    }
    no_violations(&late);
}

/// The error says what helps.
#[test]
fn memory_that_no_kernel_fills_is_refused_with_the_reason() {
    let (late, device) = with(gathering());
    let tensor = on(&device, &numbers());
    let refused = |view: Tensor, options: CopyOptions| {
        let held = Tensor::zeros(view.shape(), view.dtype(), &Device::host()).unwrap();
        let error = start_copy_into(view, held, options).unwrap_err();
        format!("{error:#}")
    };
    let columns = tensor.reshape(&[1000, 100]).unwrap().narrow(1, 5, 30).unwrap();
    let unpinned = refused(columns, CopyOptions::default().pinned_staging(false));
    assert!(unpinned.contains("leave pinned_staging on"), "{unpinned}");
    let strides: Vec<usize> = (0..9).rev().map(|dim| 2 * 3_usize.pow(dim)).collect();
    let deep = refused(tensor.as_strided(&[2; 9], &strides, 0).unwrap(), CopyOptions::default());
    assert!(deep.contains("more than 8 dimensions"), "{deep}");
    no_violations(&late);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_views_come_as_they_are(
        wanted in prop::collection::vec(view(), 1..14),
        pinned_results in any::<bool>(),
        staging in prop_oneof![Just(1_usize << 26), (16..18_u32).prop_map(|bits| 1 << bits)],
        (seed, pack, into, within) in (prop::option::of(any::<u64>()), any::<bool>(), any::<bool>(), any::<bool>()),
        granules in prop::option::of(any::<bool>()),
    ) {
        let config = match granules {
            None => gathering(),
            Some(mapped_staging) => LateConfig { mapped_staging, ..gathering_granules() },
        };
        let (late, device) = with(LateConfig { seed, ..config });
        let there = views(&on(&device, &numbers()), &wanted);
        let expected = contents(&views(&Tensor::from(numbers()), &wanted));
        // One run is read in granules.
        let begins_with_one = |view: &Tensor| !view.is_contiguous() || view.offset().is_multiple_of(4);
        let into = into && (granules.is_none() || there.iter().all(begins_with_one));
        device.set_staging_budget(staging).unwrap();
        device.set_result_budget(if pinned_results { 1 << 26 } else { 1 << 16 }).unwrap();
        let options = CopyOptions::default().packing(pack).policy(CopyPolicy::Always);
        let to = if within { device.clone() } else { Device::host() };
        let found = in_time(move || {
            let held = || there.iter().map(|view| Tensor::zeros(view.shape(), view.dtype(), &to).unwrap());
            let copied = match into {
                true => start_copy_into(there.clone(), held().collect(), options).unwrap().wait().unwrap(),
                false => start_copy(there, &to, options).unwrap().wait().unwrap(),
            };
            contents(&start_copy(copied, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap())
        });
        prop_assert_eq!(found, expected);
        prop_assert!(late.violations().is_empty(), "{:?}", late.violations());
    }
}
