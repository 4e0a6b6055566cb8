//! A process that may start no more threads for a while. Alone in its program: the reactor's thread must not be there yet.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use late_backend::LateHandle;
use support::{bytes_of, in_time, late, no_violations};
use transship_core::{CopyOptions, Device, Error, PendingCopy, Tensor, Timeline, start_copy};

/// Sets how many bytes of addresses this process may have. Returns what it was.
fn limit_addresses(to: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls are handed a struct of this function.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
        before
    }
}

/// catches: 365-watched-by-nobody, 571-an-observed-copy-needs-a-thread
#[test]
fn a_copy_that_nobody_could_look_after_is_looked_after_later() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    a_timeline_makes_no_copy_fail(&late, &device);
    late.stall();
    let mut handle = start_copy(Tensor::from(vec![1_u8; 8]), &device, CopyOptions::default()).unwrap();
    let before = limit_addresses(1 << 20);
    let refused = handle.done().as_mut().poll(&mut Context::from_waker(Waker::noop()));
    limit_addresses(before);
    assert!(matches!(refused, Poll::Ready(Err(Error::NoThread { .. }))), "{refused:?}");
    let waiting = std::thread::spawn(move || {
        block_on(handle.done()).unwrap();
        handle.wait().unwrap()
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    late.release();
    assert_eq!(bytes_of(&in_time(|| waiting.join().unwrap())), [1; 8]);
    no_violations(&late);
}

fn a_timeline_makes_no_copy_fail(late: &LateHandle, device: &Device) {
    late.stall();
    let timeline = Timeline::new();
    let (source, options) = (Tensor::from(vec![2_u8; 8]), CopyOptions::default().timeline(&timeline));
    let before = limit_addresses(1 << 20);
    let handle = start_copy(source, device, options);
    limit_addresses(before);
    late.release();
    assert_eq!(bytes_of(&handle.unwrap().wait().unwrap()), [2; 8]);
}
