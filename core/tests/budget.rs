//! Pinned memory stays within its budget, by the figures of the backend, and what goes another way says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::thread;

use late_backend::LateConfig;
use support::{bytes_of, in_time, late, no_violations, on};
use transship_core::backend::MemoryKind;
use transship_core::{BackgroundWork, CopyOptions, DType, Device, Error, Tensor, start_copy};

const STAGING: usize = 2 << 20;
const RESULTS: usize = 1 << 20;

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn limited() -> (late_backend::LateHandle, Device) {
    let (late, device) = late();
    device.set_staging_budget(STAGING).unwrap();
    device.set_result_budget(RESULTS).unwrap();
    (late, device)
}

/// Up and down again.
fn round_trip(device: &Device, bytes: usize, byte: u8) {
    let source = vec![Tensor::from(vec![byte; bytes]), Tensor::from(vec![!byte; 100])];
    let up = start_copy(source, device, options()).unwrap();
    let down = start_copy(up.wait().unwrap(), &Device::host(), options()).unwrap().wait().unwrap();
    assert_eq!(down[0].to_bytes().unwrap(), vec![byte; bytes]);
    assert_eq!(down[1].to_bytes().unwrap(), [!byte; 100]);
}

/// catches: 13-budget-not-checked
#[test]
fn many_copies_of_many_threads_stay_within_the_budget() {
    let (late, device) = limited();
    in_time({
        let device = device.clone();
        move || {
            let threads: Vec<_> = (0..8_u8)
                .map(|thread| {
                    let device = device.clone();
                    thread::spawn(move || {
                        for copy in 0..25_u8 {
                            let bytes = [10, 70_000, 400_000, 3_000_000][usize::from(copy + thread) % 4];
                            round_trip(&device, bytes, thread * 25 + copy);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    });
    let high_water = device.counters().staging_high_water as usize;
    assert!(high_water <= STAGING + RESULTS, "{high_water} bytes");
    let (staging, results) = (device.staging_usage(), device.result_usage());
    assert!(staging.high_water <= STAGING && results.high_water <= RESULTS, "{staging:?} {results:?}");
    assert_eq!((staging.in_use, results.in_use), (0, 0));
    assert_eq!(device.counters().staging_bytes as usize, staging.idle + results.idle);
    no_violations(&late);
}

#[test]
fn copies_that_wait_for_nobody_stay_within_the_budget() {
    let (late, device) = limited();
    late.stall();
    let copies: Vec<_> = (0..200_u8)
        .map(|byte| {
            let bytes = if byte % 8 == 0 { 300_000 } else { 1_000 };
            (byte, start_copy(Tensor::from(vec![byte; bytes]), &device, options()).unwrap())
        })
        .collect();
    late.release();
    in_time(move || {
        for (byte, copy) in copies {
            assert!(bytes_of(&copy.wait().unwrap()).iter().all(|found| *found == byte));
        }
    });
    assert!(device.staging_usage().high_water <= STAGING);
    assert!(device.counters().staging_high_water as usize <= STAGING + RESULTS);
    no_violations(&late);
}

#[test]
fn a_copy_larger_than_the_budget_goes_through_smaller_blocks() {
    let (late, device) = late();
    device.set_staging_budget(100_000).unwrap();
    let up = start_copy(Tensor::from(vec![7_u8; 1_000_000]), &device, options()).unwrap();
    let (tensor, report) = in_time(move || up.wait_with_report()).unwrap();
    assert!(report.pinned_staging_bytes >= 1_000_000, "{report:?}");
    assert_eq!(report.pageable_staging_bytes, 0);
    assert_eq!(bytes_of(&tensor), vec![7; 1_000_000]);
    assert!(device.staging_usage().high_water <= 100_000);
    no_violations(&late);
}

#[test]
fn results_above_their_cap_are_ordinary_memory_and_the_report_says_so() {
    let (late, device) = late();
    device.set_result_budget(256 << 10).unwrap();
    let source = on(&device, &vec![9; 200_000]);
    let down = |source: &Tensor| {
        let copy = start_copy(source.clone(), &Device::host(), options()).unwrap();
        in_time(move || copy.wait_with_report()).unwrap()
    };
    let (first, report) = down(&source);
    assert_eq!((first.memory_kind().unwrap(), report.pageable_result_bytes), (MemoryKind::Pinned, 0));
    let (second, report) = down(&source);
    assert_eq!(second.memory_kind().unwrap(), MemoryKind::Pageable);
    assert!(report.pageable_result_bytes >= 200_000);
    assert_eq!(second.to_bytes().unwrap(), vec![9; 200_000]);
    let refused = Tensor::empty_pinned(&[200_000], DType::U8, &device).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused}");

    assert_eq!(device.result_usage().fallbacks, 1);

    drop(first);
    let (third, report) = down(&source);
    assert_eq!((third.memory_kind().unwrap(), report.pageable_result_bytes), (MemoryKind::Pinned, 0));
    assert!(device.result_usage().high_water <= 256 << 10);
    no_violations(&late);
}

/// So many that several threads page-lock them.
#[test]
fn many_large_results_are_page_locked_once() {
    let (late, device) = late();
    device.set_result_budget(128 << 20).unwrap();
    let sources: Vec<_> = (0..20_u8).map(|byte| on(&device, &vec![byte; 2 << 20])).collect();
    let down = || {
        let copy = start_copy(sources.clone(), &Device::host(), options()).unwrap();
        let (results, report) = in_time(move || copy.wait_with_report()).unwrap();
        assert_eq!(report.pageable_result_bytes, 0, "{report}");
        for (byte, result) in (0..).zip(&results) {
            assert_eq!(result.memory_kind().unwrap(), MemoryKind::Pinned);
            assert!(bytes_of(result).iter().all(|found| *found == byte));
        }
    };
    down();
    let held = device.result_usage();
    assert_eq!((held.in_use, held.idle, held.high_water), (0, 40 << 20, 40 << 20));
    down();
    assert_eq!(device.result_usage(), held, "the blocks of the first copy serve the second");
    no_violations(&late);
}

/// catches: 187-page-locked-in-vain
#[test]
fn nothing_is_page_locked_for_what_has_no_room() {
    let (late, device) = late();
    device.set_result_budget(16 << 20).unwrap();
    let down = |count: u8| {
        let sources: Vec<_> = (0..count).map(|byte| on(&device, &vec![byte; 2 << 20])).collect();
        let copy = start_copy(sources, &Device::host(), options()).unwrap();
        let (results, report) = in_time(move || copy.wait_with_report()).unwrap();
        for (byte, result) in (0..).zip(&results) {
            assert!(bytes_of(result).iter().all(|found| *found == byte));
        }
        (results, report.pageable_result_bytes)
    };
    let (_held, pageable) = down(4);
    assert_eq!(pageable, 0);
    // One block too many for what is left, and three for the budget.
    assert_eq!(down(5).1, 10 << 20);
    assert_eq!(down(11).1, 22 << 20);
    let usage = device.result_usage();
    assert_eq!((usage.high_water, usage.fallbacks), (8 << 20, 2));
    no_violations(&late);
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn results_have_a_share_of_what_the_process_may_use() {
    let (_late, device) = late();
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: usize = machine.split_whitespace().nth(1).unwrap().parse().unwrap();
    let budget = device.result_usage().budget;
    assert!(budget >= 64 << 10 && budget <= kib * 1024 / 32, "{budget} of {kib} KiB");
}

#[test]
fn trim_frees_what_is_idle_and_nothing_else() {
    let (late, device) = late();
    device.prepare(1 << 20).unwrap();
    let kept = start_copy(on(&device, &[1; 8]), &Device::host(), options()).unwrap().wait().unwrap();
    let in_use = device.result_usage().in_use;
    assert!(in_use > 0);
    let before = device.counters().staging_bytes as usize;
    assert_eq!(device.trim(), before - in_use);
    assert_eq!(device.counters().staging_bytes as usize, in_use);
    assert_eq!((device.staging_usage().idle, device.result_usage().idle), (0, 0));
    assert_eq!(kept.to_bytes().unwrap(), [1; 8]);
    no_violations(&late);
}

#[test]
fn a_smaller_budget_is_reached_as_blocks_come_back() {
    let (late, device) = late();
    device.prepare(8).unwrap();
    late.stall();
    let copies: Vec<_> =
        (0..4_u8).map(|byte| start_copy(Tensor::from(vec![byte; 8]), &device, options()).unwrap()).collect();
    device.set_staging_budget(64 << 10).unwrap();
    late.release();
    copies.into_iter().for_each(|copy| drop(copy.wait().unwrap()));
    support::eventually("blocks above the budget are freed", || {
        device.staging_usage().in_use + device.staging_usage().idle <= 64 << 10
            && device.counters().staging_bytes as usize
                == device.staging_usage().idle + device.result_usage().idle
    });
    let error = device.set_staging_budget(1).unwrap_err();
    assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
    no_violations(&late);
}

#[test]
fn a_smaller_budget_frees_idle_blocks() {
    let (late, device) = late();
    device.prepare(1 << 20).unwrap();
    device.set_staging_budget(64 << 10).unwrap();
    support::eventually("blocks above the budget are freed", || {
        device.staging_usage().in_use + device.staging_usage().idle <= 64 << 10
    });
    let held = device.staging_usage().idle + device.result_usage().idle;
    assert_eq!(device.counters().staging_bytes as usize, held);
    no_violations(&late);
}

#[test]
fn what_is_prepared_stays_within_the_budget_however_much_is_asked_for() {
    let (late, device) = limited();
    let error = device.prepare(usize::MAX).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. } | Error::TooLarge { .. }), "{error:?}");
    assert!(device.counters().staging_high_water as usize <= STAGING + RESULTS);
    round_trip(&device, 1000, 3);
    no_violations(&late);
}

/// Two copies in opposite directions over the host, each of which needs a block at both ends.
#[test]
fn copies_in_opposite_directions_share_single_blocks() {
    let (here, one) = late();
    let (there, other) = late();
    let (one, other) = (Arc::new(one), Arc::new(other));
    one.set_staging_budget(64 << 10).unwrap();
    other.set_staging_budget(64 << 10).unwrap();
    let (left, right) = (on(&one, &[1; 8]), on(&other, &[2; 8]));
    in_time({
        let (one, other) = (one.clone(), other.clone());
        move || {
            for _ in 0..50 {
                let over = start_copy(left.clone(), &other, options()).unwrap();
                let back = start_copy(right.clone(), &one, options()).unwrap();
                assert_eq!(bytes_of(&over.wait().unwrap()), [1; 8]);
                assert_eq!(bytes_of(&back.wait().unwrap()), [2; 8]);
            }
        }
    });
    no_violations(&here);
    no_violations(&there);
}

/// What can be pinned on this device runs out long before the budgets do.
fn short_of_pinned_memory(bytes: usize) -> (late_backend::LateHandle, Device) {
    support::with(LateConfig { staging_memory: bytes, ..LateConfig::new("late") })
}

#[test]
fn large_blocks_that_cannot_be_pinned_become_smaller_ones() {
    let (late, device) = short_of_pinned_memory(300_000);
    let up = start_copy(Tensor::from(vec![7_u8; 3_000_000]), &device, options()).unwrap();
    let (tensor, report) = in_time(move || up.wait_with_report()).unwrap();
    assert!(report.pinned_staging_bytes > 0, "{report:?}");
    assert_eq!(report.pinned_staging_bytes + report.pageable_staging_bytes, 3_000_000, "{report:?}");
    assert_eq!(bytes_of(&tensor), vec![7; 3_000_000]);
    assert!(device.counters().staging_high_water <= 300_000);
    no_violations(&late);
}

/// catches: a failed allocation that fails the copy; ordinary memory that the report does not tell of.
#[test]
fn where_nothing_can_be_pinned_copies_go_through_ordinary_memory_and_the_report_says_so() {
    for background in [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never] {
        let (late, device) = short_of_pinned_memory(1000);
        let mut fallbacks = 0;
        for bytes in [100, 3_000_000] {
            let options = || options().background(background);
            let up = start_copy(Tensor::from(vec![7_u8; bytes]), &device, options()).unwrap();
            let (tensor, report) = in_time(move || up.wait_with_report()).unwrap();
            assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, bytes as u64));
            assert!(device.staging_usage().fallbacks > fallbacks, "{report:?}");
            fallbacks = device.staging_usage().fallbacks;
            let down = start_copy(tensor, &Device::host(), self::options()).unwrap();
            let (back, report) = in_time(move || down.wait_with_report()).unwrap();
            assert_eq!(report.pageable_result_bytes, bytes as u64);
            assert_eq!(back.to_bytes().unwrap(), vec![7; bytes]);
        }
        assert_eq!(device.counters().staging_high_water, 0);
        no_violations(&late);
    }
}

/// catches: blocks given to whoever comes last, so that some wait for ever.
#[test]
fn a_thousand_copies_share_one_block_and_all_come_to_their_end() {
    let (late, device) = late();
    device.set_staging_budget(64 << 10).unwrap();
    device.set_result_budget(64 << 10).unwrap();
    late.stall();
    let copies: Vec<_> = (0..1000_u32)
        .map(|number| start_copy(Tensor::from(vec![number; 20]), &device, options()).unwrap())
        .collect();
    late.release();
    // The last first: nobody has looked at those in front of it.
    let there: Vec<_> = in_time(move || copies.into_iter().rev().map(|copy| copy.wait().unwrap()).collect());
    let down: Vec<_> =
        there.into_iter().map(|tensor| start_copy(tensor, &Device::host(), options()).unwrap()).collect();
    let back: Vec<_> = in_time(move || down.into_iter().rev().map(|copy| copy.wait().unwrap()).collect());
    for (number, tensor) in (0..1000_u32).zip(&back) {
        assert_eq!(tensor.to_vec::<u32>().unwrap(), [number; 20]);
    }
    assert!(device.staging_usage().high_water <= 64 << 10);
    assert!(device.counters().staging_high_water as usize <= 128 << 10);
    no_violations(&late);
}

#[test]
fn a_copy_that_found_no_block_sees_to_it_that_there_is_one_more() {
    let mut handed_over = 0;
    for looks in 0..16 {
        let (late, device) = late();
        device.prepare(1000).unwrap();
        let start = || start_copy(Tensor::from(vec![1_u8; 1000]), &device, options()).unwrap();
        let first: Vec<_> = (0..4).map(|_| start()).collect();
        let before = device.counters().staging_allocations;
        // The blocks come back before this one has looked for them, while it looks, or when a worker does.
        (0..looks).for_each(|_| drop(first[0].is_ready()));
        let (_, report) = start().wait_with_report().unwrap();
        assert_eq!(device.counters().staging_allocations > before, report.background, "{looks} looks");
        handed_over += u32::from(report.background);
        no_violations(&late);
    }
    assert!((2..16).contains(&handed_over), "{handed_over} copies of 16");
}

#[test]
fn whatever_sizes_are_copied_in_turn_pinned_memory_is_allocated_at_first_only() {
    let (late, device) = late();
    device.set_staging_budget(8 << 20).unwrap();
    device.set_result_budget(64 << 10).unwrap();
    // More than the budget, as much as it, a medium one and small ones: blocks of every class.
    let sizes = [20 << 20, 6 << 20, 2 << 20, 600_000, 150_000, 1_000];
    let round = {
        let device = device.clone();
        move || {
            for bytes in sizes {
                let source = Tensor::from(vec![3_u8; bytes]);
                let up = start_copy(source, &device, options()).unwrap().wait().unwrap();
                start_copy(up, &Device::host(), options()).unwrap().wait().unwrap();
            }
        }
    };
    let allocations = {
        let device = device.clone();
        move || device.counters().staging_allocations
    };
    in_time(move || {
        let mut calm = 0;
        let mut rounds = 0;
        // How many blocks are in use at once is a matter of luck, of which there is an end.
        while calm < 5 {
            assert!(rounds < 60, "{} allocations, and still more", allocations());
            let before = allocations();
            round();
            rounds += 1;
            calm = if allocations() == before { calm + 1 } else { 0 };
        }
    });
    assert!(device.staging_usage().high_water <= 8 << 20);
    no_violations(&late);
}

/// A block that the device has just read costs twice as much to write as one that it has not.
///
#[test]
fn the_first_small_copy_allocates_blocks_to_take_in_turn() {
    let (late, device) = late();
    for copy in 0..6 {
        drop(on(&device, &[copy; 150_000]));
    }
    assert_eq!(device.counters().staging_allocations, 4);
    no_violations(&late);
}

/// Else what one direction has grown would lie idle for the other, which would have half of the budget left.
///
#[test]
fn what_went_up_through_blocks_comes_down_through_the_same() {
    let (late, device) = late();
    device.set_result_budget(64 << 10).unwrap();
    let there = on(&device, &[5; 150_000]);
    let allocated = device.counters().staging_allocations;
    let (back, report) = start_copy(there, &Device::host(), options()).unwrap().wait_with_report().unwrap();
    assert_eq!((report.pageable_result_bytes, report.pinned_staging_bytes), (150_000, 150_000), "{report}");
    assert_eq!(device.counters().staging_allocations, allocated);
    assert_eq!(back.to_bytes().unwrap(), [5; 150_000]);
    no_violations(&late);
}

/// A large block needs the whole budget at once; small copies that come later must not take it away piece by piece.
#[test]
fn small_copies_do_not_starve_a_large_one() {
    let (late, device) = late();
    device.set_staging_budget(1 << 20).unwrap();
    device.prepare(1000).unwrap();
    late.stall();
    let _first = start_copy(Tensor::from(vec![1_u8; 1000]), &device, options()).unwrap();
    let always = || options().background(BackgroundWork::Always);
    let large = start_copy(Tensor::from(vec![2_u8; 1 << 20]), &device, always()).unwrap();
    support::eventually("it waits for its block", || device.staging_usage().waiting == 1);
    assert!(device.staging_usage().idle > 0, "nothing is freed before that is enough");
    let never = options().background(BackgroundWork::Never);
    let small = start_copy(Tensor::from(vec![3_u8; 1000]), &device, never).unwrap_err();
    assert!(matches!(small.error(), Error::Busy { .. }), "it was served first: {small}");
    let small = start_copy(small.into_value().unwrap(), &device, options()).unwrap();
    late.release();
    assert_eq!(bytes_of(&in_time(move || large.wait()).unwrap()), vec![2; 1 << 20]);
    assert_eq!(bytes_of(&in_time(move || small.wait()).unwrap()), [3; 1000]);
    no_violations(&late);
}
