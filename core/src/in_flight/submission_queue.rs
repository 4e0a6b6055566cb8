//! Owns everything that a device may still touch, until the fence is reached; nothing else does.
//!
//! A [`SubmissionQueue`] is a stream with the queue of what its copies use. Memory enters the queue before the copy is submitted
//! and leaves it when the position behind the copy is reached. Handles and futures only watch. Where reaching a
//! position cannot be proved (the device is broken), the memory is leaked and counted, never freed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::stream::reached;
use crate::backend::{Backend, BackendStream, CopyOp, Submission, Ticket};
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::in_flight::retained::Retained;
use crate::in_flight::stream_uses::Handed;
use crate::runtime::leaks::count_leak;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Mutex, OnceLock};
use crate::runtime::{foreign, fork, lent_collector};

/// The copies of one submission.
pub(crate) type Ops<'a> = SmallVec<[CopyOp<'a>; 2]>;

/// A stream and what is in flight on it.
pub(crate) struct SubmissionQueue {
    backend: Arc<dyn Backend>,
    stream: Arc<dyn BackendStream>,
    /// Which one it is, for whoever looks on.
    number: u64,
    /// Stored only after the entries up to it were released: a thread that sees a copy done finds its sources free.
    reached: AtomicU64,
    entries: Mutex<Entries>,
    /// Stands for the stream in memory that was handed to it.
    handed: OnceLock<Arc<Handed>>,
}

#[derive(Default)]
struct Entries {
    entries: VecDeque<Entry>,
    /// How many have entered so far.
    entered: u64,
}

struct Entry {
    /// How many had entered before it.
    turn: u64,
    /// [`SUBMITTING`] until the backend has returned it.
    position: u64,
    /// Its address identifies the entry.
    keep: Arc<dyn Retained>,
}

const SUBMITTING: u64 = u64::MAX;

impl Entry {
    fn keeps(&self, keep: *const ()) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.keep), keep)
    }

    /// Leaks what it keeps: the device may touch that for ever.
    fn leak(self) {
        count_leak(self.keep.give_up());
        std::mem::forget(self.keep);
    }
}

impl Entries {
    fn enter(&mut self, keep: Arc<dyn Retained>) {
        self.entries.push_back(Entry { turn: self.entered, position: SUBMITTING, keep });
        self.entered += 1;
    }

    /// Releases the entries that are done. They need not be at the front: an entry gets its position after it has entered the
    /// queue. No code of the program runs in here: memory that it has lent is collected ([`lent_collector::collect`]).
    fn release(&mut self, reached: u64) {
        self.entries.retain(|entry| entry.position > reached);
    }
}

impl SubmissionQueue {
    pub(crate) fn new(backend: Arc<dyn Backend>, stream: Arc<dyn BackendStream>) -> Arc<Self> {
        // Nothing depends on the order, so the model checker need not see it.
        static QUEUES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Arc::new(Self {
            backend,
            stream,
            number: QUEUES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            reached: AtomicU64::new(0),
            entries: Mutex::default(),
            handed: OnceLock::new(),
        })
    }

    pub(crate) fn stream(&self) -> &Arc<dyn BackendStream> {
        &self.stream
    }

    /// Which queue of the program it is, from 0 on.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.backend.device()
    }

    /// Fails if its stream is lost.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.stream.check()
    }

    /// Its stream, for memory that is handed to it.
    pub(crate) fn handed(&self) -> &Arc<Handed> {
        self.handed.get_or_init(|| Handed::new(&self.stream))
    }

    /// Gives memory back that was dropped while the stream was being captured. The capture is over.
    pub(crate) fn go_on_deferred(&self) {
        if let Some(handed) = self.handed.get() {
            handed.go_on_deferred();
        }
    }

    /// Whether its stream is one of this device.
    pub(crate) fn is_of(&self, backend: &Arc<dyn Backend>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(backend))
    }

    pub(crate) fn ticket(&self, position: u64) -> Ticket {
        Ticket { stream: self.stream.clone(), position }
    }

    /// Takes `keep` into the queue, then submits the copies that `ops` makes of it.
    ///
    /// # Safety
    ///
    /// Every range of the copies lies within a buffer or block of `keep`. A table has room for all of them.
    pub(crate) unsafe fn submit<R: Retained>(
        &self,
        keep: R,
        ops: impl for<'k> FnOnce(&'k R) -> Ops<'k>,
    ) -> Result<Submission> {
        // What a lost stream was given would be leaked.
        self.check()?;
        let keep = Arc::new(keep);
        let number = Arc::as_ptr(&keep).cast();
        self.entries.lock().enter(keep.clone());
        let mut guard = Submitting { queue: self, number, settled: false };
        let result = match keep.table() {
            // SAFETY: the ranges are the caller's promise; the queue owns `keep` from here on until the position is reached
            // (`release`), and the host has no access to it meanwhile (`Storage::check_ready`, `Block`).
            None => unsafe { self.backend.submit(&ops(&keep), &*self.stream) },
            // SAFETY: as for `submit`. The caller promises that the table has room for all copies, and `keep` owns it too.
            Some(table) => unsafe { self.backend.submit_gathered(&ops(&keep), table, &*self.stream) },
        };
        guard.settled = true;
        drop(guard);
        // From now on the queue alone holds it.
        drop(keep);
        match &result {
            Ok(submission) => self.set_position(number, submission.position),
            // Promise 2 of `Backend`: nothing of a failed submission is in flight, unless the stream itself is broken.
            Err(_) if reached(&*self.stream).is_ok() => drop(self.remove(number)),
            Err(_) => self.remove(number).into_iter().for_each(Entry::leak),
        }
        result
    }

    /// Whether `position` is known to be reached and what it used to be free, without asking the driver.
    pub(crate) fn has_reached(&self, position: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= position
    }

    /// Makes later work of `stream` wait for `position`, on the device. What is known to be reached needs no wait, which not
    /// all streams can do: those of wgpu wait for no other device, and copies over the host have positions there.
    pub(crate) fn precede(&self, stream: &Arc<dyn BackendStream>, position: u64) -> Result<()> {
        match self.has_reached(position) || Arc::ptr_eq(stream, &self.stream) {
            true => Ok(()),
            false => stream.wait_for(&*self.stream, position),
        }
    }

    /// Asks the driver how far the stream has come and releases what is done by then. Never blocks.
    pub(crate) fn poll(&self) -> Result<()> {
        let reached = reached(&*self.stream).inspect_err(|_| self.leak())?;
        self.settle(reached);
        Ok(())
    }

    /// Blocks until `position` is reached, and releases what is done by then; `false` on time-out.
    pub(crate) fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool> {
        if self.has_reached(position) {
            return Ok(true);
        }
        let waited = foreign::checked(|| self.stream.wait(position, timeout));
        let reached = waited.inspect_err(|_| self.leak())?;
        if reached {
            self.settle(position);
        }
        Ok(reached)
    }

    /// Releases what is done up to `reached`, and then stores `reached`, under one lock: nobody sees the one without the other.
    /// Memory that the program has lent goes to the copy that has used it, whose waiter drops it, or to the threads for owners.
    fn settle(&self, reached: u64) {
        let ((), unused) = lent_collector::collect(|| {
            let mut entries = self.entries.lock();
            let reached = reached.max(self.reached.load(Ordering::Relaxed));
            entries.release(reached);
            self.reached.store(reached, Ordering::Release);
        });
        drop(unused);
    }

    /// Blocks until the oldest entry is done or the time is over; returns at once where there is none.
    pub(crate) fn wait_for_oldest(&self, timeout: Duration) -> Result<bool> {
        let oldest = self.entries.lock().entries.front().map(|entry| entry.position);
        match oldest {
            Some(position) if position != SUBMITTING => self.wait(position, Some(timeout)),
            _ => Ok(false),
        }
    }

    /// Blocks until nothing that is submitted by now is in flight.
    pub(crate) fn drain(&self) -> Result<()> {
        let submitted = |entry: &Entry| Some(entry.position).filter(|position| *position != SUBMITTING);
        let newest = self.entries.lock().entries.iter().filter_map(submitted).max();
        newest.map_or(Ok(()), |position| self.wait(position, None).map(|_| ()))
    }

    /// How many submissions have entered it so far.
    pub(crate) fn entered(&self) -> u64 {
        self.entries.lock().entered
    }

    /// Whether nothing is in flight of the first `entered` submissions that have entered it, and what they used is free.
    pub(crate) fn has_released(&self, entered: u64) -> bool {
        self.entries.lock().entries.front().is_none_or(|oldest| oldest.turn >= entered)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.lock().entries.is_empty()
    }

    /// Gives an entry its position. If another thread has settled that position already, it has skipped the entry: then this
    /// thread settles it once more.
    fn set_position(&self, number: *const (), position: u64) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.entries.iter_mut().rev().find(|entry| entry.keeps(number)) {
            entry.position = position;
        }
        drop(entries);
        if self.has_reached(position) {
            self.settle(position);
        }
    }

    fn remove(&self, number: *const ()) -> Option<Entry> {
        let mut entries = self.entries.lock();
        let index = entries.entries.iter().rposition(|entry| entry.keeps(number))?;
        entries.entries.remove(index)
    }

    /// Leaks what is in flight: the device is broken, and may or may not touch it.
    fn leak(&self) {
        let entries = std::mem::take(&mut self.entries.lock().entries);
        entries.into_iter().for_each(Entry::leak);
    }
}

impl Drop for SubmissionQueue {
    fn drop(&mut self) {
        if fork::is_child() {
            let entries = std::mem::take(&mut self.entries.get_mut().entries);
            return std::mem::forget((entries, self.stream.clone(), self.backend.clone()));
        }
        // After an error `poll` has leaked them.
        if !self.entries.get_mut().entries.is_empty() && self.poll().is_ok() {
            self.leak();
        }
        if let Some(handed) = self.handed.get() {
            handed.queue_goes(&self.stream);
        }
    }
}

/// An entry being submitted; leaked if the backend panics, since nobody knows what it had submitted.
struct Submitting<'a> {
    queue: &'a SubmissionQueue,
    number: *const (),
    settled: bool,
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        if !self.settled
            && let Some(entry) = self.queue.remove(self.number)
        {
            entry.leak();
        }
    }
}

/// Watched for what a failed copy has left in flight. After an error the queue has leaked that and is empty, too.
impl Pollable for Arc<SubmissionQueue> {
    fn is_finished(&mut self, _: &mut Asked) -> bool {
        self.poll().is_err() || self.is_idle()
    }
}
