//! Large copies out of the memory of a device into that of the same or of another one, without staging.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hooked::Hooked;
use late_backend::{LateConfig, LateHandle};
use support::{no_violations, two};
use transship_core::{CopyOptions, CopyPolicy, CopyReport, Device, Tensor, start_copy};

/// More than any kernel copies of one range.
const LARGE: usize = 5 << 20;
/// So many small tensors have a table that is cut, and one that is not.
const LONG: usize = 3600;
const SHORT: usize = 1000;

/// Devices whose kernels copy many ranges, by a table.
fn gathering() -> LateConfig {
    LateConfig { gather: Some(24), ..LateConfig::new("late") }
}

/// Its period is none of the sizes of parts.
fn numbers(bytes: usize, seed: usize) -> Vec<u8> {
    let mut numbers = (0..bytes.min(16_381)).map(|at| (at * 7 + at / 251 + seed) as u8).collect::<Vec<_>>();
    numbers = numbers.repeat(bytes.div_ceil(16_381));
    numbers.truncate(bytes);
    numbers
}

/// Tensors on `device`, each in memory of its own: `large` large ones, `small` small ones, and some that a kernel copies in parts.
fn tensors(device: &Device, [large, small]: [usize; 2]) -> Vec<Tensor> {
    let sizes = (0..small).map(|index| index % 600 + 1);
    let sizes = iter::repeat_n(LARGE, large).chain(sizes).chain([500_003; 40]);
    let tensors = sizes.enumerate().map(|(seed, bytes)| Tensor::from(numbers(bytes, seed)));
    let options = CopyOptions::default().packing(false);
    start_copy(tensors.collect::<Vec<_>>(), device, options).unwrap().wait().unwrap()
}

fn copied(from: Vec<Tensor>, to: &Device, options: CopyOptions) -> CopyReport {
    let copy = start_copy(from, to, options.policy(CopyPolicy::Always)).unwrap();
    let (copied, report) = copy.wait_with_report().unwrap();
    let back = start_copy(copied, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    let is_right =
        |(seed, tensor): (usize, &Tensor)| tensor.to_bytes().unwrap() == numbers(tensor.nbytes(), seed);
    assert!(back.iter().enumerate().all(is_right));
    report
}

/// The device copies what the first entries say while threads write the others.
///
/// catches: 475-long-tables-of-one-piece
#[test]
fn long_tables_are_written_in_parts() {
    let (late, first, second) = two(gathering());
    for to in [&second, &first] {
        let report = copied(tensors(&first, [6, LONG]), to, CopyOptions::default());
        assert!(report.submissions > 2 && report.gathered >= LONG as u64, "{report}");
    }
    no_violations(&late);
}

/// A launch for each part would take longer than its table.
///
/// catches: 499-short-tables-cut
#[test]
fn short_tables_are_written_at_once() {
    let (late, first, second) = two(gathering());
    for to in [&second, &first] {
        let report = copied(tensors(&first, [6, SHORT]), to, CopyOptions::default());
        assert_eq!(report.submissions, 2, "{report}");
    }
    no_violations(&late);
}

/// They keep the device busy while the tables of the others are written. A copy with a pace is carried by one thread, which does one thing after
/// the other.
///
/// catches: 500-small-ones-first
#[test]
fn large_ones_go_first() {
    let late = LateHandle::new(gathering()).unwrap();
    let hooked = Hooked::new(late.backend(0));
    let device = Device::from_backend(hooked.clone()).unwrap();
    // The large ones are the last of three segments, and a part of the one before it.
    let there = tensors(&device, [4, LONG]);
    let [before, large] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let note = |position: &Arc<AtomicU64>| {
        let position = position.clone();
        move |reached| position.store(reached, Ordering::Relaxed)
    };

    // The copy before it on the same stream.
    hooked.after_next_submit(note(&before));
    copied(vec![there[0].clone()], &device, CopyOptions::default());
    hooked.after_next_submit(note(&large));
    let report = copied(there, &device, CopyOptions::default().max_bytes_in_flight(1 << 30));
    assert_eq!(report.submissions, 4, "{report}");
    let [before, large] = [before, large].map(|position| position.load(Ordering::Relaxed));
    assert_eq!(large, before + 1);
    no_violations(&late);
}

/// When the second copy begins, a worker has allocated the block for its table. That of more than 1,024 is left to a worker.
///
/// catches: 728-much-is-left-to-workers, 729-thousands-by-the-callers-thread
#[test]
fn a_few_hundred_large_copies_are_made_by_the_callers_thread() {
    let (late, first, second) = two(gathering());
    for to in [&second, &first] {
        for (small, is_few) in [(400, true), (1500, false)] {
            let there = || tensors(&first, [6, small]);
            copied(there(), to, CopyOptions::default());
            let report = copied(there(), to, CopyOptions::default());
            assert_eq!(report.background, !is_few, "{small}: {report}");
        }
    }
    no_violations(&late);
}

/// To write the parts of a leaf takes no time beside the leaf: 100 leaves of 31 parts are not cut.
///
/// catches: 730-parts-count-as-leaves
#[test]
fn tables_are_cut_by_leaves_and_not_by_parts() {
    let (late, first, second) = two(gathering());
    let there = || (0..100).map(|seed| Tensor::from(numbers(1_000_000, seed))).collect::<Vec<_>>();
    let there = start_copy(there(), &first, CopyOptions::default().packing(false)).unwrap().wait().unwrap();
    for to in [&second, &first] {
        let report = copied(there.clone(), to, CopyOptions::default());
        assert_eq!((report.submissions, report.gathered), (1, 3100), "{report}");
    }
    no_violations(&late);
}
