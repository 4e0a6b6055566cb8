//! The threads that carry a group of copies out together.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::runtime::trace::span;
use crate::runtime::workers;
use crate::staging::pool::StagingPool;
use crate::transfer::cut_segments::Segment;
use crate::transfer::download_ahead::{Ahead, DownloadBegun};
use crate::transfer::filled::FilledSegment;
use crate::transfer::job_group::{Completions, JobGroup, caught, conclude};
use crate::transfer::take_blocks::{BlockSource, Now};

/// The segments of copies, shared by the threads that carry them out.
///
/// All threads fill blocks. One at a time submits, and takes all blocks that are full by then: eight threads that submit a
/// block each wait for each other's locks (64 blocks of 256 KiB: 106 us each instead of 4, on an H200 machine).
pub(crate) struct ParallelCopy {
    segments: SmallVec<[Segment; 1]>,
    next: AtomicUsize,
    /// Segments that are not carried yet, and blocks that are filled and not submitted yet.
    left: AtomicUsize,
    filled: Mutex<SmallVec<[FilledSegment; 1]>>,
    submitting: AtomicBool,
    /// How many threads carry segments.
    busy: AtomicUsize,
    /// The pool that they take blocks from, if the copies have a share of one.
    staging: Option<Arc<StagingPool>>,
    stopped: AtomicBool,
    error: Mutex<Option<Error>>,
    completions: Completions,
    /// Dropped before the copies count as submitted, because it owns the sources.
    group: Mutex<Option<Arc<JobGroup>>>,
}

impl ParallelCopy {
    /// For `segments`, which is not empty.
    pub(crate) fn new(group: JobGroup, segments: SmallVec<[Segment; 1]>) -> Self {
        Self {
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(segments.len()),
            segments,
            filled: Mutex::default(),
            submitting: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            staging: group.leased().map(|lease| lease.pool().clone()),
            stopped: AtomicBool::new(false),
            error: Mutex::new(None),
            completions: group.completions(),
            group: Mutex::new(Some(Arc::new(group))),
        }
    }

    /// Carries segments until none is left. The thread that ends the last one concludes the copies.
    pub(crate) fn work(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.carry_segments(|| false);
    }

    /// As [`work`](Self::work), for a worker. It leaves if there are enough threads without it: where many copies run, each is
    /// best carried by the thread that waits for it.
    pub(crate) fn help(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        if !self.has_enough() {
            self.carry_segments(|| self.has_enough());
        }
    }

    /// Whether this thread is one too many. If so, it is not counted any more.
    fn has_enough(&self) -> bool {
        let most = self.staging.as_deref().map_or(usize::MAX, most_fillers);
        let leave = |busy: usize| (busy > most).then(|| busy - 1);
        self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_ok()
    }

    /// Carries segments until none is left or `has_left` says that this thread is not needed.
    fn carry_segments(&self, has_left: impl Fn() -> bool) {
        let mut segment = self.take();
        let mut group = segment.and_then(|_| self.group.lock().clone());
        let _span = group.as_ref().map(|group| span!(in group.parent, "carry"));
        let ahead = Ahead::default();
        while let Some(current) = segment {
            let begun = 1 + ahead.count();
            let submitted = group.as_ref().map_or(0, |group| self.carry(group, current, &ahead));
            segment = if has_left() { None } else { self.take() };
            if segment.is_none()
                && let Some(group) = group.take()
            {
                let last = ahead.take();
                self.attempt(&group, || last.map_or(Ok(()), DownloadBegun::finish));
            }
            let ended = submitted + begun - ahead.count();
            if self.left.fetch_sub(ended, Ordering::AcqRel) == ended {
                self.conclude();
            }
        }
    }

    fn take(&self) -> Option<&Segment> {
        self.segments.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Carries a segment. Returns how many blocks this thread has submitted meanwhile, of any segments.
    fn carry(&self, group: &JobGroup, segment: &Segment, ahead: &Ahead) -> usize {
        let mut submitted = 0;
        let outlet = &mut |filled| {
            self.left.fetch_add(1, Ordering::Relaxed);
            self.filled.lock().push(filled);
            submitted += self.submit_filled(group);
            Ok(())
        };
        let now = Now { lease: group.leased(), ahead: Some(ahead) };
        self.attempt(group, || group.carry(segment, BlockSource::Now(now), outlet));
        submitted
    }

    /// Submits the filled blocks, unless another thread is submitting: that one looks again before it leaves. Returns how many.
    fn submit_filled(&self, group: &JobGroup) -> usize {
        let mut submitted = 0;
        while !self.filled.lock().is_empty() {
            let Some(_turn) = Turn::take(&self.submitting) else { break };
            let filled = mem::take(&mut *self.filled.lock());
            submitted += filled.len();
            self.attempt(group, || group.copy_up(filled));
        }
        submitted
    }

    fn attempt(&self, group: &JobGroup, step: impl FnOnce() -> Result<()>) {
        if self.stopped.load(Ordering::Relaxed) || !group.is_wanted() {
            return;
        }
        if let Err(error) = caught(step) {
            self.stopped.store(true, Ordering::Relaxed);
            self.error.lock().get_or_insert(error);
        }
    }

    fn conclude(&self) {
        let group = self.group.lock().take();
        if let Some(group) = &group {
            // SAFETY: `carry_segments` calls this when `left` is 0: every segment was carried, and `take` gives each out once.
            self.attempt(group, || group.each(|job| unsafe { job.close() }));
        }
        drop(group);
        conclude(&self.completions, self.error.lock().take());
    }
}

/// The turn of a thread to submit. No lock, since nobody waits for it and subscribers look on.
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// `None` if another thread has it.
    fn take(taken: &'a AtomicBool) -> Option<Self> {
        (!taken.swap(true, Ordering::Acquire)).then(|| Self(taken))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// How many threads fill blocks of one copy. Those of all copies together are about as many as fill the link.
pub(crate) fn most_fillers(staging: &StagingPool) -> usize {
    (workers::most_threads() / staging.leases().max(1)).max(1)
}
