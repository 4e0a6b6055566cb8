//! What fails says so, gives the structure back where it can, leaks where it must, and leaves the device usable.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hooked::Hooked;
use late_backend::{Call, LateConfig, LateHandle, SubmitFailure};
use support::{Drops, bytes_of, eventually, in_time, late, no_violations, on, with};
use transship_core::backend::{StreamPriority, Ticket};
use transship_core::{
    BackgroundWork, CopyError, CopyOptions, DType, Device, Error, Stop, Tensor, TensorTree, TimedWait,
    Visitor, runtime_stats, start_copy,
};

const MODES: [BackgroundWork; 3] = [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never];

/// Without packing: two allocations and two copies.
fn options(when: BackgroundWork) -> CopyOptions {
    CopyOptions::default().packing(false).background(when)
}

fn sources() -> Vec<Tensor> {
    vec![Tensor::from(vec![1_u8; 8]), Tensor::from(vec![2_u8; 24])]
}

fn copy(tree: Vec<Tensor>, to: &Device, options: CopyOptions) -> Result<Vec<Tensor>, CopyError<Vec<Tensor>>> {
    let to = to.clone();
    in_time(move || start_copy(tree, &to, options)?.wait())
}

/// A copy fails, gives its sources back as they were, and the next one succeeds.
#[track_caller]
fn fails_and_recovers(late: &LateHandle, device: &Device, when: BackgroundWork) {
    let tree = sources();
    let addresses: Vec<_> = tree.iter().map(|tensor| tensor.address().unwrap()).collect();
    let failed = copy(tree, device, options(when)).unwrap_err();
    assert!(failed.error().to_string().contains("told to fail"), "{failed}");
    let mut back = failed.into_value().expect("the structure comes back");
    assert_eq!(back.iter().map(|tensor| tensor.address().unwrap()).collect::<Vec<_>>(), addresses);
    assert_eq!(bytes(&back), [vec![1; 8], vec![2; 24]]);
    eventually("the sources are no longer in use", || back[0].as_mut_bytes().is_ok());

    let done = copy(back, device, options(when)).unwrap();
    assert_eq!(bytes(&done), [vec![1; 8], vec![2; 24]]);
    drop(done);
    device.drain().unwrap();
    eventually("all memory is given back", || {
        device.counters().device_bytes == 0 && device.staging_usage().in_use == 0
    });
    no_violations(late);
}

/// The host writes both where they lie; the device is given the first one only.
#[test]
fn memory_that_cannot_be_closed_fails_the_copy() {
    for when in MODES {
        let (late, device) = with(LateConfig { largest_open: 4096, ..LateConfig::new("late") });
        late.fail_next(Call::Close, 1);
        fails_and_recovers(&late, &device, when);
        assert_eq!(device.counters().bytes_up, 0, "nothing is staged on the way up");
    }
}

/// catches: 29-out-of-memory-at-once
#[test]
fn idle_memory_of_the_device_is_given_back_when_there_is_no_other() {
    for when in MODES {
        let (late, device) = with(LateConfig { device_memory: 64, ..LateConfig::new("late") });
        late.hoard(0, 40);
        let there = copy(sources(), &device, options(when)).unwrap();
        assert_eq!(bytes(&there), [vec![1; 8], vec![2; 24]]);
        let trims = || late.calls().iter().filter(|record| record.call == Call::Trim).count();
        assert_eq!(trims(), 1, "{when:?}");

        let full = Tensor::from(vec![3_u8; 40]);
        let failed = start_copy(full, &device, options(when)).map_or_else(Error::from, |copy| {
            copy.wait().map_or_else(Error::from, |_| panic!("there are only 32 bytes left"))
        });
        let figures =
            |error: &Error| matches!(error, Error::OutOfMemory { requested: 40, free: 32, total: 64, .. });
        assert!(figures(&failed), "{failed}");
        assert_eq!(trims(), 2, "{when:?}");
        no_violations(&late);
    }
}

fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(bytes_of).collect()
}

#[test]
fn an_allocation_that_fails_gives_the_structure_back() {
    for when in MODES {
        for after in 0..2 {
            let (late, device) = late();
            device.prepare(64).unwrap();
            late.fail_next(Call::Allocate, after);
            fails_and_recovers(&late, &device, when);
        }
    }
}

#[test]
fn staging_that_cannot_be_had_gives_the_structure_back() {
    for when in MODES {
        let (late, device) = late();
        late.fail_next(Call::Staging, 0);
        fails_and_recovers(&late, &device, when);
    }
}

/// catches: 08-failed-submit-keeps-its-entry, 09-structure-not-restored
#[test]
fn a_submission_that_fails_gives_the_structure_back() {
    for when in MODES {
        for submit_failure in [SubmitFailure::BeforeAnything, SubmitFailure::AfterOps(1)] {
            let (late, device) = with(LateConfig { submit_failure, ..LateConfig::new("late") });
            device.prepare(64).unwrap();
            late.fail_next(Call::Submit, 0);
            fails_and_recovers(&late, &device, when);
        }
    }
}

/// Two ways, through a staging block and past it, are two submissions at least, whoever makes them and in which order.
#[test]
fn what_was_submitted_before_the_failure_stays_owned() {
    for when in MODES {
        let (late, device) = late();
        device.prepare(1 << 20).unwrap();
        let mut pinned = Tensor::empty_pinned(&[16], DType::U8, &device).unwrap();
        pinned.as_mut_bytes().unwrap().fill(4);
        late.stall();
        late.fail_next(Call::Submit, 1);
        let tree = vec![Tensor::from(vec![3_u8; 9 << 20]), pinned];
        let failed = match start_copy(tree, &device, options(when)) {
            Err(failed) => failed,
            Ok(handle) => in_time(move || handle.wait()).unwrap_err(),
        };
        assert!(failed.error().to_string().contains("told to fail"), "{failed}");
        let back = failed.into_value().unwrap();
        assert_eq!(bytes(&back), [vec![3; 9 << 20], vec![4; 16]]);
        drop(back);
        late.release();
        eventually("the rest is let go of", || {
            device.counters().device_bytes == 0 && device.staging_usage().in_use == 0
        });
        no_violations(&late);
    }
}

/// The tests that break a device, one after the other: leaks are counted for the whole process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// catches: 06-leak-not-counted, 07-freed-instead-of-leaked
#[test]
fn a_broken_device_leaks_what_is_in_flight_and_counts_it() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    device.prepare(64).unwrap();
    let drops = Drops::default();
    late.stall();
    let copy = start_copy(drops.tensor(vec![1; 8]), &device, CopyOptions::default()).unwrap();
    let before = runtime_stats();
    late.break_device();
    assert!(matches!(copy.is_ready(), Err(Error::Driver { .. })));
    let failed = in_time(move || copy.wait()).unwrap_err();
    assert!(matches!(failed.error(), Error::Driver { .. }), "{failed}");
    assert_eq!(bytes_of(&failed.into_value().unwrap()), [1; 8]);

    let leaked = runtime_stats();
    assert_eq!(leaked.leaks - before.leaks, 1);
    assert!(leaked.leaked_bytes - before.leaked_bytes >= 8);
    assert!(device.staging_usage().in_use > 0, "the block may still be read");
    assert!(device.counters().device_bytes >= 8, "the result may still be written");
    assert_eq!(drops.count(), 1, "nobody uses the source");
}

/// catches: 23-leaked-blocks-not-counted
#[test]
fn blocks_that_were_leaked_are_not_waited_for() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    device.set_staging_budget(64 << 10).unwrap();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall();
    let options = CopyOptions::default().stream(&stream);
    let handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, options).unwrap();
    late.fail_next(Call::Query, 0);
    assert!(handle.is_ready().is_err());
    drop(handle);
    late.release();
    let copy = start_copy(sources(), &device, CopyOptions::default()).unwrap();
    let (_, report) = in_time(move || copy.wait_with_report()).unwrap();
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes > 0), (0, true), "{report:?}");
}

/// The device breaks between the allocation and the submission: nobody knows what of it was submitted.
#[test]
fn a_submission_on_a_device_that_breaks_is_leaked_and_gives_the_structure_back() {
    let _turn = one_at_a_time();
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let backend = Hooked::new(late.backend(0));
    let device = Device::from_backend(backend.clone()).unwrap();
    device.prepare(64).unwrap();
    let before = runtime_stats();
    let breaking = late.clone();
    backend.before_next_submit(move || breaking.break_device());
    let failed = copy(sources(), &device, options(BackgroundWork::Auto)).unwrap_err();
    assert!(matches!(failed.error(), Error::Driver { .. }), "{failed}");
    assert_eq!(bytes(&failed.into_value().unwrap()), [vec![1; 8], vec![2; 24]]);

    let leaked = runtime_stats();
    assert_eq!(leaked.leaks - before.leaks, 1);
    assert!(leaked.leaked_bytes - before.leaked_bytes >= 8 + 24, "the results, and the block");
    assert!(device.staging_usage().in_use > 0, "the block may still be read");
    assert_eq!(device.counters().device_bytes, 8 + 24, "the results may still be written");
}

/// The last owner of a tensor goes while work of the program uses it, on a stream that will never tell.
#[test]
fn memory_in_use_on_a_stream_that_broke_is_leaked_and_counted() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let tensor = on(&device, &[7; 48]);
    tensor.record_stream(&stream).unwrap();
    late.break_device();
    let before = runtime_stats();
    drop(tensor);
    let leaked = runtime_stats();
    assert_eq!((leaked.leaks - before.leaks, leaked.leaked_bytes - before.leaked_bytes), (1, 48));
    assert_eq!(device.counters().device_bytes, 48, "a kernel may still read it");
}

#[test]
fn memory_behind_a_ticket_is_given_back_when_it_is_reached_and_leaked_where_it_never_is() {
    let _turn = one_at_a_time();
    for breaks in [false, true] {
        let (late, device) = late();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let backend = stream.backend_stream();
        let drops = Drops::default();
        let lent = drops.tensor(vec![7; 48]);
        late.stall();
        let copy = start_copy(sources(), &device, CopyOptions::default().stream(&stream)).unwrap();
        lent.record_use(Ticket { stream: backend.clone(), position: backend.record().unwrap() }).unwrap();
        let before = runtime_stats();
        drop(lent);
        assert_eq!(drops.count(), 0, "the stream has not come there");
        if breaks {
            late.break_device();
            eventually("it is leaked", || runtime_stats().leaked_bytes - before.leaked_bytes >= 48);
            assert_eq!(drops.count(), 0);
        } else {
            late.release();
            drop(in_time(move || copy.wait()).unwrap());
            // The simulated device moves when it is asked.
            let asked = || backend.reached().is_ok();
            eventually("it is given back", || asked() && drops.count() == 1);
            assert_eq!(runtime_stats().leaks, before.leaks);
            no_violations(&late);
        }
    }
}

#[test]
fn a_broken_device_ends_waits_that_have_begun() {
    let _turn = one_at_a_time();
    for when in MODES {
        let (late, device) = late();
        late.stall();
        let handle = start_copy(sources(), &device, options(when)).unwrap();
        let waiting = std::thread::spawn(move || in_time(move || handle.wait().map(drop)));
        eventually("it waits", || late.calls().iter().any(|record| record.call == Call::Wait));
        late.break_device();
        let failed = waiting.join().unwrap().unwrap_err();
        assert!(matches!(failed.error(), Error::Driver { .. }), "{failed}");
        let failed = copy(sources(), &device, options(when)).unwrap_err();
        assert_eq!(bytes(&failed.into_value().unwrap()), [vec![1; 8], vec![2; 24]]);
    }
}

#[test]
fn a_broken_device_ends_futures() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    let handle = start_copy(sources(), &device, CopyOptions::default()).unwrap();
    let waiting = std::thread::spawn(move || in_time(move || futures::executor::block_on(handle).map(drop)));
    eventually("it is polled", || late.calls().iter().any(|record| record.call == Call::Query));
    late.break_device();
    assert!(matches!(waiting.join().unwrap().unwrap_err().error(), Error::Driver { .. }));
}

/// catches: 10-no-poison
#[test]
fn a_result_that_was_never_filled_says_so_at_every_use() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    device.prepare(64).unwrap();
    late.stall();
    let handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, CopyOptions::default()).unwrap();
    let tensor = handle.wait_on(&stream).unwrap();
    let view = tensor.narrow(0, 2, 4).unwrap();
    late.break_device();
    for tensor in [&tensor, &view] {
        let failed = [
            tensor.is_ready().unwrap_err(),
            tensor.as_slice::<u8>().unwrap_err(),
            tensor.to_bytes().unwrap_err(),
            tensor.record_stream(&stream).unwrap_err(),
            tensor.wait_on_backend(stream.backend_stream()).unwrap_err(),
        ];
        for error in failed {
            assert!(
                matches!(&error, Error::CopyFailed(why) if matches!(**why, Error::Driver { .. })),
                "{error:?}"
            );
        }
        let failed = copy(vec![tensor.clone()], &Device::host(), CopyOptions::default()).unwrap_err();
        assert!(matches!(failed.error(), Error::CopyFailed(_)), "{failed:?}");
        assert!(failed.into_value().is_some());
    }
}

#[test]
fn a_device_that_does_not_answer_gives_the_handle_back() {
    for when in MODES {
        let (late, device) = late();
        late.stall();
        let mut handle = start_copy(sources(), &device, options(when)).unwrap();
        for _ in 0..3 {
            handle = match handle.wait_timeout(Duration::from_millis(5)).unwrap() {
                TimedWait::Pending(handle) => handle,
                TimedWait::Done(_) => panic!("the device stands still"),
            };
        }
        late.release();
        let TimedWait::Done(done) = handle.wait_timeout(support::PATIENCE).unwrap() else {
            panic!("the device answers");
        };
        assert_eq!(bytes(&done), [vec![1; 8], vec![2; 24]]);
        no_violations(&late);
    }
}

#[test]
fn a_panic_on_a_worker_is_an_error_of_the_copy() {
    let _turn = one_at_a_time();
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let backend = Hooked::new(late.backend(0));
    let device = Device::from_backend(backend.clone()).unwrap();
    let when = BackgroundWork::Always;
    for place in ["submit", "allocate"] {
        match place {
            "submit" => backend.before_next_submit(|| panic!("told to panic in submit")),
            _ => backend.before_next_allocate(|| panic!("told to panic in allocate")),
        }
        let failed = copy(sources(), &device, options(when)).unwrap_err();
        let Error::Panicked { message } = failed.error() else { panic!("{failed:?}") };
        assert_eq!(*message, format!("told to panic in {place}"));
        let done = copy(failed.into_value().unwrap(), &device, options(when)).unwrap();
        assert_eq!(bytes(&done), [vec![1; 8], vec![2; 24]]);
    }
    no_violations(&late);
}

#[test]
fn a_panic_in_start_copy_leaves_the_device_usable() {
    let _turn = one_at_a_time();
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let backend = Hooked::new(late.backend(0));
    let device = Device::from_backend(backend.clone()).unwrap();
    device.prepare(64).unwrap();
    backend.before_next_submit(|| panic!("told to panic in submit"));
    let before = runtime_stats().leaks;
    let start = || drop(start_copy(sources(), &device, options(BackgroundWork::Auto)));
    assert!(catch_unwind(AssertUnwindSafe(start)).is_err());
    assert_eq!(runtime_stats().leaks - before, 1, "nobody knows what was submitted");
    let done = copy(sources(), &device, options(BackgroundWork::Auto)).unwrap();
    assert_eq!(bytes(&done), [vec![1; 8], vec![2; 24]]);
    no_violations(&late);
}

#[test]
fn a_copy_that_cannot_be_waited_for_on_a_stream_is_settled_all_the_same() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let source = on(&device, &[1; 8]);
    device.prepare(64).unwrap();
    late.stall();
    let handle = start_copy(source, &Device::host(), CopyOptions::default()).unwrap();
    let refused = handle.wait_on(&stream).unwrap_err();
    assert!(matches!(refused.error(), Error::HostTarget));
    assert_eq!(refused.into_value().unwrap().device_id().unwrap(), device.id());
    late.release();
    eventually("the result is let go of", || device.result_usage().in_use == 0);
    no_violations(&late);
}

/// Whoever waits helps, and so may find what fails.
#[test]
fn what_fails_while_somebody_waits_gives_the_sources_back() {
    let (late, device) = late();
    for _ in 0..50 {
        let whole = Tensor::from_vec((0..1 << 10).collect::<Vec<i32>>(), &[32, 32]).unwrap();
        let tree = vec![whole.slice(0, 1..32, 2).unwrap(), whole.clone(), Tensor::from(vec![7_u8; 3])];
        let (shapes, bytes) =
            (layouts(&tree), tree.iter().map(|leaf| leaf.to_bytes().unwrap()).collect::<Vec<_>>());
        let failed = fails_in_wait(tree, &late, &device);
        assert!(failed.error().to_string().contains("told to fail"), "{failed}");
        let back = failed.into_value().unwrap();
        assert_eq!(layouts(&back), shapes);
        assert!(back.iter().zip(bytes).all(|(leaf, bytes)| leaf.to_bytes().unwrap() == bytes));
    }
    no_violations(&late);
}

/// Workers carry it out, and whoever waits.
fn fails_in_wait<S: TensorTree + fmt::Debug + Send + 'static>(
    tree: S,
    late: &LateHandle,
    device: &Device,
) -> CopyError<S> {
    late.fail_next(Call::Submit, 0);
    let device = device.clone();
    in_time(move || start_copy(tree, &device, options(BackgroundWork::Always))?.wait()).unwrap_err()
}

fn layouts(tree: &[Tensor]) -> Vec<(usize, Vec<usize>, Vec<usize>)> {
    tree.iter().map(|leaf| (leaf.offset(), leaf.shape().to_vec(), leaf.strides().to_vec())).collect()
}

/// The same for a structure that keeps its order until its copies are in.
#[derive(Debug)]
struct SwappingLate {
    tensors: [Tensor; 2],
    visits: usize,
}

impl TensorTree for SwappingLate {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits += 1;
        let [first, second] = &mut self.tensors;
        let order = if self.visits < 3 { [first, second] } else { [second, first] };
        order.into_iter().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

/// Each tensor gets the source that it was made of, wherever it is shown.
#[test]
fn a_structure_that_changes_its_order_late_gets_its_sources_back() {
    let (late, device) = late();
    for _ in 0..50 {
        let tensors = [Tensor::from(vec![1_u8; 8]), Tensor::from_vec(vec![2_u8; 8], &[8]).unwrap()];
        let before = tensors.each_ref().map(|tensor| tensor.address().unwrap());
        let tree = SwappingLate { tensors, visits: 0 };
        let tensors = fails_in_wait(tree, &late, &device).into_value().unwrap().tensors;
        assert_eq!(tensors.each_ref().map(|tensor| tensor.address().unwrap()), before);
        assert_eq!(tensors.each_ref().map(bytes_of), [[1; 8], [2; 8]]);
    }
    no_violations(&late);
}

/// Is visited in another order every time.
#[derive(Debug)]
struct Swapping {
    tensors: [Tensor; 2],
    forward: bool,
}

impl TensorTree for Swapping {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.forward = !self.forward;
        let [first, second] = &mut self.tensors;
        let order = if self.forward { [first, second] } else { [second, first] };
        order.into_iter().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

#[test]
fn a_structure_that_changes_its_order_gets_its_sources_back() {
    let (late, device) = late();
    for sizes in [[4096, 4], [4, 4]] {
        let [one, two] = sizes;
        let tree =
            Swapping { tensors: [on(&device, &vec![1; one]), on(&device, &vec![2; two])], forward: false };
        late.fail_next(Call::Submit, 0);
        // Who waits without a limit would put the copies in first, and find out then.
        let patient = Duration::from_secs(60);
        let start = move || start_copy(tree, &Device::host(), CopyOptions::default())?.wait_timeout(patient);
        let failed = in_time(start).unwrap_err();
        assert!(failed.error().to_string().contains("told to fail"), "{failed}");
        let tensors = failed.into_value().unwrap().tensors;
        assert_eq!(tensors.each_ref().map(bytes_of), [vec![1; one], vec![2; two]]);
    }
    no_violations(&late);
}
