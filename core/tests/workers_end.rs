//! Threads of devices that have gone do not stay.
//!
//! The only test of its binary: it counts the threads of the whole process.

#![cfg(all(target_os = "linux", not(miri)))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use support::late;
use transship_core::{BackgroundWork, CopyOptions, Tensor, start_copy};

/// More than there are threads that free memory.
const DEVICES: usize = 24;
/// Less than the time after which any thread ends that has nothing to do.
const SOON: Duration = Duration::from_secs(5);

fn workers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // One may end meanwhile.
    let name = |task| fs::read_to_string(task).unwrap_or_default();
    tasks.filter(|task| name(task.join("comm")).starts_with("transship-worke")).count()
}

/// catches: 747-threads-of-devices-that-have-gone-stay
#[test]
fn threads_of_devices_that_have_gone_end() {
    for _ in 0..DEVICES {
        let (_, device) = late();
        let by_workers = CopyOptions::default().background(BackgroundWork::Always);
        let copy = start_copy(Tensor::from(vec![1_u8; 1000]), &device, by_workers).unwrap();
        drop(copy.wait().unwrap());
    }
    let begin = Instant::now();
    while workers() >= DEVICES {
        assert!(begin.elapsed() < SOON, "{} are left of {DEVICES} devices", workers());
        thread::sleep(Duration::from_millis(1));
    }
}
