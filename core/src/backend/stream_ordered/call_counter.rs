//! Calls of a driver: counted, their codes as errors.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device_id::DeviceId;
use crate::error::Error;
use crate::runtime::thread_index;

/// How many calls were made for one device.
pub struct CallCount {
    device: DeviceId,
    counts: [Count; 16],
}

/// What some of the threads counted. Threads that wait ask the driver millions of times a second: each counts in a cache
/// line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl CallCount {
    /// None so far.
    pub fn new(device: DeviceId) -> Self {
        Self { device, counts: Default::default() }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// How many calls there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    /// One more.
    #[inline]
    pub fn counted(&self) {
        let count = &self.counts[thread_index::calling() % self.counts.len()];
        count.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The error of a call that was answered with `code`.
    #[cold]
    pub fn error(&self, call: &'static str, code: i64, message: String) -> Error {
        Error::Driver { device: self.device, call, code, message }
    }
}

/// Whether the driver answered with this code.
pub fn is_code(error: &Error, expected: i64) -> bool {
    matches!(error, Error::Driver { code, .. } if *code == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_told_from_others_and_from_other_errors() {
        let failed = CallCount::new(DeviceId::HOST).error("allocate", 2, String::new());
        assert!(is_code(&failed, 2));
        assert!(!is_code(&failed, 600));
        assert!(!is_code(&Error::NotReady, 2));
    }
}
