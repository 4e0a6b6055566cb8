//! Large results: those too large for pinned memory, through blocks, while the last one is copied out; many at once, by several launches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::thread;

use late_backend::LateConfig;
use support::{in_time, late, no_violations, with};
use transship_core::{CopyOptions, DType, Device, Tensor, start_copy};

const BLOCK: usize = 512 << 10;

fn numbers(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

fn comes_down(device: &Device, bytes: usize, seed: usize) {
    let tensor = Tensor::from(numbers(bytes, seed));
    let there = start_copy(tensor, device, CopyOptions::default()).unwrap().wait().unwrap();
    let down = start_copy(there, &Device::host(), CopyOptions::default()).unwrap();
    let (back, report) = down.wait_with_report().unwrap();
    assert_eq!(report.pageable_result_bytes, bytes as u64, "{report}");
    assert!(back.to_bytes().unwrap() == numbers(bytes, seed), "{bytes} bytes of {seed}");
}

/// catches: 189-read-before-it-is-there, 190-segment-on-its-way-not-counted
#[test]
fn every_block_is_there_before_it_is_copied_out() {
    let (late, device) = late();
    device.set_result_budget(64 << 10).unwrap();
    in_time(move || {
        for (seed, bytes) in [BLOCK + 1, 9 * BLOCK + 3, 12 * BLOCK + 77].into_iter().enumerate() {
            (0..5).for_each(|round| comes_down(&device, bytes, seed + round));
        }
    });
    no_violations(&late);
}

/// catches: 188-waits-for-a-block-with-one-in-hand
#[test]
fn threads_that_have_a_block_each_do_not_wait_for_each_other() {
    let (late, device) = late();
    device.set_result_budget(64 << 10).unwrap();
    device.set_staging_budget(2 * BLOCK).unwrap();
    in_time(move || {
        let copies = (0..4).map(|seed| {
            let device = device.clone();
            thread::spawn(move || (0..4).for_each(|round| comes_down(&device, 10 * BLOCK, seed + round)))
        });
        copies.collect::<Vec<_>>().into_iter().for_each(|copy| copy.join().unwrap());
    });
    no_violations(&late);
}

/// The device begins with the first part.
#[test]
fn long_tables_are_written_in_parts() {
    const ENTRY: usize = 24;
    let mut config = LateConfig::new("late");
    config.gather = Some(ENTRY);
    let (late, device) = with(config);
    device.set_result_budget(64 << 20).unwrap();
    let sizes = (0..3000).map(|index| if index % 40 == 0 { 450 << 10 } else { index % 600 + 1 });
    let expected: Vec<_> = sizes.enumerate().map(|(seed, bytes)| numbers(bytes, seed)).collect();
    let tensors = expected.iter().map(|bytes| Tensor::from(bytes.clone())).collect::<Vec<_>>();
    let there = start_copy(tensors, &device, CopyOptions::default().packing(false)).unwrap().wait().unwrap();
    let down = start_copy(there, &Device::host(), CopyOptions::default()).unwrap();
    let (back, report) = down.wait_with_report().unwrap();
    assert!(report.submissions > 2 && report.gathered >= 3000, "{report}");
    assert_eq!(report.pageable_result_bytes, 0, "{report}");
    assert!(back.iter().zip(&expected).all(|(tensor, bytes)| tensor.to_bytes().unwrap() == *bytes));
    drop(back);
    no_violations(&late);
}

/// One block of threads would copy it alone. The small ones are as many parts as there are tensors.
///
/// catches: 497-large-copy-in-the-table
#[test]
fn a_large_copy_is_none_of_a_kernel_that_makes_small_ones() {
    let (late, device) = with(LateConfig { gather: Some(24), ..LateConfig::new("late") });
    let sizes = [1000, 1000, 1000, 1000, 40 << 10, 1000, 1000, 1000, 600 << 10];
    let expected: Vec<_> = sizes.into_iter().enumerate().map(|(seed, bytes)| numbers(bytes, seed)).collect();
    let tensors = expected.iter().map(|bytes| Tensor::from(bytes.clone())).collect::<Vec<_>>();
    let there = start_copy(tensors, &device, CopyOptions::default().packing(false)).unwrap().wait().unwrap();
    let down = start_copy(there, &Device::host(), CopyOptions::default()).unwrap();
    let (back, report) = down.wait_with_report().unwrap();
    assert_eq!((report.submissions, report.gathered), (2, 9), "{report}");
    assert!(back.iter().zip(&expected).all(|(tensor, bytes)| tensor.to_bytes().unwrap() == *bytes));
    drop(back);
    no_violations(&late);
}

/// Neighbours in one memory are one copy, here of 600 KiB, which no kernel makes: 70 of them are left to workers, though each leaf is small.
///
/// catches: 731-neighbours-are-not-joined
#[test]
fn neighbours_are_joined_before_large_copies_are_counted() {
    let (late, device) = with(LateConfig { gather: Some(24), ..LateConfig::new("late") });
    let zeros = |bytes: usize| Tensor::zeros(&[3, bytes], DType::U8, &device).unwrap();
    let thirds = |tensor: Tensor| [0, 1, 2].map(|third| tensor.narrow(0, third, 1).unwrap());
    for (count, is_few) in [(60, true), (70, false)] {
        let there = || [vec![200 << 10; count], vec![100; 20]].concat().into_iter().map(zeros);
        for is_first in [true, false] {
            let down = start_copy(
                there().flat_map(thirds).collect::<Vec<_>>(),
                &Device::host(),
                CopyOptions::default(),
            );
            let (_, report) = down.unwrap().wait_with_report().unwrap();
            assert!(is_first || report.background != is_few, "{count}: {report}");
        }
    }
    no_violations(&late);
}
