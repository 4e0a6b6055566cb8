//! How one copy is written down.

use std::time::Instant;

use crate::device_id::DeviceId;
use crate::timeline::records::{Phase, Sample, Submitted};
use crate::timeline::timeline::Timeline;

/// One copy of a timeline.
#[derive(Clone)]
pub(crate) struct Recorder {
    timeline: Timeline,
    copy: u64,
}

/// Writes down what a thread does until this is dropped.
pub(crate) struct Timed(Option<(Recorder, &'static str, Instant)>);

impl Recorder {
    /// A new copy of `timeline`.
    pub(crate) fn new(timeline: &Timeline) -> Self {
        let copy = timeline.change(|records| {
            records.copies += 1;
            records.copies
        });
        Self { timeline: timeline.clone(), copy }
    }

    /// This thread has done something.
    pub(crate) fn phase(&self, name: &'static str, from: Instant, to: Instant) {
        let [begin, end] = [from, to].map(|at| self.timeline.since_epoch(at));
        self.timeline.change(|records| {
            let thread = records.this_thread();
            records.phases.push(Phase { name, thread, copy: self.copy, begin, end });
        });
    }

    /// A part of the copy was given to a stream, at this `position` of it.
    pub(crate) fn submitted(&self, device: DeviceId, stream: u64, position: u64, bytes: u64, at: Instant) {
        let begin = self.timeline.since_epoch(at);
        let submitted = Submitted { copy: self.copy, device, stream, position, begin, bytes };
        self.timeline.change(|records| records.submissions.push(submitted));
    }

    /// The copy is over.
    pub(crate) fn ended(&self, at: Instant) {
        let end = self.timeline.since_epoch(at);
        self.timeline.change(|records| records.ends.insert(self.copy, end));
    }

    /// So many bytes of a device are in use now.
    pub(crate) fn sample(&self, device: DeviceId, of: &'static str, bytes: u64) {
        let at = self.timeline.since_epoch(Instant::now());
        self.timeline.change(|records| records.samples.push(Sample { at, device, of, bytes }));
    }
}

impl Timed {
    #[inline]
    pub(crate) fn new(recorder: Option<&Recorder>, name: &'static str) -> Self {
        Self(recorder.map(|recorder| (recorder.clone(), name, Instant::now())))
    }
}

impl Drop for Timed {
    #[inline]
    fn drop(&mut self) {
        if let Some((recorder, name, from)) = self.0.take() {
            recorder.phase(name, from, Instant::now());
        }
    }
}
