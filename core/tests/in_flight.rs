//! Memory in flight is owned until the device is done with it, whatever happens to handles, and not a moment longer.
//!
//! Miri runs these tests: they are few, and their tensors are of a few bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::mem;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use support::{Drops, Kernel, bytes_of, eventually, late, no_violations, on, two};
use transship_core::backend::StreamPriority;
use transship_core::{
    BackgroundWork, CopyOptions, CopyPolicy, DType, Device, Tensor, TimedWait, Value, start_copy,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// Copies from pinned memory without staging.
fn unstaged() -> CopyOptions {
    options().packing(false)
}

fn pinned(device: &Device, bytes: &[u8]) -> Tensor {
    let mut tensor = Tensor::empty_pinned(&[bytes.len()], DType::U8, device).unwrap();
    tensor.as_mut_bytes().unwrap().copy_from_slice(bytes);
    tensor
}

/// catches: 01-entry-popped-after-submit
#[test]
fn a_dropped_handle_leaves_what_is_in_flight_alone() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    for byte in 0..3 {
        drop(start_copy(Tensor::from(vec![byte; 8]), &device, options()).unwrap());
    }
    late.release();
    device.synchronize().unwrap();
    no_violations(&late);
    eventually("all memory of the device is given back", || device.counters().device_bytes == 0);
    assert_eq!(device.staging_usage().in_use, 0);
}

/// catches: 02-settled-one-too-early
#[test]
fn a_staging_block_is_not_written_again_before_its_copy_has_run() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    late.clear_calls();
    // More copies than idle blocks: the last ones are up to a worker, which needs new ones.
    let copies: Vec<_> =
        (0_u8..6).map(|byte| start_copy(Tensor::from(vec![byte; 8]), &device, options()).unwrap()).collect();
    let submitted = || late.calls().iter().filter(|record| record.call == Call::Submit).count();
    eventually("all are submitted", || submitted() == 6);
    late.release();
    for (byte, copy) in (0..).zip(copies) {
        assert_eq!(bytes_of(&copy.wait().unwrap()), [byte; 8]);
    }
    no_violations(&late);
}

#[test]
fn a_forgotten_handle_corrupts_nothing() {
    let (late, device) = late();
    late.stall();
    mem::forget(start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap());
    mem::forget(start_copy(pinned(&device, &[2; 8]), &device, unstaged()).unwrap());
    late.release();
    assert_eq!(bytes_of(&on(&device, &[3; 8])), [3; 8]);
    device.drain().unwrap();
    no_violations(&late);
}

#[test]
fn a_source_that_the_device_reads_lives_until_the_copy_has_run() {
    let (late, device) = late();
    let source = pinned(&device, &[7; 8]);
    let held = device.result_usage().in_use;
    late.stall();
    let copy = start_copy(source, &device, unstaged()).unwrap();
    assert_eq!(copy.report().pinned_staging_bytes + copy.report().pageable_staging_bytes, 0, "staged");
    drop(copy);
    assert_eq!(device.result_usage().in_use, held, "the source is in flight");
    late.release();
    eventually("the source is let go of", || device.result_usage().in_use == 0);
    no_violations(&late);
}

#[test]
fn sources_are_let_go_of_before_wait_returns() {
    for when in [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never] {
        let (late, device) = late();
        let drops = Drops::default();
        let tree = Value::list([drops.tensor(vec![1; 4]).into(), drops.tensor(vec![2; 4]).into()]);
        let done = start_copy(tree, &device, options().background(when)).unwrap().wait().unwrap();
        assert_eq!(drops.count(), 2, "{when:?}");

        let source = pinned(&device, &[3; 8]);
        drop(start_copy(source, &device, unstaged().background(when)).unwrap().wait().unwrap());
        assert_eq!(device.result_usage().in_use, 0, "{when:?}");

        let bytes = done.index(1).and_then(Value::as_tensor).map(bytes_of);
        assert_eq!(bytes.unwrap(), [2; 4]);
        no_violations(&late);
    }
}

#[test]
fn copies_between_devices_keep_both_ends() {
    for peers in [true, false] {
        let (late, one, other) = two(LateConfig { peers, ..LateConfig::new("late") });
        let source = on(&one, &[5; 8]);
        late.stall();
        let kept = start_copy(source.clone(), &other, options()).unwrap();
        drop(start_copy(source, &other, options()).unwrap());
        late.release();
        assert_eq!(bytes_of(&kept.wait().unwrap()), [5; 8], "peers: {peers}");
        one.drain().unwrap();
        other.drain().unwrap();
        no_violations(&late);
    }
}

#[test]
fn the_way_down_keeps_source_and_result() {
    for pinned in [true, false] {
        let (late, device) = late();
        let source = on(&device, &[6; 8]);
        let down = options().pinned_staging(pinned);
        // On the device only the last hold of the source is in flight.
        late.stall();
        let dropped = start_copy(source.clone(), &Device::host(), down.clone()).unwrap();
        let kept = start_copy(source, &Device::host(), down).unwrap();
        drop(dropped);
        late.release();
        assert_eq!(kept.wait().unwrap().to_bytes().unwrap(), [6; 8]);
        eventually("the source is given back", || {
            device.drain().unwrap();
            device.counters().device_bytes == 0
        });
        no_violations(&late);
    }
}

/// catches: 04-wait-on-does-not-wait
#[test]
fn a_result_is_filled_on_the_stream_that_waits_for_it() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let copy = start_copy(Tensor::from(vec![9_u8; 8]), &device, options()).unwrap();
    let tensor = copy.wait_on(&stream).unwrap();
    assert_eq!(Kernel::launch(&tensor, &stream).result(), [9; 8]);
    no_violations(&late);
}

/// catches: 05-result-not-recorded
#[test]
fn a_result_outlives_the_work_of_the_stream_that_it_was_handed_to() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    let copy = start_copy(Tensor::from(vec![9_u8; 8]), &device, options()).unwrap();
    let tensor = copy.wait_on(&stream).unwrap();
    let kernel = Kernel::launch(&tensor, &stream);
    drop(tensor);
    device.drain().unwrap();
    late.release();
    assert_eq!(kernel.result(), [9; 8]);
    no_violations(&late);
}

/// catches: 20-result-forgotten-once-it-is-in-place
#[test]
fn so_does_a_result_whose_handle_was_asked_before() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    device.prepare(64).unwrap();
    late.stall();
    let copy = start_copy(Tensor::from(vec![9_u8; 8]), &device, options()).unwrap();
    let TimedWait::Pending(copy) = copy.wait_timeout(Duration::ZERO).unwrap() else {
        panic!("the device stands still");
    };
    let tensor = copy.wait_on(&stream).unwrap();
    let kernel = Kernel::launch(&tensor, &stream);
    late.release();
    late.stall_stream(&**stream.backend_stream());
    drop(tensor);
    device.drain().unwrap();
    late.release();
    assert_eq!(kernel.result(), [9; 8]);
    no_violations(&late);
}

/// catches: 22-resident-not-recorded
#[test]
fn so_does_a_tensor_that_stayed_where_it_was() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let resident = on(&device, &[5; 8]);
    let tensor = start_copy(resident, &device, options()).unwrap().wait_on(&stream).unwrap();
    late.stall();
    let kernel = Kernel::launch(&tensor, &stream);
    drop(tensor);
    late.release();
    assert_eq!(kernel.result(), [5; 8]);
    no_violations(&late);
}

#[test]
fn a_tensor_of_zeros_may_go_before_it_is_cleared() {
    let (late, device) = late();
    late.stall();
    drop(Tensor::zeros(&[8], DType::U8, &device).unwrap());
    drop(Tensor::empty(&[8], DType::U8, &device).unwrap());
    let zeros = Tensor::zeros(&[8], DType::U8, &device).unwrap();
    late.release();
    assert_eq!(bytes_of(&zeros), [0; 8]);
    no_violations(&late);
}

#[test]
fn a_copy_may_outlive_its_device() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    let copy =
        start_copy(Tensor::from(vec![4_u8; 8]), &device, options().policy(CopyPolicy::Always)).unwrap();
    drop(device);
    late.release();
    assert_eq!(bytes_of(&copy.wait().unwrap()), [4; 8]);
    no_violations(&late);
}
