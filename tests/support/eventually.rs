//! Waiting for what other threads or devices bring about.

#![allow(dead_code, reason = "no test uses both")]

use std::time::{Duration, Instant};

/// Asks again and again, for ten seconds at the most; whether it came about.
pub(crate) fn eventually(holds: impl FnMut() -> bool) -> bool {
    within(Duration::from_secs(10), holds)
}

/// The same, for as long as `limit` at the most.
pub(crate) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
