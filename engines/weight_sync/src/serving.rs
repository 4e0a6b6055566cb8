//! Requests, one after the other, for as long as the process lives.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Result;
use crate::served::Served;
use crate::weights::Marks;

/// A thread that serves requests, until this is dropped. Each reads all parameters.
pub(crate) struct Serving {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    is_over: AtomicBool,
    seen: Mutex<Seen>,
    changed: Condvar,
}

/// What requests have come to since the last report.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) versions: BTreeSet<u16>,
    /// Requests with weights of several versions, or of an older one than the request before.
    pub(crate) mixtures: u64,
    /// From its begin to its end, waiting for weights included.
    pub(crate) longest: Duration,
    newest: u16,
    failed: Option<String>,
}

impl Serving {
    pub(crate) fn start(served: Arc<Served>, pause: Duration) -> Result<Self> {
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(Shared { is_over, seen: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("requests".to_owned());
        let thread = Some(thread.spawn(move || serve(&served, &of_thread, pause))?);
        Ok(Self { shared, thread })
    }

    /// How many requests there were since the last report.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.seen().requests
    }

    /// What there was until the first request with `version` or a newer one, and anew from here on.
    pub(crate) fn report(&self, version: u16, limit: Duration) -> Result<Seen> {
        let is_older = |seen: &mut Seen| seen.newest < version && seen.failed.is_none() && seen.mixtures == 0;
        let waited = self.shared.changed.wait_timeout_while(self.shared.seen(), limit, is_older);
        let (mut seen, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &seen.failed {
            return Err(format!("a request has failed: {reason}").into());
        }
        if waited.timed_out() {
            return Err(format!("no request has seen version {version} within {limit:?}").into());
        }
        let report = seen.clone();
        *seen = Seen { newest: seen.newest, ..Seen::default() };
        Ok(report)
    }
}

/// What the thread has of a device goes before the process does.
impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(served: &Served, shared: &Shared, pause: Duration) {
    while !shared.is_over.load(Ordering::Acquire) {
        let begun = Instant::now();
        let marks = served.read().and_then(|weights| weights.marks());
        let is_over = shared.seen().take(marks, begun.elapsed());
        shared.changed.notify_all();
        if is_over {
            return;
        }
        thread::sleep(pause);
    }
}

impl Seen {
    /// Whether that was the last request.
    fn take(&mut self, marks: Result<Marks>, time: Duration) -> bool {
        self.requests += 1;
        self.longest = self.longest.max(time);
        match marks {
            Ok(Marks::Of(version)) => {
                self.versions.insert(version);
                self.mixtures += u64::from(version < self.newest);
                self.newest = self.newest.max(version);
            }
            Ok(Marks::Mixed(one, other)) => {
                self.versions.extend([one, other]);
                self.mixtures += 1;
            }
            Err(error) => self.failed = Some(error.to_string()),
        }
        self.failed.is_some()
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    /// Fails if versions that go back are taken, or mixtures are not counted.
    #[test]
    fn mixtures_and_steps_back_are_counted() {
        let mut seen = Seen::default();
        for (marks, mixtures) in [
            (Marks::Of(1), 0),
            (Marks::Of(2), 0),
            (Marks::Of(2), 0),
            (Marks::Mixed(2, 3), 1),
            (Marks::Of(1), 2),
        ] {
            assert!(!seen.take(Ok(marks), Duration::ZERO));
            assert_eq!(seen.mixtures, mixtures);
        }
        assert_eq!(seen.versions, BTreeSet::from([1, 2, 3]));
        assert!(seen.take(Err("no memory".into()), Duration::ZERO));
    }
}
