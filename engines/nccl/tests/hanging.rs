//! A group one of whose devices does nothing any more, on two devices of CUDA or a stand-in for its driver. Alone in its process: who shares
//! the devices would wait as well.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use transship::cuda::{CudaBackend, cu_stream};
use transship::{CopyHandle, CopyOptions, Device, Stream, StreamPriority, Tensor, start_copy};
use transship_nccl::{Error, Group, ReduceOp};

mod support;

use support::{devices, down, nccl, on};

static ALONE: Mutex<()> = Mutex::new(());
static GOES_ON: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn hang(_: *mut c_void) {
    while !GOES_ON.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A stream of the device that does nothing any more.
fn hanging(device: &Device) -> Stream {
    type LaunchHost =
        unsafe extern "C" fn(*mut c_void, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    GOES_ON.store(false, Ordering::Release);
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let handle = cu_stream(&stream).unwrap();
    let _current = CudaBackend::of(&**device.backend()).unwrap().context().enter().unwrap();
    // SAFETY: the driver is loaded already, the function has this signature, and `hang` needs nothing.
    let code = unsafe {
        let driver = Library::new("libcuda.so.1").unwrap();
        let launch = driver.get::<LaunchHost>(b"cuLaunchHostFunc").unwrap();
        launch(handle.cast(), hang, ptr::null_mut())
    };
    assert_eq!(code, 0);
    stream
}

/// Has the stand-in obey; `false` if this is no stand-in.
fn tell(order: &CStr) -> bool {
    // SAFETY: the driver is loaded already; a stand-in for it has the function.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: as above.
    let control = unsafe { driver.get::<unsafe extern "C" fn(*const c_char) -> i64>(b"driver_sim_control") };
    // SAFETY: a string with a zero behind it.
    control.is_ok_and(|control| unsafe { control(order.as_ptr()) } == 0)
}

/// The library does not let go of what its work on streams may still touch.
fn go_on() {
    tell(c"excuse");
    GOES_ON.store(true, Ordering::Release);
}

/// Deliberate bug: nothing is aborted.
#[test]
fn a_group_with_a_device_that_hangs_is_ended_by_who_finds_out() {
    let _alone = ALONE.lock();
    let devices = devices();
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    let ones = |device| on(device, vec![Tensor::from(vec![1.0_f32; 3])]);
    let trees: Vec<_> = devices.iter().map(ones).collect();
    let [first, second] = &devices;
    trees[1][0].record_stream(&hanging(second)).unwrap();
    let mut sums = group.all_reduce(trees, ReduceOp::Sum).unwrap();
    let deadline = CopyOptions::default().deadline(Duration::from_millis(300));
    let late = start_copy(sums.swap_remove(0), &Device::host(), deadline).unwrap().wait().unwrap_err();
    assert!(matches!(late.error(), transship::Error::DeadlineExceeded { .. }), "{late}");
    let begun = Instant::now();
    group.abort();
    assert!(matches!(group.nccl(), Err(Error::Aborted)));
    let failed = group.all_reduce(vec![ones(first), ones(first)], ReduceOp::Sum).unwrap_err();
    assert!(matches!(*failed.error, Error::Aborted), "{failed}");
    drop(group);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    go_on();
    assert_eq!(down(failed.value)[1][0].to_vec::<f32>().unwrap(), [1.0; 3]);
}

/// Deliberate bug: ranks end one behind the other, each when its device is done.
#[test]
fn a_group_that_has_lost_a_device_ends_at_once() {
    let _alone = ALONE.lock();
    devices();
    assert!(tell(c"devices 4"), "only a stand-in loses a device when it is told to");
    let devices = ["cuda:2", "cuda:3"].map(|name| Device::open(name.parse().unwrap()).unwrap());
    let group = Group::with_nccl(&nccl(), &devices).unwrap();
    let ones = |device| on(device, vec![Tensor::from(vec![1.0_f32; 3])]);
    let trees: Vec<_> = devices.iter().map(ones).collect();
    let [first, second] = &devices;
    trees[0][0].record_stream(&hanging(first)).unwrap();
    let sums = group.all_reduce(trees, ReduceOp::Sum).unwrap();
    assert!(tell(c"faults cuMemcpyHtoDAsync_v2@1=launch-failed"));
    start_copy(Tensor::from(vec![1.0_f32; 3]), second, CopyOptions::default())
        .and_then(CopyHandle::wait)
        .unwrap_err();
    let begun = Instant::now();
    drop(group);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    go_on();
    drop(sums);
}
