//! What a copy did: counted while it runs, reported on request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::Submission;
use crate::timeline::recorder::{Recorder, Timed};
use crate::timeline::timeline::Timeline;

/// Counters of a copy in progress.
pub(crate) struct CopyMetrics {
    started: Instant,
    pub(crate) background: AtomicBool,
    pub(crate) gathered: AtomicU64,
    pub(crate) submissions: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) pinned_staging_bytes: AtomicU64,
    pub(crate) pageable_staging_bytes: AtomicU64,
    pub(crate) pageable_result_bytes: AtomicU64,
    pub(crate) allocate: AtomicU64,
    pub(crate) stage: AtomicU64,
    pub(crate) submit: AtomicU64,
    pub(crate) submitted: AtomicU64,
    pub(crate) ended: AtomicU64,
    recorder: Option<Recorder>,
}

/// A phase whose time is added up.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    Allocate,
    Stage,
    Submit,
}

impl CopyMetrics {
    /// Of a copy that is written down in `timeline`, if there is one.
    pub(crate) fn new(timeline: Option<&Timeline>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            started: Instant::now(),
            background: AtomicBool::new(false),
            gathered: zero(),
            submissions: zero(),
            copies: zero(),
            copied_bytes: zero(),
            written_bytes: zero(),
            pinned_staging_bytes: zero(),
            pageable_staging_bytes: zero(),
            pageable_result_bytes: zero(),
            allocate: zero(),
            stage: zero(),
            submit: zero(),
            submitted: zero(),
            ended: zero(),
            recorder: timeline.map(Recorder::new),
        }
    }

    /// Runs `work` and adds its time to `phase`.
    pub(crate) fn time<R>(&self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let from = Instant::now();
        let result = work();
        let took = from.elapsed();
        let (counter, name) = match phase {
            Phase::Allocate => (&self.allocate, "allocate"),
            Phase::Stage => (&self.stage, "stage"),
            Phase::Submit => (&self.submit, "submit"),
        };
        counter.fetch_add(nanoseconds(took), Ordering::Relaxed);
        if let Some(recorder) = &self.recorder {
            recorder.phase(name, from, from + took);
        }
        result
    }

    pub(crate) fn count(&self, submission: &Submission) {
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.copies.fetch_add(submission.copies as u64, Ordering::Relaxed);
        self.copied_bytes.fetch_add(submission.bytes as u64, Ordering::Relaxed);
        if submission.gathered > 0 {
            self.count_gathered(submission.gathered);
        }
    }

    pub(crate) fn count_gathered(&self, copies: usize) {
        self.gathered.fetch_add(copies as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_staged(&self, bytes: usize, pinned: bool) {
        let counter = if pinned { &self.pinned_staging_bytes } else { &self.pageable_staging_bytes };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_pageable_result(&self, bytes: usize) {
        self.pageable_result_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn note_background(&self) {
        self.background.store(true, Ordering::Relaxed);
    }

    pub(crate) fn note_submitted(&self) {
        self.submitted.store(nanoseconds(self.started.elapsed()).max(1), Ordering::Relaxed);
    }

    /// Time from the call until the last piece was submitted.
    pub(crate) fn submitted_after(&self) -> Option<Duration> {
        Some(self.submitted.load(Ordering::Relaxed)).filter(|time| *time > 0).map(Duration::from_nanos)
    }

    pub(crate) fn note_end(&self) {
        let after = self.started.elapsed();
        self.ended.store(nanoseconds(after).max(1), Ordering::Relaxed);
        if let Some(recorder) = &self.recorder {
            recorder.ended(self.started + after);
        }
    }

    /// What writes the copy down, if it goes into a timeline.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Writes down what this thread does until the result is dropped.
    #[inline]
    pub(crate) fn timed(&self, name: &'static str) -> Timed {
        Timed::new(self.recorder(), name)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
