//! As many threads as there are streams share none.
//!
//! The only test of its binary: threads are numbered in the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::thread;
use std::time::Duration;

use late_backend::LateConfig;
use support::{no_violations, with};
use transship_core::{CopyOptions, Tensor, TimedWait, start_copy};

const THREADS: usize = 8;
const LONG: Duration = Duration::from_secs(20);

#[test]
fn threads_that_start_together_share_no_stream() {
    let (late, device) = with(LateConfig { copy_streams: 2 * THREADS, ..LateConfig::new("late") });
    let copy = || {
        // Workers carry it out, and nobody else: there is a limit to the wait.
        let batch = vec![Tensor::from(vec![1_u8; 2 << 20]), Tensor::from(Vec::<u8>::new())];
        let copy = start_copy(batch, &device, CopyOptions::default()).unwrap();
        assert!(matches!(copy.wait_timeout(LONG).unwrap(), TimedWait::Done(_)));
    };
    for round in 1..=2 {
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(copy))));
        // One each for copies up, and one for each of the other kinds.
        assert_eq!(device.counters().streams_created, (round * THREADS + 2) as u64);
    }
    no_violations(&late);
}
