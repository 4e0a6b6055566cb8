//! How far a copy is: being staged, submitted, done or failed. All that wait for a copy share one of these. None of them owns
//! what is in flight.

use std::iter;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::CopyMetrics;
use crate::in_flight::deadline::Deadline;
use crate::in_flight::released_lent::Retired;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::asleep::Sleep;
use crate::runtime::foreign::TaskWaker;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::runtime::sync::{Condvar, Instant, Mutex, MutexGuard, thread};
use crate::runtime::{fork, reactor};
use crate::timeline::timeline::Timeline;

const RUNNING: u8 = 0;
const SUBMITTED: u8 = 1;
const DONE: u8 = 2;
const FAILED: u8 = 3;

/// A thread waits so long for the last segments of others: 512 KiB are filled in 75 to 110 us.
const LAST_SEGMENTS: Duration = Duration::from_micros(200);

/// The positions behind a copy, one for each queue that it uses.
pub(crate) type Positions = SmallVec<[(Arc<SubmissionQueue>, u64); 1]>;

/// The state of one copy.
pub(crate) struct Completion {
    state: AtomicU8,
    abandoned: AtomicBool,
    deadline: Option<Deadline>,
    inner: Mutex<Inner>,
    moved: Condvar,
    pub(crate) metrics: CopyMetrics,
    pub(crate) retired: Retired,
}

struct Inner {
    positions: Positions,
    error: Option<Error>,
    waker: Option<TaskWaker>,
    /// The positions up to which a failed copy may still use memory.
    left: Positions,
    /// The reactor shall look after the copy once it is submitted.
    unattended: bool,
    watched: bool,
    /// The reactor may look after it as something that sleeps.
    may_sleep: bool,
    /// What workers have submitted and the device may not have copied yet.
    on_the_way: Vec<Piece>,
    /// Bytes of what was taken out of that list.
    arrived: u64,
}

/// A part of a copy that was submitted.
struct Piece {
    /// Its number in `positions`.
    queue: usize,
    position: u64,
    bytes: u64,
}

impl Completion {
    /// A copy whose pieces are not submitted yet, without a deadline.
    pub(crate) fn new() -> Arc<Self> {
        Self::within(None, None)
    }

    /// A copy whose pieces are not submitted yet, to be done within `limit`, which goes into `timeline`.
    pub(crate) fn within(limit: Option<Duration>, timeline: Option<&Timeline>) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(RUNNING),
            abandoned: AtomicBool::new(false),
            deadline: limit.and_then(Deadline::within),
            inner: Mutex::new(Inner {
                positions: Positions::new(),
                error: None,
                waker: None,
                left: Positions::new(),
                // A timeline is to know when the copy is done, not when the program asks.
                unattended: timeline.is_some(),
                watched: false,
                may_sleep: false,
                on_the_way: Vec::new(),
                arrived: 0,
            }),
            moved: Condvar::new(),
            metrics: CopyMetrics::new(timeline),
            retired: Retired::default(),
        })
    }

    /// Work that is done when `queue` reaches `position`.
    pub(crate) fn at(queue: Arc<SubmissionQueue>, position: u64) -> Arc<Self> {
        let completion = Self::new();
        completion.reach(&queue, position);
        completion.state.store(SUBMITTED, Ordering::Release);
        completion
    }

    /// Adds a position that the copy waits for.
    pub(crate) fn reach(&self, queue: &Arc<SubmissionQueue>, position: u64) {
        self.reach_with(queue, position, 0);
    }

    /// The same, where so many bytes have arrived. Only copies that workers carry out count them: others have few pieces.
    pub(crate) fn reach_with(&self, queue: &Arc<SubmissionQueue>, position: u64, bytes: usize) {
        if fork::is_child() {
            return;
        }
        let mut inner = self.inner.lock();
        if self.state.load(Ordering::Acquire) == FAILED {
            note(&mut inner.left, queue, position);
            drop(inner);
            // Nobody waits for it any more: the reactor releases what it uses.
            let _ = reactor::watch(queue.clone());
            return;
        }
        let number = note(&mut inner.positions, queue, position);
        if bytes > 0 && self.metrics.background.load(Ordering::Relaxed) {
            inner.on_the_way.push(Piece { queue: number, position, bytes: bytes as u64 });
        }
    }

    /// The bytes that have arrived, as far as it counts them. Asks the driver about the queues that it `may_ask`; never blocks.
    pub(crate) fn arrived(&self, may_ask: &mut dyn FnMut(&Arc<SubmissionQueue>) -> bool) -> u64 {
        let positions = self.positions();
        for (queue, _) in &positions {
            if may_ask(queue) {
                // Whoever waits for the copy finds the error.
                let _ = queue.poll();
            }
        }
        let mut inner = self.inner.lock();
        let Inner { on_the_way, arrived, .. } = &mut *inner;
        on_the_way.retain(|piece| {
            let is_there =
                positions.get(piece.queue).is_some_and(|(queue, _)| queue.has_reached(piece.position));
            *arrived += if is_there { piece.bytes } else { 0 };
            !is_there
        });
        inner.arrived + self.metrics.written_bytes.load(Ordering::Relaxed)
    }

    /// Everything is submitted, or done where nothing needed a device.
    pub(crate) fn submitted(self: &Arc<Self>) {
        if fork::is_child() {
            return;
        }
        self.metrics.note_submitted();
        let mut inner = self.inner.lock();
        if self.state.load(Ordering::Acquire) != RUNNING {
            return;
        }
        if inner.positions.is_empty() {
            drop(inner);
            return self.finish(DONE, None);
        }
        self.state.store(SUBMITTED, Ordering::Release);
        self.moved.notify_all();
        let attend = inner.unattended && !inner.watched;
        inner.watched |= attend;
        let may_sleep = mem::take(&mut inner.may_sleep);
        drop(inner);
        self.rouse_if(may_sleep);
        if attend && let Err(error) = reactor::watch(self.clone()) {
            let mut inner = self.inner.lock();
            inner.watched = false;
            let is_awaited = inner.waker.is_some();
            drop(inner);
            // Nobody would wake the task. Whoever asks by himself tries again to start the reactor's thread.
            if is_awaited {
                self.finish(FAILED, Some(error));
            }
        }
    }

    /// The copy failed; what it has in flight stays owned until its positions are reached.
    pub(crate) fn fail(&self, error: Error) {
        self.finish(FAILED, Some(error));
    }

    /// Whether the copy is known to be done, without asking the driver.
    #[inline]
    pub(crate) fn is_done_cached(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// Whether every piece is submitted (or the copy is over).
    pub(crate) fn is_submitted(&self) -> bool {
        self.state.load(Ordering::Acquire) != RUNNING
    }

    pub(crate) fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    pub(crate) fn deadline(&self) -> Option<&Deadline> {
        self.deadline.as_ref()
    }

    /// Whether every piece is submitted and none has failed.
    pub(crate) fn is_accepted(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), SUBMITTED | DONE)
    }

    /// Whether the copy is done, asking the driver. Never blocks.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.check(&mut |_| true)
    }

    /// Whether the device is done with all that it has submitted, whatever came of it. A failure does not say so: what a failed copy
    /// has left may still run, and its memory may not even be allocated yet. Waits for that if it `may_block`. An error means that
    /// nobody will ever know.
    pub(crate) fn is_over(&self, may_block: bool) -> Result<bool> {
        if self.is_done_cached() {
            return Ok(true);
        }
        if may_block {
            // Whether it fails does not matter here.
            let _ = self.wait(None);
        }
        if matches!(self.is_done(), Ok(false)) {
            return Ok(false);
        }
        for (queue, position) in self.positions_in_flight() {
            match may_block {
                _ if queue.has_reached(position) => {}
                true => drop(queue.wait(position, None)?),
                false => queue.poll()?,
            }
            if !queue.has_reached(position) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Blocks until every piece is submitted; `false` on time-out.
    pub(crate) fn wait_submitted(&self, deadline: Option<Instant>) -> Result<bool> {
        fork::check()?;
        let until = self.deadline.iter().map(|own| own.at).chain(deadline).min();
        let mut inner = self.inner.lock();
        while self.state.load(Ordering::Acquire) == RUNNING {
            match until {
                None => self.moved.wait(&mut inner),
                Some(until) if self.moved.wait_until(&mut inner, until).timed_out() => {
                    drop(inner);
                    return self.is_in_time().map(|()| false);
                }
                Some(_) => {}
            }
        }
        inner.error.clone().map_or(Ok(true), Err)
    }

    /// For a thread that has found no segment left to begin. Those that others have begun take about as long as waking this
    /// thread would, so it does not sleep. It yields the processor to threads that need it.
    pub(crate) fn await_last_segments(&self) {
        let begin = Instant::now();
        while !self.is_submitted() && begin.elapsed() < LAST_SEGMENTS {
            thread::yield_now();
        }
    }

    /// Blocks until the copy is done; `false` on time-out.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        if self.is_done_cached() {
            return Ok(true);
        }
        fork::check()?;
        // A time-out beyond the range of the clock is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let until = self.deadline.iter().map(|own| own.at).chain(deadline).min();
        if !self.is_submitted() && !self.wait_submitted(deadline)? {
            return Ok(false);
        }
        for (queue, position) in self.positions() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match queue.wait(position, left) {
                Ok(true) => {}
                Ok(false) => return self.is_in_time().map(|()| false),
                Err(error) => {
                    self.fail(error.clone());
                    return Err(error);
                }
            }
        }
        self.check(&mut |_| false)
    }

    /// The positions that the copy waits for; complete once it is submitted, empty when it is over.
    pub(crate) fn positions(&self) -> Positions {
        self.inner.lock().positions.clone()
    }

    /// The positions up to which it may use memory, as submitted by now. Those of a failed copy as well.
    pub(crate) fn positions_in_flight(&self) -> Positions {
        if fork::is_child() {
            return Positions::new();
        }
        let inner = self.inner.lock();
        inner.positions.iter().chain(&inner.left).cloned().collect()
    }

    /// Wakes `waker` when the copy is over. To be called before the last check.
    pub(crate) fn register(self: &Arc<Self>, waker: &Waker) -> Result<()> {
        fork::check()?;
        let is_known = self.inner.lock().waker.as_ref().is_some_and(|known| known.will_wake(waker));
        // Cloned and dropped without the lock: both are the program's code.
        let new = (!is_known).then(|| TaskWaker::clone_of(waker));
        let mut inner = self.inner.lock();
        let mut unused = new;
        // At its end the copy wakes the waker that is registered then. One that is registered later is never woken.
        if self.state.load(Ordering::Acquire) < DONE && unused.is_some() {
            mem::swap(&mut inner.waker, &mut unused);
        }
        let attended = self.attend(inner);
        drop(unused);
        attended
    }

    /// No waker is to be woken any more.
    pub(crate) fn forget_waker(&self) {
        if fork::is_child() {
            return;
        }
        let waker = self.inner.lock().waker.take();
        drop(waker);
    }

    /// Nobody waits for the copy any more: the reactor releases what it uses.
    pub(crate) fn leave_to_reactor(self: &Arc<Self>) -> Result<()> {
        fork::check()?;
        self.attend(self.inner.lock())
    }

    /// The result is not wanted: what is not submitted yet need not be.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.abandoned.store(true, Ordering::Relaxed);
        if fork::is_child() {
            return;
        }
        let may_sleep = self.inner.lock().may_sleep;
        self.rouse_if(may_sleep);
        // Without a reactor thread the memory stays in its queue until the next copy settles it.
        let _ = self.leave_to_reactor();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The name by which the reactor is told of what becomes of it.
    pub(crate) fn name(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// How long the reactor need not look at it. After [`let_sleep`](Self::let_sleep).
    pub(crate) fn as_sleep(&self) -> Sleep {
        Sleep { name: self.name(), until: self.deadline.as_ref().map(|deadline| deadline.at) }
    }

    /// Something that the reactor is to look after sleeps until it is told of what becomes of the copy.
    pub(crate) fn let_sleep(&self) {
        self.inner.lock().may_sleep = true;
    }

    fn rouse_if(&self, may_sleep: bool) {
        if may_sleep {
            reactor::rouse(iter::once(self.name()));
        }
    }

    fn attend(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) -> Result<()> {
        inner.unattended = true;
        let watchable = match self.state.load(Ordering::Acquire) {
            SUBMITTED => true,
            // A copy that is not submitted by its deadline fails as well, and only a thread that looks at a clock finds that out.
            RUNNING => self.deadline.is_some(),
            _ => false,
        };
        if inner.watched || !watchable {
            return Ok(());
        }
        inner.watched = true;
        inner.may_sleep |= !self.is_submitted();
        drop(inner);
        // Whoever waits for the copy next tries again to start the reactor's thread.
        reactor::watch(self.clone()).inspect_err(|_| self.inner.lock().watched = false)
    }

    fn check(&self, may_ask: &mut dyn FnMut(&Arc<SubmissionQueue>) -> bool) -> Result<bool> {
        if !self.has_passed(may_ask)? {
            return Ok(false);
        }
        self.finish(DONE, None);
        // Another thread may have seen it fail meanwhile, which takes the positions away.
        if self.is_done_cached() { Ok(true) } else { Err(self.error()) }
    }

    /// Whether everything is submitted and each queue is past its position.
    fn has_passed(&self, may_ask: &mut dyn FnMut(&Arc<SubmissionQueue>) -> bool) -> Result<bool> {
        if self.is_done_cached() {
            return Ok(true);
        }
        fork::check()?;
        match self.state.load(Ordering::Acquire) {
            RUNNING => return self.is_in_time().map(|()| false),
            DONE => return Ok(true),
            FAILED => return Err(self.error()),
            _ => {}
        }
        for (queue, position) in self.positions() {
            if !queue.has_reached(position)
                && may_ask(&queue)
                && let Err(error) = queue.poll()
            {
                self.fail(error.clone());
                return Err(error);
            }
            if !queue.has_reached(position) {
                return self.is_in_time().map(|()| false);
            }
        }
        Ok(true)
    }

    /// Fails the copy, which is not done, if its deadline has passed.
    fn is_in_time(&self) -> Result<()> {
        match &self.deadline {
            Some(deadline) if deadline.at <= Instant::now() => {
                // In this order: workers that find it abandoned fail it as cancelled.
                self.fail(deadline.error());
                self.abandoned.store(true, Ordering::Relaxed);
                // Another thread may have ended it first.
                if self.is_done_cached() { Ok(()) } else { Err(self.error()) }
            }
            _ => Ok(()),
        }
    }

    /// Why it failed.
    pub(crate) fn error(&self) -> Error {
        self.inner.lock().error.clone().unwrap_or(Error::NotReady)
    }

    fn finish(&self, end: u8, error: Option<Error>) {
        if fork::is_child() {
            return;
        }
        let mut inner = self.inner.lock();
        if self.state.load(Ordering::Acquire) >= DONE {
            return;
        }
        self.metrics.note_end();
        inner.error = error;
        self.state.store(end, Ordering::Release);
        self.moved.notify_all();
        let waker = inner.waker.take();
        let may_sleep = mem::take(&mut inner.may_sleep);
        let positions = mem::take(&mut inner.positions);
        if end == FAILED {
            inner.left = positions.clone();
        }
        drop(inner);
        self.rouse_if(may_sleep);
        if end == FAILED {
            for (queue, _) in positions {
                // Without a reactor thread the memory stays in its queue until the next copy settles it.
                let _ = reactor::watch(queue);
            }
        }
        if let Some(waker) = waker {
            reactor::wake(waker);
        }
    }
}

/// A copy whose tasks are woken at its end.
impl Pollable for Arc<Completion> {
    fn is_finished(&mut self, asked: &mut Asked) -> bool {
        self.check(&mut |queue| asked.is_first(queue)).unwrap_or(true)
    }

    /// Before it is submitted only its deadline ends it, or who calls it off.
    fn sleep(&self) -> Option<Sleep> {
        (!self.is_submitted()).then(|| self.as_sleep())
    }
}

/// Notes a position of a queue, and returns the number of the queue. Keeps the highest of each.
fn note(positions: &mut Positions, queue: &Arc<SubmissionQueue>, position: u64) -> usize {
    match positions.iter_mut().position(|(known, _)| Arc::ptr_eq(known, queue)) {
        Some(number) => {
            if let Some((_, known)) = positions.get_mut(number) {
                *known = position.max(*known);
            }
            number
        }
        None => {
            positions.push((queue.clone(), position));
            positions.len() - 1
        }
    }
}
