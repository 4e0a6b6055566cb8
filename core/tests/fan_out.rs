//! One structure to several devices: staged once, and each copy on its own from there on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use hooked::Hooked;
use late_backend::{Call, LateConfig, LateHandle};
use support::{Drops, bytes_of, eventually, given_time, in_time, no_violations, on, two};
use transship_core::backend::StreamPriority;
use transship_core::{
    Alignment, BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyReport, DType, Device, Error, Tensor,
    start_copy, start_copy_to_all,
};

const MODES: [BackgroundWork; 3] = [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never];
const BLOCK: usize = 64 << 10;

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn pair() -> (LateHandle, Device, Device) {
    two(LateConfig::new("late"))
}

fn numbers(count: u16, from: u16) -> Tensor {
    Tensor::from((from..from + count).collect::<Vec<u16>>())
}

/// Mixed types, a transposed one, two over the same memory, one without elements.
fn batch() -> Vec<Tensor> {
    let shared = numbers(30, 500);
    let strided = numbers(12, 7).reshape(&[3, 4]).unwrap().transpose(0, 1).unwrap();
    let empty = Tensor::from(Vec::<f32>::new());
    vec![Tensor::from(vec![1_u8; 5]), Tensor::from(vec![0.5_f64; 3]), shared.clone(), strided, empty, shared]
}

fn contents(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(bytes_of).collect()
}

fn wait(copy: CopyHandle<Vec<Tensor>>) -> (Vec<Tensor>, CopyReport) {
    in_time(move || copy.wait_with_report()).unwrap()
}

fn to_all(tree: Vec<Tensor>, to: &[Device], options: CopyOptions) -> Vec<(Vec<Tensor>, CopyReport)> {
    start_copy_to_all(tree, to, options).unwrap().into_iter().map(wait).collect()
}

#[track_caller]
fn all_is_given_back(late: &LateHandle, devices: &[&Device]) {
    late.release();
    eventually("all memory is given back", || {
        devices.iter().all(|device| {
            device.synchronize().unwrap();
            device.counters().device_bytes == 0 && device.staging_usage().in_use == 0
        })
    });
    no_violations(late);
}

#[test]
fn each_device_gets_the_structure_and_the_bytes_are_staged_once() {
    for when in MODES {
        let (late, one, other) = pair();
        one.prepare(BLOCK).unwrap();
        let pinned = other.counters().staging_bytes;
        let copies = to_all(batch(), &[one.clone(), other.clone()], options().background(when));
        assert_eq!(other.counters().staging_bytes, pinned, "staged in blocks of the first device");
        let expected = contents(&batch());
        for ((tree, report), device) in copies.iter().zip([&one, &other]) {
            assert!(tree.iter().all(|tensor| tensor.device_id().unwrap() == device.id()));
            assert_eq!(contents(tree), expected, "{when:?}");
            assert!(tree[2].shares_memory_with(&tree[5]), "two over the same memory");
            assert_eq!((report.leaves, report.packed, report.aliased, report.empty), (6, 4, 1, 1));
            assert_eq!((report.submissions, report.chunks, report.copies), (1, 1, 1), "{report}");
            assert_eq!(report.background, when == BackgroundWork::Always);
        }
        let staged: Vec<_> = copies.iter().map(|(_, report)| report.pinned_staging_bytes).collect();
        assert_eq!(staged, [copies[0].1.chunk_bytes, 0], "{when:?}");
        drop(copies);
        all_is_given_back(&late, &[&one, &other]);
    }
}

/// catches: 80-block-kept-by-the-first-lane-only
#[test]
fn the_block_is_not_used_again_before_the_last_device_has_read_it() {
    let (late, one, other) = pair();
    one.prepare(64).unwrap();
    let mut copies =
        start_copy_to_all(vec![numbers(50, 0)], &[one.clone(), other.clone()], options()).unwrap();
    let second = copies.pop().unwrap();
    // Nobody looks at the other device, which so has not read anything yet.
    wait(copies.pop().unwrap());
    for _ in 0..8 {
        drop(on(&one, &[9; 100]));
    }
    assert_eq!(contents(&wait(second).0), contents(&[numbers(50, 0)]));
    no_violations(&late);
}

/// catches: 81-other-lanes-not-asked-for-blocks
#[test]
fn one_block_within_the_budget_of_the_first_device_serves_all() {
    let (late, one, other) = pair();
    one.set_staging_budget(BLOCK).unwrap();
    let large = Tensor::from((0..=255).cycle().take(9 * BLOCK + 17).collect::<Vec<u8>>());
    let copies = to_all(vec![large.clone()], &[one.clone(), other.clone(), one.clone()], options());
    for (tree, report) in &copies {
        assert_eq!(bytes_of(&tree[0]), bytes_of(&large));
        assert_eq!((report.submissions, report.background), (10, true), "{report}");
    }
    assert_eq!(one.staging_usage().high_water, BLOCK);
    assert_eq!(other.staging_usage().high_water, 0);
    drop(copies);
    all_is_given_back(&late, &[&one, &other]);
}

#[test]
fn the_order_is_that_of_the_targets_whatever_they_are() {
    let (late, one, other) = pair();
    let (far, alone) = support::late();
    let targets = [Device::host(), other.clone(), alone.clone(), one.clone(), other.clone()];
    let copies = to_all(batch(), &targets, options());
    for ((tree, _), target) in copies.iter().zip(&targets) {
        assert!(tree.iter().all(|tensor| tensor.device_id().unwrap() == target.id()));
        assert_eq!(contents(tree), contents(&batch()));
    }
    let staged: Vec<_> = copies.iter().map(|(_, report)| report.pinned_staging_bytes > 0).collect();
    assert_eq!(staged, [false, true, true, false, false], "once for each driver");
    assert!(!copies[1].0[0].shares_memory_with(&copies[4].0[0]), "a device that is named twice");
    drop(copies);
    all_is_given_back(&late, &[&one, &other]);
    all_is_given_back(&far, &[&alone]);
    assert!(start_copy_to_all(batch(), &[], options()).unwrap().is_empty());
}

#[test]
fn devices_that_do_not_read_each_others_blocks_stage_by_themselves() {
    for config in [
        LateConfig { shared_staging: false, ..LateConfig::new("late") },
        LateConfig { mapped_staging: true, ..LateConfig::new("late") },
        LateConfig { largest_open: 1 << 16, ..LateConfig::new("late") },
    ] {
        let (late, one, other) = two(config);
        let copies = to_all(batch(), &[one.clone(), other.clone()], options());
        for (tree, report) in &copies {
            assert_eq!(contents(tree), contents(&batch()));
            assert!(report.pinned_staging_bytes + report.written_bytes > 0, "{report}");
        }
        drop(copies);
        all_is_given_back(&late, &[&one, &other]);
    }
}

#[test]
fn tensors_on_one_of_the_devices_stay_there() {
    let (late, one, other) = pair();
    let resident = on(&other, &[3; 40]);
    let tree = || vec![numbers(9, 1), resident.clone()];
    let copies = to_all(tree(), &[one.clone(), other.clone()], options());
    assert!(copies[1].0[1].shares_memory_with(&resident));
    for ((tree, _), device) in copies.iter().zip([&one, &other]) {
        assert!(tree.iter().all(|tensor| tensor.device_id().unwrap() == device.id()));
        assert_eq!(contents(tree), [bytes_of(&numbers(9, 1)), vec![3; 40]]);
    }
    no_violations(&late);
}

#[test]
fn pinned_sources_are_read_where_they_lie_and_live_until_all_have() {
    let (late, one, other) = pair();
    let mut source = Tensor::empty_pinned(&[8], DType::U8, &one).unwrap();
    source.as_mut_bytes().unwrap().copy_from_slice(&[7; 8]);
    // Its neighbour is strided, and so staged.
    let strided = numbers(6, 0).reshape(&[2, 3]).unwrap().transpose(0, 1).unwrap();
    let expected = contents(&[source.clone(), strided.clone()]);
    let unpacked = options().packing(false);
    let copies = start_copy_to_all(vec![source, strided], &[one.clone(), other.clone()], unpacked).unwrap();
    let mut copies = copies.into_iter();
    let first = wait(copies.next().unwrap());
    assert!(one.result_usage().in_use > 0, "the other device has not read it");
    let second = wait(copies.next().unwrap());
    assert_eq!(one.result_usage().in_use, 0);
    assert_eq!((first.1.pinned_staging_bytes, second.1.pinned_staging_bytes), (12, 0));
    assert_eq!([contents(&first.0), contents(&second.0)], [expected.clone(), expected]);
    no_violations(&late);
}

#[test]
fn sources_are_let_go_of_when_all_are_waited_for() {
    for when in MODES {
        let (late, one, other) = pair();
        let drops = Drops::default();
        let tree = vec![drops.tensor(vec![1; 4]), drops.tensor(vec![2; 4])];
        let to = [one.clone(), other.clone(), one];
        let copies = start_copy_to_all(tree, &to, options().background(when)).unwrap();
        let results: Vec<_> = copies.into_iter().map(wait).collect();
        assert_eq!(drops.count(), 2, "{when:?}");
        assert!(results.iter().all(|(tree, _)| contents(tree) == [[1; 4], [2; 4]]));
        no_violations(&late);
    }
}

/// What the first or the second device fails to submit or to allocate.
///
/// catches: 102-copies-that-fail-stop-the-others
#[test]
fn a_failure_of_one_device_leaves_the_other_alone() {
    for when in MODES {
        for (call, failing) in
            [(Call::Submit, 0), (Call::Submit, 1), (Call::Allocate, 0), (Call::Allocate, 1)]
        {
            let (late, one, other) = pair();
            one.prepare(64).unwrap();
            late.fail_next(call, failing);
            let to = [one.clone(), other.clone()];
            let mut copies = start_copy_to_all(vec![numbers(9, 3)], &to, options().background(when)).unwrap();
            let failed = copies.remove(failing);
            let (tree, report) = wait(copies.pop().unwrap());
            assert_eq!(contents(&tree), contents(&[numbers(9, 3)]), "{when:?} {call:?} {failing}");
            assert_eq!(report.submissions, 1);
            let error = in_time(move || failed.wait()).unwrap_err();
            assert!(error.error().to_string().contains("told to fail"), "{error}");
            let mut back = error.into_value().expect("the structure comes back");
            assert_eq!(contents(&back), contents(&[numbers(9, 3)]));
            eventually("the source is no longer in use", || back[0].as_mut_bytes().is_ok());
            drop((tree, back));
            all_is_given_back(&late, &[&one, &other]);
        }
    }
}

#[test]
fn what_fails_for_all_at_the_start_gives_the_structure_back() {
    let (late, one, other) = pair();
    let to = [one.clone(), other.clone()];
    for (call, times) in [(Call::Submit, 2), (Call::Staging, 1), (Call::Allocate, 2)] {
        let tree = batch();
        let addresses: Vec<_> = tree.iter().map(|tensor| tensor.address().unwrap()).collect();
        (0..times).for_each(|_| late.fail_next(call, 0));
        one.trim();
        let failed = start_copy_to_all(tree, &to, options().background(BackgroundWork::Never)).unwrap_err();
        assert!(failed.error().to_string().contains("told to fail"), "{call:?}: {failed}");
        let back = failed.into_value().expect("the structure comes back");
        assert_eq!(back.iter().map(|tensor| tensor.address().unwrap()).collect::<Vec<_>>(), addresses);
        assert_eq!(contents(&back), contents(&batch()));
    }
    all_is_given_back(&late, &[&one, &other]);
}

#[test]
fn what_cannot_be_planned_for_one_is_not_begun_for_any() {
    let (late, one, other) = pair();
    let stream = other.create_stream(StreamPriority::Normal).unwrap();
    late.clear_calls();
    let failed = start_copy_to_all(batch(), &[one, other], options().stream(&stream)).unwrap_err();
    assert!(matches!(failed.error(), Error::WrongStream { .. }), "{failed}");
    assert_eq!(contents(&failed.into_value().unwrap()), contents(&batch()));
    let started = |call| matches!(call, Call::Submit | Call::Allocate | Call::Staging);
    assert!(!late.calls().iter().any(|record| started(record.call)));
}

#[test]
fn a_dropped_handle_does_not_stop_the_others() {
    for dropped in [0, 1] {
        let (late, one, other) = pair();
        let source = numbers(5 * 2048, 0);
        late.stall();
        let to = [one.clone(), other.clone()];
        // In pieces of a page, by a worker.
        let mut copies =
            start_copy_to_all(vec![source.clone()], &to, options().max_bytes_in_flight(4096)).unwrap();
        drop(copies.remove(dropped));
        late.release();
        let (tree, report) = wait(copies.pop().unwrap());
        assert_eq!(bytes_of(&tree[0]), bytes_of(&source));
        assert_eq!(report.submissions, 5, "{report}");
        drop(tree);
        all_is_given_back(&late, &[&one, &other]);
    }
}

#[test]
fn what_nobody_wants_any_more_is_not_submitted() {
    let (late, one, other) = pair();
    late.stall();
    let to = [one.clone(), other.clone()];
    let copies =
        start_copy_to_all(vec![numbers(5 * 2048, 0)], &to, options().max_bytes_in_flight(4096)).unwrap();
    let submissions = || late.calls().iter().filter(|record| record.call == Call::Submit).count();
    eventually("a piece is submitted", || submissions() == 1);
    drop(copies);
    all_is_given_back(&late, &[&one, &other]);
    assert!(submissions() <= 2, "{}", submissions());
}

/// Of the devices, the first stands still, and there is one block: whoever carries units waits for it.
fn to_one_that_stands_still(late: &LateHandle, devices: &[Device; 2]) -> [CopyHandle<Vec<Tensor>>; 2] {
    devices[0].set_staging_budget(BLOCK).unwrap();
    let stream = devices[0].create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    let _current = stream.enter();
    let large = Tensor::from(vec![1_u8; 9 * BLOCK + 17]);
    let options = options().background(BackgroundWork::Always);
    start_copy_to_all(vec![large], devices, options).unwrap().try_into().unwrap()
}

/// catches: 105-who-waits-for-one-carries-units-of-all
#[test]
fn a_failure_is_told_though_another_device_stands_still() {
    for call in [Call::Allocate, Call::Submit].repeat(10) {
        let (late, one, other) = pair();
        let devices = [one, other];
        late.fail_next(call, 1);
        let [goes_on, fails] = to_one_that_stands_still(&late, &devices);
        assert!(in_time(move || fails.wait()).is_err(), "{call:?}");
        late.release();
        assert_eq!(bytes_of(&wait(goes_on).0[0]), vec![1; 9 * BLOCK + 17]);
        all_is_given_back(&late, &[&devices[0], &devices[1]]);
    }
}

/// catches: 106-not-told-behind-a-panic
#[test]
fn a_waker_that_panics_leaves_the_others_told() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    let (late, one, other) = pair();
    late.fail_next(Call::Staging, 0);
    late.hold(0);
    let options = options().background(BackgroundWork::Always);
    let mut copies = start_copy_to_all(batch(), &[one, other], options).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    assert!(Pin::new(&mut copies[0]).poll(&mut Context::from_waker(&waker)).is_pending());
    late.let_go();
    let waited_for = copies.pop().unwrap();
    assert!(in_time(move || waited_for.wait()).is_err());
}

#[test]
fn each_copy_has_the_deadline() {
    given_time(|limit| {
        let (late, one, other) = pair();
        let first = one.create_stream(StreamPriority::Normal).unwrap();
        let _current = first.enter();
        late.stall_stream(&**first.backend_stream());
        let soon = options().deadline(limit);
        let mut copies = start_copy_to_all(vec![numbers(9, 0)], &[one.clone(), other.clone()], soon).unwrap();
        let [of_other, of_stalled] = [(); 2].map(|()| copies.pop().unwrap());
        let [of_other, of_stalled] = [of_other, of_stalled].map(|copy| in_time(move || copy.wait()));
        assert!(is_late(&of_stalled.unwrap_err()));
        let was_in_time = of_other.map_err(|failed| assert!(is_late(&failed))).ok();
        let was_in_time = was_in_time.map(|tree| assert_eq!(contents(&tree), contents(&[numbers(9, 0)])));
        all_is_given_back(&late, &[&one, &other]);
        was_in_time
    });
}

fn is_late<S>(failed: &CopyError<S>) -> bool {
    matches!(failed.error(), Error::DeadlineExceeded { .. })
}

#[test]
fn starting_blocks_nothing_and_the_steady_state_allocates_nothing() {
    let (late, one, other) = pair();
    one.prepare(4096).unwrap();
    let to = [one.clone(), other.clone()];
    drop(to_all(batch(), &to, options()));
    let before = [one.counters(), other.counters()];
    late.clear_calls();
    for _ in 0..20 {
        let copies = start_copy_to_all(batch(), &to, options()).unwrap();
        assert_eq!(late.blocking_calls_here(), []);
        // On this thread, so that the log tells.
        copies.into_iter().for_each(|copy| drop(copy.wait().unwrap()));
        late.clear_calls();
    }
    for (device, before) in to.iter().zip(before) {
        let after = device.counters();
        assert_eq!(after.staging_allocations, before.staging_allocations);
        assert_eq!(
            (after.events_created, after.streams_created),
            (before.events_created, before.streams_created)
        );
        assert_eq!((after.submissions, after.copies), (before.submissions + 20, before.copies + 20));
    }
}

/// catches: 82-broken-guest-fails-the-pool
#[test]
fn a_device_that_breaks_does_not_take_the_others_along() {
    let (late, one, other) = pair();
    // Room for two blocks.
    one.set_staging_budget(2 * BLOCK).unwrap();
    one.prepare(64).unwrap();
    late.stall();
    let to = [one.clone(), other.clone(), other];
    let mut copies = start_copy_to_all(vec![numbers(9, 0)], &to, options()).unwrap().into_iter();
    late.break_one(1);
    late.release();
    assert_eq!(contents(&wait(copies.next().unwrap()).0), contents(&[numbers(9, 0)]));
    // The block that the broken device may still read is lost, once, as the second copy of these finds; the other one is
    // there for whoever comes.
    for from in 0..4 {
        let copies: Vec<_> =
            (0..3).map(|copy| start_copy(vec![numbers(9, from + copy)], &one, options()).unwrap()).collect();
        for (copy, number) in copies.into_iter().zip(from..) {
            let (tree, report) = wait(copy);
            assert_eq!(contents(&tree), contents(&[numbers(9, number)]));
            assert_eq!(report.pinned_staging_bytes, 18, "{report}");
        }
    }
    copies.for_each(|copy| assert!(in_time(move || copy.wait()).is_err()));
    assert_eq!(one.staging_usage().in_use, BLOCK, "what the broken device may read is never used again");
    no_violations(&late);
}

#[test]
fn who_waits_for_a_block_that_a_broken_device_has_goes_on_without() {
    let (late, one, other) = pair();
    one.set_staging_budget(BLOCK).unwrap();
    one.prepare(64).unwrap();
    let stream = other.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    let current = stream.enter();
    let mut copies = start_copy_to_all(vec![numbers(9, 0)], &[one.clone(), other], options()).unwrap();
    drop(current);
    let broken = copies.pop().unwrap();
    wait(copies.pop().unwrap());
    late.clear_calls();
    let waiting =
        start_copy(vec![numbers(9, 5)], &one, options().background(BackgroundWork::Always)).unwrap();
    eventually("a worker waits", || late.calls().iter().any(|record| record.call == Call::Wait));
    late.break_one(1);
    let (tree, report) = wait(waiting);
    assert_eq!(contents(&tree), contents(&[numbers(9, 5)]));
    assert_eq!(report.pageable_staging_bytes, 18, "{report}");
    assert!(in_time(move || broken.wait()).is_err());
    no_violations(&late);
}

#[test]
fn a_device_with_smaller_buffers_is_planned_for_by_itself() {
    let (late, _, _) = pair();
    let hooked = |ordinal, largest| Hooked::with_largest_buffer(late.backend(ordinal), largest);
    let backends = [hooked(0, 4096), hooked(1, 64)];
    let to = backends.map(|backend| Device::from_backend(backend).unwrap());
    let copies = to_all(vec![numbers(30, 0), numbers(30, 1)], &to, options());
    let chunks: Vec<_> = copies.iter().map(|(_, report)| report.chunks).collect();
    assert_eq!(chunks, [1, 2]);
    let copies = to_all(vec![numbers(9, 0), numbers(9, 1)], &to, options());
    let staged: Vec<_> = copies.iter().map(|(_, report)| report.pinned_staging_bytes > 0).collect();
    assert_eq!(staged, [true, false], "one plan is as good for both");
    drop(copies);
    no_violations(&late);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn tree(&mut self) -> Vec<Tensor> {
        let mut tree: Vec<Tensor> = Vec::new();
        for _ in 0..self.below(12) {
            let bytes = (0..self.below(90)).map(|_| self.below(256) as u8).collect::<Vec<_>>();
            tree.push(match self.below(5) {
                0 => Tensor::from(bytes),
                1 => Tensor::from(bytes.iter().map(|byte| f32::from(*byte)).collect::<Vec<_>>()),
                2 => Tensor::from(bytes.iter().map(|byte| i64::from(*byte)).collect::<Vec<_>>()),
                3 => numbers(24, 9).reshape(&[4, 6]).unwrap().slice(1, 1..6, 1 + self.below(3)).unwrap(),
                _ => tree.last().cloned().unwrap_or_else(|| numbers(3, 1)),
            });
        }
        tree
    }

    fn options(&mut self) -> CopyOptions {
        let options = options().packing(self.below(4) > 0).background(MODES[self.below(2)]);
        match self.below(4) {
            0 => options.max_chunk_bytes(64),
            1 => options.max_bytes_in_flight(4096),
            _ => options,
        }
    }
}

/// A copy to all is what a copy to each of them is.
#[test]
fn it_equals_single_copies() {
    for seed in 0..if cfg!(miri) { 2 } else { 150 } {
        let mut random = Random(seed);
        let granularity = Alignment::new([1, 4, 16][random.below(3)]).unwrap();
        let config = LateConfig {
            copy_granularity: granularity,
            shared_staging: random.below(5) > 0,
            mapped_staging: random.below(6) == 0,
            seed: Some(seed),
            ..LateConfig::new("late")
        };
        let (late, one, other) = two(config);
        let tree = random.tree();
        let options = random.options();
        let known = [Device::host(), one.clone(), other.clone()];
        let to: Vec<_> = (0..random.below(5)).map(|_| known[random.below(3)].clone()).collect();
        let copies = to_all(tree.clone(), &to, options.clone());
        assert_eq!(copies.len(), to.len());
        for ((copied, report), target) in copies.iter().zip(&to) {
            let (single, alone) = wait(start_copy(tree.clone(), target, options.clone()).unwrap());
            assert_eq!(contents(copied), contents(&single), "seed {seed}");
            let routes = |report: &CopyReport| {
                let CopyReport { packed, alone, resident, aliased, empty, .. } = *report;
                ([packed, alone, resident, aliased, empty], report.chunk_bytes, report.copied_bytes)
            };
            assert_eq!(routes(report), routes(&alone), "seed {seed}");
        }
        drop(copies);
        all_is_given_back(&late, &[&one, &other]);
    }
}
