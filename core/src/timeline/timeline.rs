//! What copies did, collected.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::runtime::sync::Mutex;
use crate::timeline::records::Records;
use crate::timeline::trace_events;

/// What copies did and when: by thread, by stream, and how much memory was in use. It collects what happens in copies that are
/// started with it ([`CopyOptions::timeline`](crate::CopyOptions::timeline)), and opens in Perfetto (<https://ui.perfetto.dev>) or in
/// `chrome://tracing`. Clones are one.
///
/// What it shows of a thread is what the thread did itself. What it shows of a stream is how long the host knew that a copy was
/// on its way there: from its first submission, or the end of the copy before it, until it was seen that it was done: by whoever waits
/// or polls, or else by a thread that looks often at first and, the longer nothing ends, less often.
///
/// It takes about 50 bytes for each phase of each piece of a copy, and keeps them until it is dropped. A copy without one looks at no
/// clock for it.
///
/// ```
/// use transship_core::{CopyOptions, CopyPolicy, Device, Tensor, Timeline, start_copy};
///
/// let timeline = Timeline::new();
/// let options = CopyOptions::default().policy(CopyPolicy::Always).timeline(&timeline);
/// start_copy(Tensor::from(vec![1_u8; 1024]), &Device::host(), options)?.wait()?;
/// let json = timeline.to_json(); // std::fs::write("copies.json", json)?
/// assert!(json.contains(r#""name":"start_copy""#));
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Timeline(Arc<Inner>);

struct Inner {
    /// What all times count from.
    epoch: Instant,
    records: Mutex<Records>,
}

impl Timeline {
    /// An empty one, whose times count from now on.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner { epoch: Instant::now(), records: Mutex::default() }))
    }

    /// What it has collected so far, as Chrome trace events: times in microseconds since it was made, memory in bytes. A copy that is
    /// still on its way ends now.
    #[must_use]
    pub fn to_json(&self) -> String {
        let now = self.since_epoch(Instant::now());
        let records = self.0.records.lock().clone();
        trace_events::json(records, now)
    }

    pub(crate) fn since_epoch(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Records) -> R) -> R {
        change(&mut self.0.records.lock())
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = self.change(|records| records.copies);
        write!(f, "Timeline({copies} copies)")
    }
}
