//! How far a copy is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::thread;
use std::time::Duration;

use support::{eventually, late, no_violations};
use transship_core::{BackgroundWork, CopyOptions, Tensor, start_copy};

const BYTES: usize = 24 << 20;

#[test]
fn what_has_not_arrived_does_not_count() {
    let (late, device) = late();
    late.stall();
    let options = CopyOptions::default().background(BackgroundWork::Always);
    let handle = start_copy(Tensor::from(vec![1_u8; BYTES]), &device, options).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!((handle.progress().arrived_bytes, handle.progress().total_bytes), (0, BYTES as u64));
    late.release();
    let mut arrived = vec![0];
    eventually("all has arrived", || {
        arrived.push(handle.progress().arrived_bytes);
        arrived.last() == Some(&(BYTES as u64))
    });
    arrived.dedup();
    assert!(arrived.len() > 3 && arrived.is_sorted(), "{arrived:?}");
    eventually("it is done", || handle.is_ready().unwrap());
    assert_eq!(handle.progress().arrived_bytes, BYTES as u64);
    handle.wait().unwrap();
    no_violations(&late);
}
