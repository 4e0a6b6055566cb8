//! Elements that get larger on their way up: the device casts them out of staging blocks, which hold fewer bytes than come out of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::thread;

use half::bf16;
use late_backend::{Call, LateConfig, LateHandle};
use proptest::prelude::*;
use support::{in_time, no_violations};
use transship_core::{
    Alignment, BackgroundWork, Cast, CopyOptions, CopyPolicy, CopyReport, DType, Device, Tensor, start_copy,
    start_copy_into, start_copy_to_all,
};

const KIB: usize = 1 << 10;

fn widening() -> LateConfig {
    LateConfig { gather_strided: Some(176), ..LateConfig::new("late") }
}

fn late() -> (LateHandle, Device) {
    support::with(widening())
}

/// With buffers that are aligned enough for any option here.
fn far_aligned() -> LateConfig {
    LateConfig { buffer_alignment: Alignment::new(256 * KIB).unwrap(), ..widening() }
}

fn scaled() -> CopyOptions {
    CopyOptions::default().cast(Cast::new(DType::U8, DType::F32).scaled(0.5, -1.0))
}

/// Elements of two, four and eight times as many bytes, beside others that get smaller or stay.
fn casts() -> CopyOptions {
    scaled()
        .cast(Cast::new(DType::BF16, DType::F32))
        .cast(Cast::new(DType::I8, DType::I64))
        .cast(Cast::new(DType::F64, DType::F32))
}

fn image(elements: usize, seed: usize) -> Tensor {
    Tensor::from((0..elements).map(|index| (index * 31 + seed * 7) as u8).collect::<Vec<_>>())
}

fn label(elements: usize, seed: usize) -> Tensor {
    Tensor::from((0..elements).map(|index| (index + seed) as i32).collect::<Vec<_>>())
}

/// Of one of the types of [`casts`], and with gaps at times.
fn tensor(kind: usize, elements: usize, seed: usize) -> Tensor {
    let values = 0..elements;
    match kind {
        0 | 1 => image(elements, seed),
        2 => image(3 * elements.div_ceil(3), seed)
            .reshape(&[elements.div_ceil(3), 3])
            .unwrap()
            .narrow(1, 1, 2)
            .unwrap(),
        3 => Tensor::from(values.map(|index| bf16::from_f32((index % 251) as f32)).collect::<Vec<_>>()),
        4 => Tensor::from(values.map(|index| (index + seed) as i8).collect::<Vec<_>>()),
        5 => Tensor::from(values.map(|index| (index + seed) as f64).collect::<Vec<_>>()),
        _ => label(elements, seed),
    }
}

/// What the host makes of it.
fn by_the_host(batch: &[Tensor], options: &CopyOptions) -> Vec<Vec<u8>> {
    let options = options.clone().policy(CopyPolicy::Always);
    let cast = start_copy(batch.to_vec(), &Device::host(), options).unwrap().wait().unwrap();
    cast.iter().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

fn assert_same(there: Vec<Tensor>, expected: &[Vec<u8>]) {
    let back = start_copy(there, &Device::host(), CopyOptions::default()).unwrap();
    let back = in_time(move || back.wait()).unwrap();
    assert_eq!(back.len(), expected.len());
    for (index, (tensor, expected)) in back.iter().zip(expected).enumerate() {
        let found = tensor.to_bytes().unwrap();
        let first = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!((first, found.len()), (None, expected.len()), "tensor {index} of {:?}", tensor.shape());
    }
}

fn copied(batch: &[Tensor], device: &Device, options: CopyOptions) -> (Vec<Tensor>, CopyReport) {
    let copy = start_copy(batch.to_vec(), device, options).unwrap();
    in_time(move || copy.wait_with_report()).unwrap()
}

/// How much room staging memory has.
fn budgets() -> impl Strategy<Value = usize> {
    prop_oneof![Just(64 * KIB), 65_536_usize..600_000, Just(1 << 20), Just(64 << 20)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 24 }))]

    #[test]
    fn a_mixture_comes_out_as_the_host_casts_it(
        leaves in prop::collection::vec((0..7_usize, prop_oneof![1..400_usize, 30_000..90_000_usize, 100_000..300_000_usize]), 1..7),
        budget in budgets(), pinned in prop_oneof![Just(usize::MAX), 0..800_000_usize],
        alignment in prop_oneof![Just(16_usize), Just(1), Just(4096), Just(256 * KIB)],
        packed in prop_oneof![Just(0_usize), Just(512 * KIB), Just(8 << 20)],
        pace in prop::option::of(prop_oneof![4096_usize..9000, 30_000_usize..400_000]), background: bool, again: bool,
    ) {
        let (late, device) = support::with(LateConfig {
            staging_memory: pinned.min(isize::MAX as usize),
            ..far_aligned()
        });
        device.set_staging_budget(budget).unwrap();
        let batch: Vec<_> = leaves.iter().enumerate().map(|(seed, (kind, count))| tensor(*kind, *count, seed)).collect();
        let mut options = casts().packed_alignment(alignment).max_packed_bytes(packed);
        if let Some(pace) = pace {
            options = options.max_bytes_in_flight(pace);
        }
        if background {
            options = options.background(BackgroundWork::Always);
        }
        let expected = by_the_host(&batch, &casts());
        let (mut there, report) = copied(&batch, &device, options.clone());
        prop_assert!(device.staging_usage().high_water <= budget, "{:?}", device.staging_usage());
        prop_assert_eq!(report.copied_bytes, device.counters().bytes_up);
        if again {
            let copy = start_copy_into(batch, there, options).unwrap();
            there = in_time(move || copy.wait()).unwrap();
        }
        assert_same(there, &expected);
        no_violations(&late);
    }
}

/// Elements of two bytes come out, an odd number of them: what lies behind begins with the next granule, in the block too. Granules that are
/// larger than a line are left to the host.
/// catches: 434-granules-larger-than-a-line
#[test]
fn what_ends_within_a_granule_leaves_the_rest_of_it_alone() {
    let halves = || CopyOptions::default().cast(Cast::new(DType::U8, DType::F16));
    let batch = [
        label(9, 1),
        image(420_001, 2),
        image(70_003, 3),
        label(5, 4),
        image(500_005, 5),
        label(70_001, 6),
        image(65_537, 7),
    ];
    let expected = by_the_host(&batch, &halves());
    for (granule, goes_up) in [(4, true), (64, true), (128, false)] {
        for (mapped_staging, packed) in [(false, 0), (true, 0), (false, 8 << 20), (true, 8 << 20)] {
            for pace in [usize::MAX, 150_000] {
                let copy_granularity = Alignment::new(granule).unwrap();
                let (late, device) = support::with(LateConfig {
                    copy_granularity,
                    buffer_alignment: Alignment::new(4096).unwrap(),
                    largest_strided: 1 << 30,
                    mapped_staging,
                    ..LateConfig::new("late")
                });
                let options = halves().max_packed_bytes(packed).max_bytes_in_flight(pace);
                let (there, report) = copied(&batch, &device, options.clone());
                assert_eq!(report.gathered > 0, goes_up, "{granule}: {report}");
                let copy = start_copy_into(batch.to_vec(), there, options).unwrap();
                assert_same(in_time(move || copy.wait()).unwrap(), &expected);
                no_violations(&late);
            }
        }
    }
}

/// Segments were cut for narrow elements. Ordinary memory, which no kernel reads, needs room for what they become.
/// catches: 411-ordinary-memory-for-narrow-elements, 412-the-same-at-once, 413-kernels-read-ordinary-memory
#[test]
fn what_finds_no_pinned_memory_is_cast_by_the_host() {
    let batch = [image(300_001, 1), label(5, 2), image(400, 3), image(200_000, 4)];
    let expected = by_the_host(&batch, &scaled());
    let bytes: usize = expected.iter().map(Vec::len).sum();
    for background in [BackgroundWork::Always, BackgroundWork::Never] {
        for pinned in [0, 96 * KIB, 300 * KIB] {
            let (late, device) = support::with(LateConfig { staging_memory: pinned, ..widening() });
            let (there, report) = copied(&batch, &device, scaled().background(background));
            if pinned == 0 {
                assert!(report.pageable_staging_bytes >= bytes as u64, "{report}");
                assert_eq!((report.gathered, report.pinned_staging_bytes), (0, 0), "{report}");
            }
            assert_same(there, &expected);
            no_violations(&late);
        }
    }
}

/// Pinned memory ends in the middle of the copy, again and again.
#[test]
fn what_finds_no_pinned_memory_at_times_goes_up_all_the_same() {
    let batch = [label(100_000, 1), image(2_000_000, 2), label(3, 3), image(150_000, 4)];
    let expected = by_the_host(&batch, &scaled());
    for failing in 0..6 {
        let (late, device) = late();
        device.set_staging_budget(512 * KIB).unwrap();
        (0..=failing).for_each(|after| late.fail_next(Call::Staging, after));
        let copy = start_copy(batch.to_vec(), &device, scaled().background(BackgroundWork::Always)).unwrap();
        if let Ok(there) = in_time(move || copy.wait()) {
            late.fail_no_more();
            assert_same(there, &expected);
        }
        no_violations(&late);
    }
}

/// What crosses the link counts, and is cut into segments: 8 MiB, where 32 come out.
/// catches: 414-segments-of-what-comes-out
#[test]
fn images_take_a_launch_for_each_block_of_their_own_bytes() {
    let (late, device) = late();
    let batch: Vec<_> = (0..8).map(|seed| image(1 << 20, seed)).collect();
    let (there, report) = copied(&batch, &device, scaled());
    let bytes = 8 << 20;
    let counted = [report.pinned_staging_bytes, report.copied_bytes, device.counters().bytes_up];
    assert_eq!((counted, report.pageable_staging_bytes), ([bytes; 3], 0), "{report}");
    assert!(report.gathered <= 16 && report.copies == report.gathered, "{report}");
    assert_same(there, &by_the_host(&batch, &scaled()));
    no_violations(&late);
}

/// Many that are small, side by side, are one launch; a label between two of them makes it two.
/// catches: 410-place-of-what-lies-behind, 415-each-tensor-a-launch, 417-padding-of-any-size
#[test]
fn neighbours_are_one_launch() {
    let (late, device) = late();
    let small: Vec<_> = (0..100).map(|seed| image(3 * 32 * 32, seed)).collect();
    let (there, report) = copied(&small, &device, scaled());
    assert_eq!((report.gathered, report.copies, report.copied_bytes), (1, 1, 307_200), "{report}");
    assert_same(there, &by_the_host(&small, &scaled()));

    let odd = [image(50_003, 1), label(7, 1), image(50_001, 2), image(50_002, 3), label(7, 2), image(99, 4)];
    let (there, report) = copied(&odd, &device, scaled());
    // The last one is too small for a launch.
    assert_eq!((report.gathered, report.copies), (2, 4), "{report}");
    assert_same(there, &by_the_host(&odd, &scaled()));

    // Nobody stages the room between these as if it were elements.
    let apart = [image(20_000, 1), image(20_000, 2)];
    let (_, device) = support::with(far_aligned());
    let (there, report) = copied(&apart, &device, scaled().packed_alignment(256 * KIB));
    assert_eq!(report.gathered, 0, "{report}");
    assert_same(there, &by_the_host(&apart, &scaled()));
    no_violations(&late);
}

/// What is staged decides who is packed, where the target casts: 150 KB of which 600 KB come out are, and 600 KB of which 2.4 MB come
/// out are not.
/// catches: 490-packed-by-what-comes-out
#[test]
fn images_are_packed_by_what_crosses_the_link() {
    let pixels = 3 * 224 * 224;
    let batch: Vec<_> = (0..32).map(|seed| image(pixels, seed)).collect();
    let (late, device) = late();
    let (there, report) = copied(&batch, &device, scaled());
    assert_eq!((report.packed, report.alone, report.chunks), (32, 0, 1), "{report}");
    assert!(report.gathered <= 16, "{report}");
    assert_same(there, &by_the_host(&batch, &scaled()));
    let (_, report) = copied(&batch, &device, scaled().max_packed_bytes(pixels - 1));
    assert_eq!((report.packed, report.alone), (0, 32), "{report}");
    let (_, report) = copied(&[image(600_000, 1), image(600_000, 2)], &device, scaled());
    assert_eq!((report.packed, report.alone), (0, 2), "{report}");
    no_violations(&late);
}

/// catches: 491-packed-as-if-the-target-cast
#[test]
fn what_the_host_casts_is_packed_by_what_comes_out() {
    let images = [image(150_000, 1), image(150_000, 2)];
    let (_, with_kernels) = late();
    let (_, without) = support::with(LateConfig::new("late"));
    for (device, options) in [(&with_kernels, scaled().pinned_staging(false)), (&without, scaled())] {
        let (_, report) = copied(&images, device, options);
        assert_eq!((report.packed, report.alone, report.gathered), (0, 2, 0), "{report}");
    }
    let doubles = [tensor(5, 80_000, 1), tensor(5, 80_000, 2)];
    let (_, report) = copied(&doubles, &with_kernels, casts());
    assert_eq!((report.packed, report.alone), (2, 0), "{report}");
}

/// Up to 1 MiB, as it is staged, the caller's thread carries.
#[test]
fn an_image_of_one_mib_is_carried_at_once() {
    let (late, device) = late();
    for (bytes, at_once) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let batch = [image(bytes, 5)];
        // The first copy finds no block.
        copied(&batch, &device, scaled());
        let (there, report) = copied(&batch, &device, scaled());
        assert_eq!(report.background, !at_once, "{report}");
        assert_same(there, &by_the_host(&batch, &scaled()));
    }
    no_violations(&late);
}

#[test]
fn every_device_reads_the_same_blocks() {
    let (late, first, second) = support::two(widening());
    first.set_staging_budget(300_000).unwrap();
    let batch = [image(500_000, 1), label(1000, 2), image(300, 3), image(70_001, 4)];
    let expected = by_the_host(&batch, &scaled());
    let copies = start_copy_to_all(batch.to_vec(), &[first.clone(), second.clone()], scaled()).unwrap();
    for copy in copies {
        let (there, report) = in_time(move || copy.wait_with_report()).unwrap();
        assert!(report.gathered > 0, "{report}");
        assert_same(there, &expected);
    }
    assert_eq!(second.staging_usage().high_water, 0, "it reads those of the first");
    no_violations(&late);
}

/// The kernels of one of them could not be loaded: it shares nothing with the other one.
/// catches: 419-kernels-not-compared
#[test]
fn a_device_without_kernels_gets_what_the_host_has_cast() {
    for without in [0, 1] {
        let (late, first, second) = support::two(LateConfig { without_kernels: Some(without), ..widening() });
        let batch = [image(500_000, 1), label(1000, 2), image(70_001, 4)];
        let expected = by_the_host(&batch, &scaled());
        let copies = start_copy_to_all(batch.to_vec(), &[first, second], scaled()).unwrap();
        for (ordinal, copy) in copies.into_iter().enumerate() {
            let (there, report) = in_time(move || copy.wait_with_report()).unwrap();
            assert_eq!(report.gathered > 0, ordinal != without, "{report}");
            assert_same(there, &expected);
        }
        no_violations(&late);
    }
}

#[test]
fn copies_at_the_same_time_share_a_small_budget() {
    let (late, device) = late();
    device.set_staging_budget(700_000).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let device = device.clone();
            thread::spawn(move || {
                let batch = [image(400_000, thread), label(20_000, thread), image(90_001, 7)];
                let expected = by_the_host(&batch, &casts());
                for _ in 0..2 {
                    assert_same(copied(&batch, &device, casts()).0, &expected);
                }
            })
        })
        .collect();
    in_time(move || threads.into_iter().for_each(|thread| thread.join().unwrap()));
    assert!(device.staging_usage().high_water <= 700_000);
    no_violations(&late);
}

/// Bytes arrive as they come out. The copy is paced, so that its segments arrive one by one.
/// catches: 416-progress-of-the-link
#[test]
fn progress_is_of_what_comes_out() {
    let (late, device) = late();
    let options = scaled().max_bytes_in_flight(64 * KIB).background(BackgroundWork::Always);
    let most_before_the_end = |attempt| {
        let batch = [image(512 * KIB, attempt)];
        let copy = start_copy(batch.to_vec(), &device, options.clone()).unwrap();
        let (mut most, total) = (0, copy.progress().total_bytes);
        assert_eq!(total, 2 << 20);
        while !copy.is_ready().unwrap() {
            most = Some(copy.progress().arrived_bytes).filter(|arrived| *arrived < total).unwrap_or(most);
        }
        assert_same(copy.wait().unwrap(), &by_the_host(&batch, &scaled()));
        most
    };
    // This thread may sleep while bytes arrive, but not always.
    assert!((0..50).any(|attempt| most_before_the_end(attempt) > 1 << 20));
    no_violations(&late);
}
