//! Results are used in stream order, without a wait on the host, although everything runs as late as it may.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use late_backend::LateConfig;
use support::{Drops, Kernel, PATIENCE, bytes_of, eventually, late, no_violations, on, two, with};
use transship_core::backend::{StreamPriority, Ticket};
use transship_core::{
    BackgroundWork, CopyOptions, CopyPolicy, DType, Device, Error, Stream, Tensor, TimedWait, start_copy,
};

const SEEDS: std::ops::Range<u64> = 0..12;

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn seeded(seed: u64) -> LateConfig {
    LateConfig { seed: Some(seed), ..LateConfig::new("late") }
}

fn batch() -> Vec<Tensor> {
    (0_u8..5).map(|byte| Tensor::from(vec![byte; 40])).collect()
}

#[test]
fn a_result_is_used_on_the_stream_that_it_was_handed_to() {
    for seed in SEEDS {
        for pack in [true, false] {
            let (late, device) = with(seeded(seed));
            device.prepare(1024).unwrap();
            let stream = device.create_stream(StreamPriority::Normal).unwrap();
            let other = device.create_stream(StreamPriority::High).unwrap();
            late.stall();
            let copy = start_copy(batch(), &device, options().packing(pack)).unwrap();
            let done = copy.wait_on(&stream).unwrap();
            assert!(done.iter().all(|tensor| !tensor.is_ready().unwrap()));
            assert!(matches!(done[0].to_bytes(), Err(Error::NotReady)));
            let mut kernels: Vec<_> = done.iter().map(|tensor| Kernel::launch(tensor, &stream)).collect();
            // Another stream that the tensors are shown to later.
            for tensor in &done {
                tensor.record_stream(&other).unwrap();
                kernels.push(Kernel::launch(tensor, &other));
            }
            drop(done);
            late.release();
            for (index, kernel) in (0..).zip(kernels) {
                assert_eq!(kernel.result(), [index % 5; 40], "seed {seed}");
            }
            no_violations(&late);
        }
    }
}

#[test]
fn copies_run_in_order_on_the_stream_of_the_caller() {
    for seed in SEEDS {
        let (late, device) = with(seeded(seed));
        device.prepare(1024).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        late.stall();
        let named = start_copy(Tensor::from(vec![1_u8; 8]), &device, options().stream(&stream)).unwrap();
        let named = named.wait_on(&stream).unwrap();
        let scope = stream.enter();
        let entered = start_copy(Tensor::from(vec![2_u8; 8]), &device, options()).unwrap();
        let entered = entered.wait_on(&stream).unwrap();
        drop(scope);
        let kernels = [Kernel::launch(&named, &stream), Kernel::launch(&entered, &stream)];
        drop((named, entered));
        late.release();
        assert_eq!(kernels.map(Kernel::result), [vec![1; 8], vec![2; 8]], "seed {seed}");
        no_violations(&late);
    }
}

#[test]
fn a_result_that_is_still_being_filled_is_copied_in_order() {
    for seed in SEEDS {
        for peers in [true, false] {
            let (late, device, other) = two(LateConfig { peers, ..seeded(seed) });
            device.prepare(1024).unwrap();
            let stream = device.create_stream(StreamPriority::Normal).unwrap();
            late.stall();
            let first = start_copy(Tensor::from(vec![7_u8; 8]), &device, options()).unwrap();
            let tensor = first.wait_on(&stream).unwrap();
            let down = start_copy(tensor.clone(), &Device::host(), options()).unwrap();
            let over = start_copy(tensor.clone(), &other, options()).unwrap();
            let again = start_copy(tensor, &device, options().policy(CopyPolicy::Always)).unwrap();
            assert!(!down.is_ready().unwrap() && !over.is_ready().unwrap() && !again.is_ready().unwrap());
            late.release();
            assert_eq!(down.wait().unwrap().to_bytes().unwrap(), [7; 8], "seed {seed}");
            assert_eq!(bytes_of(&over.wait().unwrap()), [7; 8], "seed {seed}");
            assert_eq!(bytes_of(&again.wait().unwrap()), [7; 8], "seed {seed}");
            no_violations(&late);
        }
    }
}

/// catches: 18-pending-source-not-waited-for
#[test]
fn a_tensor_that_is_still_being_cleared_is_copied_in_order() {
    for seed in SEEDS {
        let (late, device, other) = two(seeded(seed));
        device.prepare(1024).unwrap();
        late.stall();
        let tensor = Tensor::zeros(&[8], DType::U8, &device).unwrap();
        let down = start_copy(tensor.clone(), &Device::host(), options()).unwrap();
        let over = start_copy(tensor, &other, options()).unwrap();
        late.release();
        assert_eq!(down.wait().unwrap().to_bytes().unwrap(), [0; 8], "seed {seed}");
        assert_eq!(bytes_of(&over.wait().unwrap()), [0; 8], "seed {seed}");
        no_violations(&late);
    }
}

/// Neighbours of the same device that nobody waits for do not hide it.
#[test]
fn one_tensor_of_many_that_is_still_being_cleared_is_copied_in_order() {
    for seed in SEEDS {
        let (late, device) = with(seeded(seed));
        device.prepare(1024).unwrap();
        let filled = [on(&device, &[1; 8]), on(&device, &[2; 8])];
        late.stall();
        let cleared = Tensor::zeros(&[8], DType::U8, &device).unwrap();
        let [first, last] = filled;
        let down = start_copy([first, cleared, last], &Device::host(), options()).unwrap();
        late.release();
        let bytes = down.wait().unwrap().map(|tensor| tensor.to_bytes().unwrap());
        assert_eq!(bytes, [[1; 8], [0; 8], [2; 8]], "seed {seed}");
        no_violations(&late);
    }
}

#[test]
fn a_result_goes_from_driver_to_driver_over_the_host() {
    let (here, one) = late();
    let (there, other) = late();
    let stream = one.create_stream(StreamPriority::Normal).unwrap();
    here.stall();
    let tensor = start_copy(Tensor::from(vec![7_u8; 8]), &one, options()).unwrap().wait_on(&stream).unwrap();
    let foreign = other.create_stream(StreamPriority::Normal).unwrap();
    let refused = tensor.record_stream(&foreign).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let over = start_copy(tensor, &other, options()).unwrap();
    here.release();
    assert_eq!(bytes_of(&over.wait().unwrap()), [7; 8]);
    no_violations(&here);
    no_violations(&there);
}

#[test]
fn memory_lives_until_the_streams_that_were_recorded_have_passed() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let held = device.counters().device_bytes;
    late.stall_stream(&**stream.backend_stream());

    let recorded = on(&device, &[1; 8]);
    recorded.record_stream(&stream).unwrap();
    let kernel = Kernel::launch(&recorded, &stream);
    drop(recorded);
    assert_eq!(device.counters().device_bytes - held, 8);

    let used = on(&device, &[2; 8]);
    let use_of_it = Kernel::launch(&used, &stream);
    used.record_use(ticket(&stream)).unwrap();
    drop(used);
    assert_eq!(device.counters().device_bytes - held, 16);

    late.release();
    assert_eq!((kernel.result(), use_of_it.result()), (vec![1; 8], vec![2; 8]));
    stream.synchronize().unwrap();
    eventually("the memory is given back", || {
        stream.is_idle().unwrap();
        device.counters().device_bytes == held
    });
    no_violations(&late);
}

/// Behind what was submitted to `stream` so far.
fn ticket(stream: &Stream) -> Ticket {
    let stream = stream.backend_stream().clone();
    Ticket { position: stream.record().unwrap(), stream }
}

/// catches: 21-older-use-replaces-a-newer-one
#[test]
fn the_newest_use_counts_in_whatever_order_they_are_recorded() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let older = ticket(&stream);
    assert!(older.stream.wait(older.position, Some(PATIENCE)).unwrap());
    late.stall();
    let newer = ticket(&stream);
    let drops = Drops::default();
    let tensor = drops.tensor(vec![1; 8]);
    tensor.record_use(newer).unwrap();
    tensor.record_use(older).unwrap();
    drop(tensor);
    assert_eq!(drops.count(), 0, "a stream still uses it");
    late.release();
    eventually("the memory is let go of", || drops.count() == 1);
}

/// catches: 24-uses-of-a-source-not-waited-for, 84-uses-among-like-tensors-not-seen
#[test]
fn a_copy_comes_behind_the_work_of_streams_that_its_source_was_handed_to() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    // The first is of the same device, and nobody uses it.
    let (first, tensor) = (on(&device, &[4; 8]), on(&device, &[5; 8]));
    late.stall_stream(&**stream.backend_stream());
    // Stands for a kernel that writes the tensor in place.
    let work = stream.record().unwrap();
    tensor.record_stream(&stream).unwrap();
    let copy = start_copy([first, tensor], &Device::host(), options()).unwrap();
    eventually("it is submitted", || copy.report().submitted_after.is_some());
    // More looks than there are operations: whatever may run has run then.
    assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it has run before the work");
    assert!(!work.is_reached().unwrap());
    late.release();
    assert_eq!(copy.wait().unwrap().map(|tensor| tensor.to_bytes().unwrap()), [[4; 8], [5; 8]]);
    assert!(work.is_reached().unwrap());
    no_violations(&late);
}

/// Deliberate bugs: the stream waits for nothing; it waits for what fills the tensor alone.
#[test]
fn work_of_a_stream_comes_behind_that_of_others_that_use_the_tensor() {
    let (late, device) = late();
    let [writes, reads] = [0, 1].map(|_| device.create_stream(StreamPriority::Normal).unwrap());
    let tensor = on(&device, &[5; 8]);
    tensor.record_stream(&reads).unwrap();
    // It does not wait for itself.
    late.stall_stream(&**writes.backend_stream());
    tensor.wait_on_uses(&reads).unwrap();
    reads.synchronize().unwrap();
    // Stands for a kernel that writes the tensor in place.
    let work = writes.record().unwrap();
    tensor.record_stream(&writes).unwrap();
    tensor.wait_on_uses(&reads).unwrap();
    let kernel = Kernel::launch(&tensor, &reads);
    let read = reads.record().unwrap();
    assert!((0..32).all(|_| !read.is_reached().unwrap()), "it has run before the work");
    assert!(!work.is_reached().unwrap());
    late.release();
    assert_eq!(kernel.result(), [5; 8]);
    assert!(work.is_reached().unwrap());
    no_violations(&late);
}

/// catches: 19-pinned-memory-released-in-use
#[test]
fn pinned_memory_that_a_stream_uses_is_not_given_out_again() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    let pinned = Tensor::empty_pinned(&[8], DType::U8, &device).unwrap();
    pinned.record_stream(&stream).unwrap();
    let held = device.result_usage().in_use;
    stream.record().unwrap();
    drop(pinned);
    assert_eq!(device.result_usage().in_use, held);
    late.release();
    eventually("the block comes back", || device.result_usage().in_use == 0);
    no_violations(&late);
}

/// The device cannot wait for a stream of another driver: a worker does, and where there may be none, the caller hears of it.
#[test]
fn a_source_in_use_on_a_stream_of_another_driver_is_waited_for() {
    let (_, device) = late();
    let source = on(&device, &[5; 40]);
    let (other, others) = late();
    let stream = others.create_stream(StreamPriority::Normal).unwrap();
    other.stall();
    let working = start_copy(batch(), &others, options().stream(&stream)).unwrap();
    source.record_stream(&stream).unwrap();

    let never = options().background(BackgroundWork::Never);
    let refused = start_copy(source.clone(), &Device::host(), never).unwrap_err();
    let why = "a source is still being filled";
    assert!(matches!(refused.error(), Error::Busy { reason, .. } if *reason == why), "{refused}");
    assert!(refused.into_value().is_some());

    let waiting = start_copy(source, &Device::host(), options()).unwrap();
    let TimedWait::Pending(waiting) = waiting.wait_timeout(Duration::from_millis(20)).unwrap() else {
        panic!("the stream has not come there");
    };
    other.release();
    assert_eq!(waiting.wait().unwrap().to_bytes().unwrap(), [5; 40]);
    drop(working.wait().unwrap());
    no_violations(&other);
}
