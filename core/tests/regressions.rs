//! What went wrong once, where the corner is too odd for the tests of one subject.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use hooked::Hooked;
use late_backend::{Call, LateConfig, LateHandle};
use support::{PATIENCE, bytes_of, eventually, given_time, in_time, late, no_violations, on, two, with};
use transship_core::backend::{MemoryKind, RawMemory, StreamPriority};
use transship_core::{
    Alignment, BackgroundWork, CopyOptions, CopyPolicy, DType, Device, Error, Stream, Tensor, TimedWait,
    start_copy,
};

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn stream_of(device: &Device) -> Stream {
    device.create_stream(StreamPriority::Normal).unwrap()
}

/// Something that happens once, on any thread.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Runs code when it goes.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A tensor over memory of the host that the program lends; `on_drop` runs when it is given back.
fn lent_by_host(bytes: &[u8], on_drop: impl Fn() + Send + Sync + 'static) -> Tensor {
    let (shape, bytes) = ([bytes.len()], bytes.to_vec());
    let address = bytes.as_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, bytes.len(), MemoryKind::Pageable);
    let owner = Box::new((OnDrop(on_drop), bytes));
    // SAFETY: the owner holds the bytes, which nobody writes.
    unsafe { Tensor::from_raw(memory, owner, &shape, DType::U8, &Device::host()) }.unwrap()
}

/// The same in memory of a device.
fn lent_by_device(device: &Device, on_drop: impl Fn() + Send + Sync + 'static) -> Tensor {
    let stream = stream_of(device);
    let buffer = device.backend().allocate(64, &**stream.backend_stream()).unwrap();
    stream.synchronize().unwrap();
    let memory = RawMemory::new(buffer.address().unwrap(), 64, MemoryKind::Device);
    let owner = Box::new((OnDrop(on_drop), buffer));
    // SAFETY: the owner holds the buffer, whose allocation is done and which nobody writes.
    unsafe { Tensor::from_raw(memory, owner, &[64], DType::U8, device) }.unwrap()
}

fn hooked() -> (LateHandle, Arc<Hooked>, Device) {
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let backend = Hooked::new(late.backend(0));
    let device = Device::from_backend(backend.clone()).unwrap();
    (late, backend, device)
}

#[test]
fn memory_that_was_lent_is_given_back_when_its_use_is_over() {
    let (late, device) = late();
    let stream = stream_of(&device);
    late.stall();
    let given_back = Flag::default();
    let tensor = lent_by_host(&[7; 8], {
        let given_back = given_back.clone();
        move || given_back.raise()
    });
    tensor.record_stream(&stream).unwrap();
    drop(tensor);
    assert!(!given_back.is_raised(), "the stream still uses it");
    late.release();
    eventually("it is given back", || given_back.is_raised());
}

/// What it has lent is dropped by another thread, which may wait for who synchronises.
#[test]
fn who_synchronises_a_stream_waits_for_no_owner() {
    let (_late, device) = late();
    let stream = stream_of(&device);
    waits_for_no_owner(&device, options().stream(&stream), || stream.synchronize().unwrap());
}

#[test]
fn who_synchronises_a_device_waits_for_no_owner() {
    let (_late, device) = late();
    waits_for_no_owner(&device, options(), || device.synchronize().unwrap());
}

/// Calls `synchronize` while another thread drops what a copy has read.
fn waits_for_no_owner(device: &Device, options: CopyOptions, synchronize: impl FnOnce()) {
    let [begun, go_on, given_back] = [(); 3].map(|()| Flag::default());
    let tensor = lent_by_device(device, {
        let (begun, go_on, given_back) = (begun.clone(), go_on.clone(), given_back.clone());
        move || {
            begun.raise();
            eventually("the owner may go on", || go_on.is_raised());
            given_back.raise();
        }
    });
    device.prepare(64).unwrap();
    drop(start_copy(tensor, &Device::host(), options).unwrap());
    eventually("another thread drops it", || begun.is_raised());
    synchronize();
    assert!(!given_back.is_raised(), "it waits");
    go_on.raise();
    eventually("it is given back", || given_back.is_raised());
}

#[test]
fn an_owner_that_panics_does_not_take_others_with_it() {
    let (late, device) = late();
    let stream = stream_of(&device);
    late.stall();
    let given_back = Flag::default();
    let tensor = lent_by_host(&[7; 8], {
        let given_back = given_back.clone();
        move || given_back.raise()
    });
    tensor.record_stream(&stream).unwrap();
    drop(tensor);
    let other = lent_by_host(&[1; 8], || panic!("the owner panics"));
    assert!(catch_unwind(AssertUnwindSafe(move || drop(other))).is_err());
    assert!(!given_back.is_raised(), "the stream still uses it");
    late.release();
    eventually("it is given back", || given_back.is_raised());
}

/// The copy ends, and somebody else looks at the stream, before the copy knows its own position.
#[test]
fn a_copy_that_ends_while_it_is_submitted_lets_go_of_its_source() {
    let (late, backend, device) = hooked();
    let stream = stream_of(&device);
    let options = || options().policy(CopyPolicy::Always).stream(&stream);
    let [in_drop, go_on, second_dropped] = [(); 3].map(|()| Flag::default());
    let first = lent_by_device(&device, {
        let (in_drop, go_on) = (in_drop.clone(), go_on.clone());
        move || {
            in_drop.raise();
            eventually("the owner of the first source may go on", || go_on.is_raised());
        }
    });
    let second = lent_by_device(&device, {
        let dropped = second_dropped.clone();
        move || dropped.raise()
    });

    late.stall();
    let copy = start_copy(first, &device, options()).unwrap();
    let TimedWait::Pending(copy) = copy.wait_timeout(Duration::ZERO).unwrap() else {
        panic!("the device stands still");
    };
    late.release();
    let submitted = Arc::new(OnceLock::new());
    backend.after_next_submit({
        let submitted = submitted.clone();
        move |position| {
            submitted.set(position).unwrap();
            eventually("another thread lets go of the first source", || in_drop.is_raised());
        }
    });
    let looking = thread::spawn({
        let stream = stream.clone();
        move || {
            eventually("the second copy is submitted", || submitted.get().is_some());
            let position = *submitted.get().unwrap();
            assert!(stream.backend_stream().wait(position, Some(PATIENCE)).unwrap());
            copy.is_ready()
        }
    });
    let copy = start_copy(second, &device, options()).unwrap();
    go_on.raise();
    assert!(looking.join().unwrap().unwrap());
    let _result = in_time(move || copy.wait()).unwrap();
    assert!(second_dropped.is_raised(), "the copy is done and its source is still held");
    no_violations(&late);
}

#[test]
fn shutdown_waits_for_copies_that_workers_submit() {
    let (late, backend, device) = hooked();
    device.prepare(64).unwrap();
    let [submitting, go_on] = [(); 2].map(|()| Flag::default());
    backend.after_next_submit({
        let (submitting, go_on) = (submitting.clone(), go_on.clone());
        move |_| {
            submitting.raise();
            eventually("the worker may go on", || go_on.is_raised());
        }
    });
    let options = options().background(BackgroundWork::Always);
    let copy = start_copy(Tensor::from(vec![1_u8; 64]), &device, options).unwrap();
    eventually("a worker submits", || submitting.is_raised());

    let (done, is_done) = mpsc::channel();
    thread::spawn({
        let device = device.clone();
        move || done.send(device.drain()).unwrap()
    });
    let early = is_done.recv_timeout(Duration::from_millis(100));
    go_on.raise();
    assert!(early.is_err(), "drain has returned while a copy was being submitted");
    is_done.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(bytes_of(&copy.wait().unwrap()), [1; 64]);
    no_violations(&late);
}

#[test]
fn the_pace_is_that_of_the_whole_copy() {
    let (late, one, other) = two(LateConfig::new("late"));
    let tree = vec![on(&one, &[1; 4096]), on(&other, &[2; 4096])];
    one.prepare(4096).unwrap();
    other.prepare(4096).unwrap();
    late.stall();
    late.clear_calls();
    let copy = start_copy(tree, &Device::host(), options().max_bytes_in_flight(4096)).unwrap();
    let waits = || late.calls().iter().any(|record| record.call == Call::Wait);
    eventually("it waits, or everything is submitted", || waits() || copy.report().submitted_after.is_some());
    assert_eq!(copy.report().copied_bytes, 4096);
    late.release();
    let down = in_time(move || copy.wait()).unwrap();
    assert_eq!([down[0].to_bytes().unwrap(), down[1].to_bytes().unwrap()], [[1; 4096], [2; 4096]]);
    no_violations(&late);
}

#[test]
fn a_tensor_that_stays_needs_no_worker_while_it_is_being_filled() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = stream_of(&device);
    late.stall();
    let filling = start_copy(Tensor::from(vec![1_u8; 64]), &device, options()).unwrap();
    let resident = filling.wait_on(&stream).unwrap();
    let copy = start_copy(vec![resident, Tensor::from(vec![2_u8; 64])], &device, options()).unwrap();
    assert!(!copy.report().background);
    assert!(!copy.is_ready().unwrap(), "a tensor of it is not filled yet");
    late.release();
    let done = in_time(move || copy.wait()).unwrap();
    assert_eq!([bytes_of(&done[0]), bytes_of(&done[1])], [[1; 64], [2; 64]]);
    no_violations(&late);
}

#[test]
fn blocks_whose_copies_are_done_are_taken_again_without_a_worker() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    // More copies than there are blocks, and nobody asks for any of them.
    let copies: Vec<_> = (0..8_u8)
        .map(|byte| {
            let copy = start_copy(Tensor::from(vec![byte; 64]), &device, options()).unwrap();
            device.backend().synchronize().unwrap();
            copy
        })
        .collect();
    assert!(copies.iter().all(|copy| !copy.report().background));
    for (byte, copy) in (0..).zip(copies) {
        assert_eq!(bytes_of(&copy.wait().unwrap()), [byte; 64]);
    }
    no_violations(&late);
}

#[test]
fn scopes_may_end_in_any_order() {
    let (_late, device) = late();
    let (one, other) = (stream_of(&device), stream_of(&device));
    let current = || Stream::current(&device).map(|stream| stream.backend_stream().clone());
    let (scope, inner) = (one.enter(), other.enter());
    drop(scope);
    assert!(Arc::ptr_eq(&current().unwrap(), other.backend_stream()), "the scope that is open counts");
    drop(inner);
    assert!(current().is_none());
}

#[test]
fn memory_is_writable_again_when_its_use_on_a_stream_is_over() {
    let (late, device) = late();
    let stream = stream_of(&device);
    let mut tensor = Tensor::from(vec![1_u8; 4]);
    late.stall();
    stream.record().unwrap();
    tensor.record_stream(&stream).unwrap();
    assert!(matches!(tensor.as_mut_bytes(), Err(Error::NotWritable { .. })));
    late.release();
    stream.synchronize().unwrap();
    eventually("it is writable", || tensor.as_mut_bytes().is_ok());
}

/// A driver may block when its device goes.
#[test]
fn a_device_never_goes_on_the_thread_that_drops_it() {
    const DEVICES: usize = 1000;
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    let threads = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..DEVICES {
        let threads = threads.clone();
        let gone = OnDrop(move || threads.lock().unwrap().push(thread::current().id()));
        drop(Device::from_backend(Hooked::with_owner(late.backend(0), gone)).unwrap());
    }
    eventually("all devices are gone", || threads.lock().unwrap().len() == DEVICES);
    assert!(!threads.lock().unwrap().contains(&thread::current().id()));
}

#[test]
fn a_result_is_ready_while_another_thread_lets_go_of_its_source() {
    let (late, device) = late();
    let (begun, has_begun) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let go_on = Mutex::new(go_on);
    let source = lent_by_device(&device, move || {
        begun.send(()).unwrap();
        let _ = go_on.lock().unwrap().recv_timeout(PATIENCE);
    });
    let stream = stream_of(&device);
    let always = options().policy(CopyPolicy::Always);
    let copy = start_copy(source, &device, always).unwrap().wait_on(&stream).unwrap();
    stream.synchronize().unwrap();
    has_begun.recv_timeout(PATIENCE).unwrap();
    assert!(copy.is_ready().unwrap(), "the stream has passed behind the copy");
    let_go.send(()).unwrap();
    drop(copy);
    device.drain().unwrap();
    no_violations(&late);
}

/// catches: 37-place-of-a-mapped-result-remembered
#[test]
fn a_mapped_result_in_a_block_that_was_used_before_goes_with_its_device() {
    let config = LateConfig { mapped_staging: true, ..LateConfig::new("late") };
    let (late, device) = with(config);
    let there = on(&device, &[4; 64]);
    for _ in 0..8 {
        // SAFETY: the device is broken only when nobody reads the result.
        let options = unsafe { options().mapped_results() };
        let back = start_copy(there.clone(), &Device::host(), options).unwrap().wait().unwrap();
        assert_eq!(back.to_bytes().unwrap(), [4; 64]);
    }
    // SAFETY: as above.
    let options = unsafe { options().mapped_results() };
    let back = start_copy(there, &Device::host(), options).unwrap().wait().unwrap();
    late.break_device();
    assert!(back.to_bytes().is_err(), "its memory went with the device");
    no_violations(&late);
}

/// Set in a child of the test below.
const ENDS: &str = "TRANSSHIP_TEST_ENDS";

/// catches: 36-exit-does-not-wait
#[test]
fn the_process_does_not_end_inside_of_a_driver() {
    if std::env::var_os(ENDS).is_some() {
        let late = LateHandle::new(LateConfig::new("late")).unwrap();
        let slow = OnDrop(|| {
            thread::sleep(Duration::from_millis(100));
            println!("the device is gone");
        });
        drop(Device::from_backend(Hooked::with_owner(late.backend(0), slow)).unwrap());
        std::process::exit(7);
    }
    let test = "the_process_does_not_end_inside_of_a_driver";
    let child = ends_by_itself(test);
    assert_eq!(child.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&child.stdout).contains("the device is gone"));
}

/// A driver may come when threads of ours are there already. It cleans up behind them all the same.
///
/// catches: 685-a-later-driver-cleans-up-first
#[test]
fn a_driver_that_is_loaded_later_does_not_clean_up_before_the_devices_are_gone() {
    unsafe extern "C" {
        fn atexit(handler: extern "C" fn()) -> std::ffi::c_int;
    }
    extern "C" fn clean_up() {
        println!("the driver cleans up");
    }
    if std::env::var_os(ENDS).is_some() {
        let late = LateHandle::new(LateConfig::new("late")).unwrap();
        let (sender, gone) = std::sync::mpsc::channel();
        let first = OnDrop(move || sender.send(()).unwrap());
        drop(Device::from_backend(Hooked::with_owner(late.backend(0), first)).unwrap());
        gone.recv().unwrap();
        // SAFETY: the handler is a function of this program, and panics no more than `println!` does.
        assert_eq!(unsafe { atexit(clean_up) }, 0);
        let slow = OnDrop(|| {
            thread::sleep(Duration::from_millis(100));
            println!("the device is gone");
        });
        drop(Device::from_backend(Hooked::with_owner(late.backend(0), slow)).unwrap());
        std::process::exit(7);
    }
    let test = "a_driver_that_is_loaded_later_does_not_clean_up_before_the_devices_are_gone";
    let child = ends_by_itself(test);
    assert_eq!(child.status.code(), Some(7));
    let said = String::from_utf8_lossy(&child.stdout);
    let (device, driver) =
        (said.find("the device is gone").unwrap(), said.find("the driver cleans up").unwrap());
    assert!(device < driver, "{said}");
}

/// By hand: each device that was opened is waited for anew, twelve seconds.
#[test]
fn the_process_waits_once_for_devices_that_answer_no_more() {
    if std::env::var_os(ENDS).is_some() {
        let late = LateHandle::new(LateConfig { devices: 4, ..LateConfig::new("late") }).unwrap();
        late.stall();
        for ordinal in 0..4 {
            let device = Device::from_backend(late.backend(ordinal)).unwrap();
            let stream = stream_of(&device);
            let copy = start_copy(Tensor::from(vec![1_u8; 64]), &device, options()).unwrap();
            std::mem::forget((copy.wait_on(&stream).unwrap(), stream, device));
        }
        std::process::exit(7);
    }
    let begin = std::time::Instant::now();
    let child = ends_by_itself("the_process_waits_once_for_devices_that_answer_no_more");
    assert_eq!(child.status.code(), Some(7));
    assert!(begin.elapsed() < std::time::Duration::from_secs(6), "{:?}", begin.elapsed());
}

fn ends_by_itself(test: &str) -> std::process::Output {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ENDS, "1")
        .output()
        .unwrap()
}

/// A staging block belongs to one device, whatever lies in it.
#[test]
fn a_pinned_result_of_one_device_goes_up_to_another() {
    for peers in [true, false] {
        let (late, one, other) = two(LateConfig { peers, ..LateConfig::new("late") });
        let bytes = vec![7_u8; 1 << 20];
        let down = start_copy(on(&one, &bytes), &Device::host(), options()).unwrap().wait().unwrap();
        assert_eq!(down.memory_kind().unwrap(), MemoryKind::Pinned);
        let up = start_copy(down, &other, options()).unwrap();
        assert_eq!(bytes_of(&up.wait().unwrap()), bytes);
        no_violations(&late);
    }
}

/// What one driver has page-locked is ordinary memory for another, which would block the thread of `start_copy` to read it.
#[test]
fn a_pinned_result_of_one_driver_is_staged_for_another() {
    let (here, one) = late();
    let (there, other) = with(LateConfig::new("other"));
    let bytes = vec![7_u8; 1 << 20];
    let down = start_copy(on(&one, &bytes), &Device::host(), options()).unwrap().wait().unwrap();
    let (up, report) = start_copy(down, &other, options()).unwrap().wait_with_report().unwrap();
    assert_eq!(report.pinned_staging_bytes, 1 << 20, "{report:?}");
    assert_eq!(bytes_of(&up), bytes);
    no_violations(&here);
    no_violations(&there);
}

/// A result that came down into a staging block lies there until its handle is asked, or somebody needs the block.
#[test]
fn handles_that_nobody_asks_keep_no_block_from_others() {
    let (late, device) = with(LateConfig { mapped_staging: true, ..LateConfig::new("late") });
    device.set_staging_budget(64 << 10).unwrap();
    let source = on(&device, &[7; 8]);
    device.prepare(8).unwrap();
    let down = start_copy(source, &Device::host(), options()).unwrap();
    eventually("it is done", || down.is_ready().unwrap());
    assert_eq!(device.staging_usage().idle, 0, "the only block is not in use: the test shows nothing");
    let up = start_copy(Tensor::from(vec![9_u8; 300_000]), &device, options()).unwrap();
    let there = in_time(move || up.wait()).unwrap();
    assert_eq!(down.wait().unwrap().to_bytes().unwrap(), [7; 8]);
    assert_eq!(bytes_of(&there), vec![9; 300_000]);
    no_violations(&late);
}

/// A tensor stays where it is while the copy that fills it is late: whoever is told that all is done must be able to read it.
#[test]
fn a_tensor_that_stays_and_is_never_filled_fails_the_copy() {
    given_time(|limit| {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = stream_of(&device);
        late.stall();
        let hurried = start_copy(Tensor::from(vec![7_u8; 8]), &device, options().deadline(limit)).unwrap();
        let filling = hurried.wait_on(&stream).unwrap();
        let staying = match start_copy(filling.clone(), &device, options()) {
            Ok(staying) => staying,
            Err(refused) => {
                assert!(matches!(refused.error(), Error::CopyFailed(_)), "{refused}");
                return None;
            }
        };
        eventually("it is late", || filling.is_ready().is_err());
        late.release();
        let failed = in_time(move || staying.wait()).unwrap_err();
        assert!(matches!(failed.error(), Error::CopyFailed(_)), "{failed}");
        no_violations(&late);
        Some(())
    });
}

/// catches: 117-granules-of-another-source
#[test]
fn sources_of_several_granularities_are_read_within_their_memory() {
    let granularity = Alignment::new(4).unwrap();
    let (one, bytewise) = late();
    let (other, wordwise) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("other") });
    let (third, target) = late();
    for to in [Device::host(), target, bytewise.clone(), wordwise.clone()] {
        let value = vec![on(&bytewise, &[1; 5]), on(&wordwise, &[2; 5])];
        let options = CopyOptions::default().policy(CopyPolicy::Always);
        let copied = start_copy(value, &to, options).unwrap().wait().unwrap();
        assert_eq!([bytes_of(&copied[0]), bytes_of(&copied[1])], [[1; 5], [2; 5]]);
    }
    [one, other, third].iter().for_each(no_violations);
}
