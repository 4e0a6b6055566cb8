//! Nothing that a program does on its way waits for a device: neither starting, polling nor dropping.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use late_backend::{Call, LateConfig, LateHandle, SubmitFailure};
use support::{bytes_of, eventually, in_time, late, no_violations, on, with};
use transship_core::backend::StreamPriority;
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, Tensor, TensorTree, TimedWait, start_copy,
};

/// More than any of the calls takes; a device stands still for ever.
const PROMPT: Duration = Duration::from_millis(1);
/// Less than a test may take.
const LONG: Duration = Duration::from_secs(20);
/// The machine may be busy with something else just now: the best of so many tries counts.
const TRIES: usize = 20;

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn poll<S: TensorTree>(handle: &mut CopyHandle<S>) -> bool {
    Pin::new(handle).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// The shortest time that each call has taken.
#[derive(Default)]
struct Times(BTreeMap<&'static str, Duration>);

impl Times {
    fn take<R>(&mut self, what: &'static str, call: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = call();
        let time = begin.elapsed();
        self.0.entry(what).and_modify(|best| *best = time.min(*best)).or_insert(time);
        result
    }
}

/// All that a program does with copies, while the device stands still.
fn round(late: &LateHandle, device: Device, times: &mut Times) {
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let resident = on(&device, &[1; 64]);
    device.prepare(1 << 20).unwrap();
    let small = || vec![Tensor::from(vec![1_u8; 100]), Tensor::from(vec![2.0_f32; 100])];
    let large = Tensor::from(vec![3_u8; 3 << 20]);
    late.stall();
    late.clear_calls();

    let mut handle = times.take("start_copy", || start_copy(small(), &device, options())).unwrap();
    assert!(!times.take("is_ready", || handle.is_ready()).unwrap());
    assert!(!times.take("first poll", || poll(&mut handle)));
    assert!(!times.take("poll", || poll(&mut handle)));
    times.take("drop of a handle", || drop(handle));

    let mut handle = times.take("start_copy of much", || start_copy(large, &device, options())).unwrap();
    assert!(!times.take("first poll of much", || poll(&mut handle)));
    times.take("drop of a handle of much", || drop(handle));

    let down = start_copy(resident.clone(), &Device::host(), options());
    times.take("drop of a handle down", || drop(down));
    let pageable = options().pinned_staging(false);
    let down =
        times.take("start_copy down to pageable memory", || start_copy(resident, &Device::host(), pageable));
    times.take("drop of a handle down to pageable memory", || drop(down));

    let handle = start_copy(small(), &device, options()).unwrap();
    let results = times.take("wait_on", || handle.wait_on(&stream)).unwrap();
    times.take("drop of results", || drop(results));
    let zeros = times.take("zeros", || Tensor::zeros(&[64], DType::U8, &device)).unwrap();
    times.take("drop of zeros", || drop(zeros));
    times.take("drop of a stream", || drop(stream));
    times.take("drop of the device", || drop(device));
    assert_eq!(late.blocking_calls_here(), [], "a driver may block in these");
    late.release();
}

/// catches: 11-drop-waits
#[test]
fn while_a_device_stands_still_every_call_returns_at_once() {
    in_time(|| {
        let mut times = Times::default();
        for _ in 0..TRIES {
            let (late, device) = late();
            round(&late, device, &mut times);
            late.backend(0).synchronize().unwrap();
            no_violations(&late);
        }
        let slow: Vec<_> = times.0.iter().filter(|(_, time)| **time > PROMPT).collect();
        assert!(slow.is_empty(), "{slow:?}");
    });
}

#[test]
fn staging_that_is_used_up_is_waited_for_by_workers() {
    let (late, device) = late();
    device.set_staging_budget(128 << 10).unwrap();
    device.prepare(64).unwrap();
    late.stall();
    late.clear_calls();
    let copies: Vec<_> =
        (0_u8..8).map(|byte| start_copy(Tensor::from(vec![byte; 8]), &device, options()).unwrap()).collect();
    assert_eq!(late.blocking_calls_here(), []);
    late.release();
    in_time(move || {
        for (byte, copy) in (0..).zip(copies) {
            assert_eq!(bytes_of(&copy.wait().unwrap()), [byte; 8]);
        }
    });
    no_violations(&late);
}

#[test]
fn without_background_work_and_without_a_block_the_structure_comes_back() {
    let (late, device) = late();
    device.set_staging_budget(64 << 10).unwrap();
    late.stall();
    let never = || options().background(BackgroundWork::Never);
    let first = start_copy(Tensor::from(vec![1_u8; 8]), &device, never()).unwrap();
    let busy = start_copy(Tensor::from(vec![2_u8; 8]), &device, never()).unwrap_err();
    assert!(matches!(busy.error(), Error::Busy { .. }), "{busy}");
    late.release();
    first.wait().unwrap();
    let again = start_copy(busy.into_value().unwrap(), &device, never()).unwrap();
    assert_eq!(bytes_of(&again.wait().unwrap()), [2; 8]);
    no_violations(&late);
}

#[test]
fn a_worker_that_is_held_up_in_a_driver_holds_up_nobody_else() {
    let submit_failure = SubmitFailure::AfterOps(1);
    let (late, device) = with(LateConfig { submit_failure, ..LateConfig::new("late") });
    device.prepare(64).unwrap();
    late.stall();
    let before = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    late.clear_calls();
    late.fail_next(Call::Submit, 0);
    let always = options().background(BackgroundWork::Always);
    let stuck = start_copy(Tensor::from(vec![2_u8; 8]), &device, always).unwrap();
    eventually("the worker submits", || late.calls().iter().any(|record| record.call == Call::Submit));
    let behind = in_time(move || {
        assert!(!before.is_ready().unwrap());
        let mut behind = start_copy(Tensor::from(vec![3_u8; 8]), &device, options()).unwrap();
        assert!(!poll(&mut behind));
        drop(before);
        behind
    });
    late.release();
    assert!(in_time(move || stuck.wait()).is_err());
    assert_eq!(bytes_of(&behind.wait().unwrap()), [3; 8]);
    no_violations(&late);
}

#[test]
fn a_stall_that_ends_by_itself_delays_only_those_who_wait() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let begin = Instant::now();
    late.stall_for(Duration::from_millis(200));
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap();
    let pending = !poll(&mut handle);
    assert!(pending || begin.elapsed() >= Duration::from_millis(200));
    let done = handle.wait().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert_eq!(bytes_of(&done), [1; 8]);
}

/// catches: 30-one-team-for-all
#[test]
fn a_device_that_never_answers_holds_up_no_other() {
    let (stuck, stuck_device) = late();
    let (late, device) = late();
    const BYTES: usize = 65 << 10;
    let options = || options().background(BackgroundWork::Always);
    // Results in ordinary memory: each copy waits on a worker for the device, more of them than there may be workers.
    stuck_device.set_result_budget(64 << 10).unwrap();
    let resident = on(&stuck_device, &[1; BYTES]);
    stuck.stall();
    stuck.clear_calls();
    let waiting: Vec<_> =
        (0..20).map(|_| start_copy(resident.clone(), &Device::host(), options()).unwrap()).collect();
    eventually("some wait", || stuck.calls().iter().filter(|record| record.call == Call::Wait).count() >= 2);

    let there = start_copy(Tensor::from(vec![2_u8; 64]), &device, options()).unwrap();
    // Who waits without a limit would carry it out himself.
    let TimedWait::Done(there) = in_time(move || there.wait_timeout(LONG)).unwrap() else {
        panic!("it is held up")
    };
    assert_eq!(bytes_of(&there), [2; 64]);
    stuck.release();
    for copy in waiting {
        assert_eq!(copy.wait().unwrap().to_bytes().unwrap(), [1; BYTES]);
    }
    no_violations(&stuck);
    no_violations(&late);
}
