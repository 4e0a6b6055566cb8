//! The threads that carry a group of copies out together.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::runtime::trace::span;
use crate::runtime::workers::{self, Team};
use crate::staging::pool::StagingPool;
use crate::transfer::cut_segments::Segment;
use crate::transfer::download_ahead::{Ahead, DownloadBegun};
use crate::transfer::filled::FilledSegment;
use crate::transfer::job_group::{Completions, JobGroup, caught, conclude};
use crate::transfer::take_blocks::{BlockSource, Now};

/// More threads are called for so many bytes at least: one takes 50 us and more to come, and eight stage these in 350 us.
const WORTH_A_CALL: usize = 16 << 20;
/// Few segments are smaller than 512 KiB: so many have as much.
const MOST_LOOKED_AT: usize = 32;

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
    /// How many workers are called, and have not come.
    called: AtomicUsize,
    /// The pool that they take blocks from, if the copies have a share of one.
    staging: Option<Arc<StagingPool>>,
    stopped: AtomicBool,
    error: Mutex<Option<Error>>,
    completions: Completions,
    /// The workers that carry segments; one alone, if it is paced.
    team: Team,
    is_paced: bool,
    /// Dropped before the copies count as submitted, because it owns the sources.
    group: Mutex<Option<Arc<JobGroup>>>,
}

impl ParallelCopy {
    /// For `segments`, which is not empty.
    pub(crate) fn new(group: JobGroup, segments: SmallVec<[Segment; 1]>) -> Arc<Self> {
        Arc::new(Self {
            team: group.team(),
            is_paced: group.lead().is_some_and(|lead| lead.pace.is_some()),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(segments.len()),
            segments,
            filled: Mutex::default(),
            submitting: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            called: AtomicUsize::new(0),
            staging: group.leased().map(|lease| lease.pool().clone()),
            stopped: AtomicBool::new(false),
            error: Mutex::new(None),
            completions: group.completions(),
            group: Mutex::new(Some(Arc::new(group))),
        })
    }

    /// Carries segments until none is left. The thread that ends the last one concludes the copies.
    pub(crate) fn work(self: &Arc<Self>) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.carry_segments(|| false);
    }

    /// As [`work`](Self::work), for a worker. It leaves if there are enough threads without it: where many copies run, each is
    /// best carried by the thread that waits for it.
    pub(crate) fn help(self: &Arc<Self>) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        if !self.has_enough() {
            self.carry_segments(|| self.has_enough());
        }
    }

    /// Calls as many workers as may carry segments beside those that do, those that are called, and `coming` more.
    pub(crate) fn call_workers(self: &Arc<Self>, coming: usize) {
        let there = self.busy.load(Ordering::Relaxed) + self.called.load(Ordering::Relaxed) + coming;
        let missing =
            self.most_threads().saturating_sub(there).min(self.not_taken().len().saturating_sub(coming));
        if missing == 0 || self.is_paced {
            return;
        }
        self.called.fetch_add(missing, Ordering::Relaxed);
        let helper = |_| {
            let copy = self.clone();
            move || {
                copy.called.fetch_sub(1, Ordering::Relaxed);
                copy.help();
            }
        };
        // If no worker can be called, the threads that are there carry all segments.
        let _ = workers::run_all(self.team, (0..missing).map(helper));
    }

    /// Calls workers in the place of those that were left to other copies when it began, or have left it for these: they may be over now.
    fn call_workers_back(self: &Arc<Self>) {
        let next = self.not_taken().iter().take(MOST_LOOKED_AT).map(|segment| segment.staged);
        if self.staging.is_some() && next.sum::<usize>() >= WORTH_A_CALL {
            self.call_workers(0);
        }
    }

    fn not_taken(&self) -> &[Segment] {
        self.segments.get(self.next.load(Ordering::Relaxed)..).unwrap_or_default()
    }

    /// How many threads fill blocks of it. Those of all copies together are about as many as fill the link.
    fn most_threads(&self) -> usize {
        let copies = self.staging.as_deref().map_or(1, StagingPool::leases);
        workers::most_threads().div_ceil(copies.max(1))
    }

    /// Whether this thread is one too many. If so, it is not counted any more.
    fn has_enough(&self) -> bool {
        let most = if self.staging.is_some() { self.most_threads() } else { usize::MAX };
        let leave = |busy: usize| (busy > most).then(|| busy - 1);
        self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_ok()
    }

    /// Carries segments until none is left or `has_left` says that this thread is not needed.
    fn carry_segments(self: &Arc<Self>, has_left: impl Fn() -> bool) {
        let mut segment = self.take();
        let mut group = segment.and_then(|_| self.group.lock().clone());
        let _span = group.as_ref().map(|group| span!(in group.parent, "carry"));
        let ahead = Ahead::default();
        while let Some(current) = segment {
            let begun = 1 + ahead.count();
            let submitted = group.as_ref().map_or(0, |group| self.carry(group, current, &ahead));
            segment = if has_left() { None } else { self.take() };
            if segment.is_some() {
                self.call_workers_back();
            }
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
