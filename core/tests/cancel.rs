//! Copies that are stopped, or that take longer than they may.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use late_backend::{Call, LateHandle};
use support::{bytes_of, eventually, in_time, late, no_violations, on};
use transship_core::backend::StreamPriority;
use transship_core::{BackgroundWork, Cancelled, CopyOptions, Device, Error, Tensor, TimedWait, start_copy};

/// A deadline that a stalled device misses.
const SOON: Duration = Duration::from_millis(20);

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// In pieces of a page, by a worker.
fn paced() -> CopyOptions {
    options().max_bytes_in_flight(4096)
}

fn source() -> Tensor {
    Tensor::from(vec![7_u8; 5 * 4096])
}

fn submissions(late: &LateHandle) -> usize {
    late.calls().iter().filter(|record| record.call == Call::Submit).count()
}

fn all_is_given_back(late: &LateHandle, device: &Device) {
    late.release();
    eventually("all memory of the device is given back", || {
        device.synchronize().unwrap();
        device.counters().device_bytes == 0 && device.staging_usage().in_use == 0
    });
    assert_eq!(bytes_of(&on(device, &[3; 8])), [3; 8]);
    no_violations(late);
}

/// catches: 31-cancelled-copies-go-on
#[test]
fn what_is_not_submitted_yet_is_not_submitted_any_more() {
    let (late, device) = late();
    let tensor = source();
    let address = tensor.address().unwrap();
    late.stall();
    late.clear_calls();
    let copy = start_copy(tensor, &device, paced()).unwrap();
    eventually("a piece is submitted", || submissions(&late) == 1);
    let Cancelled { value, report, .. } = in_time(move || copy.cancel());
    assert_eq!((report.submissions, report.copied_bytes), (1, 4096), "{report}");
    let back = value.expect("the structure comes back");
    assert_eq!(back.address().unwrap(), address);
    late.release();
    // Waits for the worker.
    device.drain().unwrap();
    assert_eq!(submissions(&late), 1);
    assert_eq!(back.to_bytes().unwrap(), vec![7; 5 * 4096]);
    all_is_given_back(&late, &device);
}

#[test]
fn sources_that_the_device_reads_cannot_be_written_before_it_is_done() {
    let (late, device) = late();
    let mut pinned = Tensor::empty_pinned(&[8], transship_core::DType::U8, &device).unwrap();
    pinned.as_mut_bytes().unwrap().fill(5);
    late.stall();
    let copy = start_copy(pinned, &device, options().packing(false)).unwrap();
    let mut back = copy.cancel().value.unwrap();
    assert!(matches!(back.as_mut_bytes(), Err(Error::NotWritable { .. })));
    late.release();
    device.synchronize().unwrap();
    eventually("it may be written again", || back.as_mut_bytes().is_ok());
    all_is_given_back(&late, &device);
}

#[test]
fn a_copy_that_was_waited_for_is_cancelled_with_its_copies() {
    let (late, device) = late();
    device.prepare(5 * 4096).unwrap();
    late.stall();
    let copy = start_copy(source(), &device, options()).unwrap();
    let TimedWait::Pending(copy) = copy.wait_timeout(Duration::from_millis(1)).unwrap() else {
        panic!("nothing can have been copied")
    };
    let there = copy.cancel().value.unwrap();
    assert!(!there.is_ready().unwrap());
    late.release();
    assert_eq!(bytes_of(&there), vec![7; 5 * 4096]);
    drop(there);
    all_is_given_back(&late, &device);
}

#[test]
fn a_copy_that_is_done_is_cancelled_with_its_sources() {
    let (late, device) = late();
    let copy = start_copy(source(), &device, options()).unwrap();
    eventually("it is done", || copy.is_ready().unwrap());
    assert_eq!(copy.cancel().value.unwrap().to_bytes().unwrap(), vec![7; 5 * 4096]);
    all_is_given_back(&late, &device);
}

fn hurried() -> CopyOptions {
    options().deadline(SOON)
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::DeadlineExceeded { limit } if *limit == SOON)
}

#[test]
fn a_late_copy_fails_and_its_memory_stays_owned() {
    let (late, device) = late();
    // No worker has to make room first: the copy is submitted when `start_copy` returns.
    device.prepare(5 * 4096).unwrap();
    late.stall();
    let copy = start_copy(source(), &device, hurried()).unwrap();
    let failed = in_time(move || copy.wait()).unwrap_err();
    assert!(is_late(failed.error()), "{failed}");
    assert!(device.staging_usage().in_use > 0, "the device may still read the block");
    assert!(late.pending() > 0);
    all_is_given_back(&late, &device);
}

#[test]
fn a_late_copy_ends_its_task() {
    for when in [BackgroundWork::Auto, BackgroundWork::Always] {
        let (late, device) = late();
        late.stall();
        let copy = start_copy(source(), &device, hurried().background(when)).unwrap();
        let failed = in_time(move || futures::executor::block_on(copy)).unwrap_err();
        assert!(is_late(failed.error()), "{when:?}: {failed}");
        all_is_given_back(&late, &device);
    }
}

/// A worker that is held up submits nothing: only the clock ends the copy.
///
/// catches: 32-late-by-its-waiters-only, 743-what-sleeps-has-no-time
#[test]
fn a_copy_that_is_never_submitted_is_late_as_well() {
    for by_task in [false, true] {
        let (late, device) = late();
        late.stall();
        let copy = start_copy(source(), &device, paced().deadline(SOON)).unwrap();
        let wait = move || if by_task { futures::executor::block_on(copy) } else { copy.wait() };
        let failed = in_time(wait).unwrap_err();
        assert!(is_late(failed.error()), "by task {by_task}: {failed}");
        assert_eq!(
            failed.into_value().expect("its sources are still there").to_bytes().unwrap(),
            vec![7; 5 * 4096]
        );
        all_is_given_back(&late, &device);
    }
}

#[test]
fn what_a_late_copy_should_have_filled_says_so() {
    let (late, device) = late();
    // Submitted at once: a worker may start too late.
    device.prepare(1 << 16).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall();
    let there = start_copy(source(), &device, hurried()).unwrap().wait_on(&stream).unwrap();
    eventually("it is late", || there.is_ready().is_err());
    assert!(matches!(there.is_ready(), Err(Error::CopyFailed(error)) if is_late(&error)));
    let again = start_copy(there, &Device::host(), options()).map_or_else(Error::from, |copy| {
        copy.wait().map_or_else(Error::from, |_| panic!("it was never filled"))
    });
    assert!(matches!(again, Error::CopyFailed(_)), "{again}");
    all_is_given_back(&late, &device);
}

#[test]
fn a_copy_in_time_is_none_of_it() {
    let (late, device) = late();
    let patient = options().deadline(Duration::from_secs(60));
    let there = start_copy(source(), &device, patient.clone()).unwrap().wait().unwrap();
    let there = futures::executor::block_on(start_copy(there, &Device::host(), patient).unwrap()).unwrap();
    assert_eq!(there.to_bytes().unwrap(), vec![7; 5 * 4096]);
    let without_end = options().deadline(Duration::MAX);
    assert!(start_copy(there, &device, without_end).unwrap().wait().is_ok());
    all_is_given_back(&late, &device);
}
