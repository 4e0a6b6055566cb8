//! When memory is shown and when it goes: not while the host writes it, behind captures of streams, and without regard to how many
//! streams it was handed to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use late_backend::LateConfig;
use support::{Kernel, bytes_of, eventually, late, no_violations, on, with};
use transship_core::backend::StreamPriority;
use transship_core::{
    BackgroundWork, CopyOptions, Device, Error, Stop, Stream, Tensor, TensorTree, Visitor, runtime_stats,
    start_copy,
};

const REQUESTS: usize = 2000;
/// In which whoever looks after memory has looked.
const LONG_NAP: Duration = Duration::from_millis(3);

/// Leaks are counted for the whole process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stream_of(device: &Device) -> Stream {
    device.create_stream(StreamPriority::Normal).unwrap()
}

/// Bytes of the device that are not given back, when it has done all there is to do.
fn held(device: &Device) -> u64 {
    device.synchronize().unwrap();
    device.counters().device_bytes
}

/// A tree that asks for the buffer of its tensor whenever that is visited.
struct Curious {
    tensor: Tensor,
    found: Arc<Mutex<Vec<Result<(), Error>>>>,
}

impl TensorTree for Curious {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        visitor.tensor(&mut self.tensor)?;
        self.found.lock().unwrap().push(self.tensor.buffer().map(drop));
        Ok(())
    }
}

/// Mutant: whoever waits puts the structure together while workers write what lies in it.
#[test]
fn a_buffer_is_shown_once_the_host_writes_it_no_more() {
    let (late, device) = with(LateConfig { largest_open: 1 << 20, ..LateConfig::new("late") });
    let found = Arc::default();
    // The worker allocates the buffer, writes it, and is held up before it is closed.
    late.hold(1);
    let curious = Curious { tensor: Tensor::from(vec![7_u8; 40]), found: Arc::clone(&found) };
    let options = CopyOptions::default().background(BackgroundWork::Always);
    let copy = start_copy(curious, &device, options).unwrap();
    eventually("the worker is held up", || late.is_holding());
    let waits = thread::spawn(move || copy.wait().unwrap());
    thread::sleep(Duration::from_millis(20));
    assert_eq!(found.lock().unwrap().len(), 1, "it is visited while it is written");
    late.let_go();
    let copied = waits.join().unwrap();
    let found = found.lock().unwrap();
    let [Err(Error::Taken), Ok(())] = &found[..] else { panic!("{found:?}") };
    assert!(copied.tensor.buffer().is_ok());
    assert_eq!(bytes_of(&copied.tensor), [7; 40]);
    no_violations(&late);
}

#[test]
fn the_buffer_of_a_copy_that_failed_is_not_shown() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    late.stall();
    let handle = start_copy(Tensor::from(vec![1_u8; 40]), &device, CopyOptions::default()).unwrap();
    let tensor = handle.wait_on(&stream_of(&device)).unwrap();
    assert!(tensor.buffer().is_ok(), "all of it is submitted");
    late.break_device();
    assert!(tensor.is_ready().is_err());
    assert!(matches!(tensor.buffer(), Err(Error::CopyFailed(_))));
}

/// Mutant: a stream that is captured counts as broken.
#[test]
fn memory_that_goes_during_a_capture_comes_back_behind_it() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    let both = [stream_of(&device), stream_of(&device)];
    let before = (runtime_stats().leaks, device.counters().device_bytes);
    for round in 0..50_u8 {
        let streams = &both[usize::from(round % 2)..];
        let tensor = on(&device, &[round; 48]);
        streams.iter().for_each(|stream| tensor.record_stream(stream).unwrap());
        // Work from before the capture still reads it.
        late.stall();
        let kernels: Vec<_> = streams.iter().map(|stream| Kernel::launch(&tensor, stream)).collect();
        streams.iter().for_each(|stream| late.capture(&**stream.backend_stream(), true));
        drop(tensor);
        // One after the other: it waits for both.
        for stream in streams {
            late.capture(&**stream.backend_stream(), false);
            thread::sleep(LONG_NAP);
        }
        assert_eq!(device.counters().device_bytes - before.1, 48, "a kernel may still read it");
        late.release();
        for kernel in kernels {
            assert_eq!(kernel.result(), [round; 48]);
        }
        eventually("the memory comes back", || held(&device) == before.1);
    }
    assert_eq!(runtime_stats().leaks, before.0);
    no_violations(&late);
}

/// Whoever destroys the stream behind that has nothing of it used any more. Mutant: it is left to the reactor.
#[test]
fn whoever_synchronizes_a_stream_behind_its_capture_has_the_memory_back() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    let stream = stream_of(&device);
    let before = (runtime_stats().leaks, device.counters().device_bytes);
    for _ in 0..50 {
        let tensors = [on(&device, &[1; 48]), on(&device, &[2; 48])];
        tensors.iter().for_each(|tensor| tensor.record_stream(&stream).unwrap());
        late.capture(&**stream.backend_stream(), true);
        drop(tensors);
        thread::sleep(LONG_NAP);
        assert!(matches!(stream.synchronize(), Err(Error::StreamCaptured { .. })));
        assert_eq!(device.counters().device_bytes - before.1, 96);
        late.capture(&**stream.backend_stream(), false);
        stream.synchronize().unwrap();
        // As good as destroyed: nothing can be recorded on it.
        late.capture(&**stream.backend_stream(), true);
        eventually("the memory comes back", || held(&device) == before.1);
        late.capture(&**stream.backend_stream(), false);
    }
    assert_eq!(runtime_stats().leaks, before.0);
    no_violations(&late);
}

#[test]
fn memory_that_waits_for_a_capture_on_a_device_that_breaks_is_leaked() {
    let _turn = one_at_a_time();
    let (late, device) = late();
    let stream = stream_of(&device);
    let before = runtime_stats();
    let tensor = on(&device, &[1; 48]);
    tensor.record_stream(&stream).unwrap();
    late.capture(&**stream.backend_stream(), true);
    drop(tensor);
    late.break_device();
    eventually("it is counted", || runtime_stats().leaks == before.leaks + 1);
    assert_eq!(runtime_stats().leaked_bytes - before.leaked_bytes, 48);
}

/// Mutants: streams that are gone stay in the list of a memory's uses; a use holds its stream.
#[test]
fn a_stream_for_each_request_goes_with_it_whatever_stays() {
    let (late, device) = late();
    let weights: Vec<_> = (0..3).map(|byte| on(&device, &[byte; 48])).collect();
    let before = late.streams_held();
    let mut most = 0;
    for request in 0..REQUESTS {
        let stream = stream_of(&device);
        let tree = (weights.clone(), Tensor::from(vec![request as u8; 8]));
        let copied = start_copy(tree, &device, CopyOptions::default()).unwrap().wait_on(&stream).unwrap();
        stream.synchronize().unwrap();
        drop((copied, stream));
        most = most.max(late.streams_held() - before);
    }
    assert!(most <= 16, "{most} streams at the same time");
    eventually("all streams are gone, and the weights are not", || late.streams_held() == before);
    assert_eq!(bytes_of(&weights[2]), [2; 48]);
    no_violations(&late);
}

/// The stream of a backend that no `Stream` is made of.
#[test]
fn streams_of_backends_are_kept_no_longer_than_they_work() {
    let (late, device) = late();
    let weights = on(&device, &[1; 48]);
    let before = late.streams_held();
    let mut most = 0;
    for _ in 0..REQUESTS {
        let stream = device.backend().create_stream(StreamPriority::Normal).unwrap();
        weights.record_backend_stream(&stream).unwrap();
        drop(stream);
        most = most.max(late.streams_held() - before);
    }
    assert!(most <= 16, "{most} streams at the same time");
    no_violations(&late);
}

/// Mutant: a stream that is held is forgotten as soon as it is idle.
#[test]
fn a_stream_that_is_held_is_waited_for_among_many_that_went() {
    let (late, device) = late();
    let weights = on(&device, &[7; 48]);
    let whole = device.counters().device_bytes;
    let stream = stream_of(&device);
    weights.record_stream(&stream).unwrap();
    for _ in 0..100 {
        weights.record_stream(&stream_of(&device)).unwrap();
    }
    late.stall_stream(&**stream.backend_stream());
    let kernel = Kernel::launch(&weights, &stream);
    drop((weights, stream));
    thread::sleep(LONG_NAP);
    assert_eq!(device.counters().device_bytes, whole, "the kernel has not read it");
    late.release();
    assert_eq!(kernel.result(), [7; 48]);
    eventually("the memory goes", || held(&device) < whole);
    no_violations(&late);
}

/// Mutants: a stream that nobody holds is forgotten while it still works; the reactor does not look for its end.
#[test]
fn a_stream_that_went_is_waited_for_as_long_as_it_works() {
    let (late, device) = late();
    let (weights, kept) = (on(&device, &[7; 48]), on(&device, &[8; 48]));
    let (whole, before) = (device.counters().device_bytes, late.streams_held());
    let stream = stream_of(&device);
    [&weights, &kept].into_iter().for_each(|tensor| tensor.record_stream(&stream).unwrap());
    late.stall_stream(&**stream.backend_stream());
    drop(stream.record().unwrap());
    drop(stream);
    for _ in 0..100 {
        weights.record_stream(&stream_of(&device)).unwrap();
    }
    drop(weights);
    thread::sleep(LONG_NAP);
    assert_eq!(device.counters().device_bytes, whole, "a stream still works");
    assert_eq!(late.streams_held(), before + 1);
    late.release();
    eventually("the stream goes, and what was handed to it does not", || late.streams_held() == before);
    assert_eq!(bytes_of(&kept), [8; 48]);
    eventually("the memory goes", || held(&device) < whole);
    no_violations(&late);
}
