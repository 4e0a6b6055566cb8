//! The handle of a copy: poll it, wait for it, await it, or hand the result to a stream without waiting.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use smallvec::SmallVec;

use crate::copy::completion::Completion;
use crate::copy::crew::Crew;
use crate::copy::figures::CopyReport;
use crate::copy::job::Job;
use crate::copy::muster::Muster;
use crate::copy::{leaves, run};
use crate::storage::Storage;
use crate::sync::{Instant, hint};
use crate::{CopyError, Error, Result, Stream, TensorTree};

/// The first poll of a handle looks for so long whether the copy is done: a small one takes about 12 us, and waking a
/// task costs more.
const SPIN_IN_POLL: Duration = Duration::from_micros(15);

/// A copy in progress, which gives the structure back with its tensors on the target.
///
/// Dropping, forgetting or aborting it neither blocks nor frees anything that is in use: the copy owns that, not the
/// handle. What was not submitted yet when the handle is dropped is not submitted any more.
#[must_use = "the structure comes out of the handle"]
pub struct CopyHandle<S> {
    value: Option<S>,
    /// The structure that the tensors came from, where the one that comes out was there before.
    from: Option<Box<S>>,
    /// Owns the sources; let go of as soon as they are not needed any more.
    job: Option<Arc<Job>>,
    /// The memory of the structure's tensors, once the copies are in it.
    placed: SmallVec<[Storage; 1]>,
    /// The copies are in the structure, and not the sources.
    holds_copies: bool,
    completion: Arc<Completion>,
    planned: CopyReport,
    polled: bool,
}

/// What [`CopyHandle::wait_timeout`] found.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each time-out")]
pub enum TimedWait<S> {
    /// The copy is done.
    Done(S),
    /// The time is over; the copy goes on.
    Pending(CopyHandle<S>),
}

/// What [`CopyHandle::cancel`] gives back.
#[derive(Debug)]
pub struct Cancelled<S> {
    /// The structure, with its sources as long as nobody has waited for or polled the handle, else perhaps with its
    /// copies, which are unfilled until the device is done with them. `None` if it was given out already.
    pub value: Option<S>,
    /// The structure that [`start_copy_into`](crate::start_copy_into) was to fill; if that had begun and was not done, its tensors
    /// are [`CopyFailed`](Error::CopyFailed) until another copy has filled them.
    pub into: Option<S>,
    /// What was submitted by then ([`copied_bytes`](CopyReport::copied_bytes) and others). The device still runs that, and
    /// what it uses stays owned until it is done.
    pub report: CopyReport,
}

impl<S: TensorTree> CopyHandle<S> {
    pub(crate) fn new(value: S, job: Arc<Job>, planned: CopyReport) -> Self {
        Self {
            value: Some(value),
            from: None,
            completion: job.completion.clone(),
            job: Some(job),
            placed: SmallVec::new(),
            holds_copies: false,
            planned,
            polled: false,
        }
    }

    /// A copy of what was taken out of `from` into what was taken out of `into`.
    pub(crate) fn filling(into: S, from: S, job: Arc<Job>, planned: CopyReport) -> Self {
        let mut handle = Self::new(into, job, planned);
        handle.from = Some(Box::new(from));
        handle
    }

    /// Blocks until the copy is done. Where workers carry it out, this thread does its share of that, unless the copy has a
    /// deadline or is paced.
    ///
    /// # Errors
    ///
    /// What made the copy fail. The error gives the structure back if its sources are still there: they are let go of
    /// while the device copies the last pieces.
    pub fn wait(mut self) -> Result<S, CopyError<S>> {
        self.wait_for(None)?;
        self.finish_done()
    }

    /// As [`wait`](Self::wait), with the report of the whole copy.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_with_report(mut self) -> Result<(S, CopyReport), CopyError<S>> {
        self.wait_for(None)?;
        let value = self.finish_done()?;
        Ok((value, self.report()))
    }

    /// Blocks until the copy is done or `timeout` is over; then the handle comes back.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<TimedWait<S>, CopyError<S>> {
        if self.wait_for(Some(timeout))? {
            self.finish_done().map(TimedWait::Done)
        } else {
            Ok(TimedWait::Pending(self))
        }
    }

    /// Makes `stream` wait for the copy, on the device, and hands the structure out at once: work submitted to `stream`
    /// from now on finds its tensors filled. Blocks at most until the last piece is submitted, never for a device.
    ///
    /// The tensors carry their fence: reading them on the host before it is reached is [`Error::NotReady`], and copying
    /// them waits in stream order. Their memory is not reused before the work of `stream` is done.
    ///
    /// # Errors
    ///
    /// [`Error::HostTarget`] if the target is the host, [`Error::Unsupported`] if `stream` is of another driver; as
    /// [`wait`](Self::wait) otherwise.
    pub fn wait_on(mut self, stream: &Stream) -> Result<S, CopyError<S>> {
        self.help()?;
        match self.hand_to(stream) {
            Ok(()) => {}
            Err(error) => {
                // The copy itself may go on.
                self.completion.abandon();
                return Err(self.give_up(error));
            }
        }
        let value = self.finish()?;
        // Without a reactor thread the memory stays in its lane until the next copy settles it.
        let _ = self.completion.leave_to_reactor();
        Ok(value)
    }

    /// Stops the copy and gives the structure back at once: what is not submitted yet is not submitted any more. Never
    /// blocks. Sources that the device still reads cannot be written before it is done with them.
    pub fn cancel(mut self) -> Cancelled<S> {
        self.completion.abandon();
        let report = self.report();
        let (value, into) = match self.job.is_some() || self.from.is_some() {
            true => self.give_up(Error::Cancelled).into_both(),
            false => (self.value.take(), None),
        };
        self.placed.clear();
        Cancelled { value, into, report }
    }

    fn hand_to(&mut self, stream: &Stream) -> Result<()> {
        if self.planned.target.is_host() {
            return Err(Error::HostTarget);
        }
        self.completion.wait_submitted(None)?;
        for (lane, position) in self.completion.positions() {
            run::wait_unless_same(stream.backend_stream(), lane.stream(), position)?;
        }
        if let Some(job) = &self.job {
            self.placed = job.results();
        }
        for storage in &self.placed {
            storage.record_stream(stream.backend_stream());
        }
        Ok(())
    }

    /// Waits, using the time of the device to put the structure together and to let go of the sources.
    fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, CopyError<S>> {
        if timeout.is_none() {
            self.help()?;
        }
        self.rebuild()?;
        match self.completion.wait(timeout) {
            Ok(done) => Ok(done),
            Err(error) => Err(self.give_up(error)),
        }
    }

    /// Does what there is to do until every piece is submitted: for those who would wait for that without a limit. The
    /// structure is put together while workers wake up, and then units are carried like theirs.
    fn help(&mut self) -> Result<(), CopyError<S>> {
        if self.completion.is_submitted() {
            return Ok(());
        }
        let muster = self.job.as_ref().and_then(|job| job.helped_by_waiting());
        if let Some(crew) = muster.and_then(Muster::join) {
            let share = Share(crew);
            self.place()?;
            drop(share);
            self.completion.await_last_units();
        }
        Ok(())
    }

    /// Puts the copies in and lets go of the sources, once every piece is submitted.
    fn rebuild(&mut self) -> Result<(), CopyError<S>> {
        if !self.completion.is_accepted() {
            return Ok(());
        }
        let Some(job) = &self.job else { return Ok(()) };
        if let Some(landings) = job.left_to_land() {
            if !self.completion.is_done_cached() {
                return Ok(());
            }
            // SAFETY: it is done, and its results are not in the structure yet: nobody helps where results are landed here.
            if let Err(error) = unsafe { landings.land() } {
                return Err(self.give_up(error));
            }
        }
        self.place()?;
        if let Some(job) = self.job.take() {
            self.placed = job.results();
            job.report(&mut self.planned);
        }
        Ok(())
    }

    /// Puts the copies in, unless they are in.
    fn place(&mut self) -> Result<(), CopyError<S>> {
        let (Some(job), Some(value)) = (&self.job, &mut self.value) else { return Ok(()) };
        if self.holds_copies {
            return Ok(());
        }
        let placed = match job.held() {
            Some(held) => held.give_back(value),
            None => leaves::place(value, job),
        };
        match placed {
            Ok(()) => {
                self.holds_copies = true;
                Ok(())
            }
            Err(error) => {
                job.report(&mut self.planned);
                // Some of its tensors have no memory.
                (self.job, self.value) = (None, None);
                self.completion.abandon();
                Err(CopyError::new(error, None))
            }
        }
    }

    /// The structure of a copy that is done. A tensor that stayed where it is may have failed to be filled meanwhile.
    fn finish_done(&mut self) -> Result<S, CopyError<S>> {
        self.rebuild()?;
        match self.placed.iter().try_for_each(Storage::check_ready) {
            Ok(()) => self.finish(),
            Err(error) if self.from.is_some() => Err(self.give_up(error)),
            Err(error) => Err(CopyError::new(error, self.value.take())),
        }
    }

    fn finish(&mut self) -> Result<S, CopyError<S>> {
        self.rebuild()?;
        self.placed.clear();
        if self.job.is_some() {
            // It failed since it was looked at.
            let error = self.completion.is_done().err().unwrap_or(Error::NotReady);
            return Err(self.give_up(error));
        }
        self.value.take().ok_or_else(|| CopyError::new(Error::Taken, None))
    }

    /// The structure with its sources, if they are still there.
    fn give_up(&mut self, error: Error) -> CopyError<S> {
        if let Some(from) = self.from.take() {
            return self.give_up_both(error, *from);
        }
        let value = self.job.take().and_then(|job| {
            job.report(&mut self.planned);
            let mut value = self.value.take()?;
            match self.holds_copies {
                true => leaves::replace(&mut value, &job),
                false => job.give_back(&mut value),
            }
            Some(value)
        });
        CopyError::new(error, value)
    }
}

impl<S: TensorTree> CopyHandle<S> {
    /// Both structures of a copy into memory that was there before. Nobody reads that while it is being filled, nor what did
    /// not get all of it: unless it is done, the copy fails now.
    fn give_up_both(&mut self, error: Error, mut from: S) -> CopyError<S> {
        self.completion.fail(error.clone());
        self.placed.clear();
        let mut into = self.value.take();
        let Some(job) = self.job.take() else {
            return CopyError::new(error, None).with_destination(into);
        };
        job.report(&mut self.planned);
        job.give_back(&mut from);
        let filled = match job.left_to_land() {
            // SAFETY: it is done, and its results are not in the structure yet.
            Some(landings) if self.completion.is_done_cached() => unsafe { landings.land() },
            _ => Ok(()),
        };
        let is_back =
            |into: &mut S| self.holds_copies || job.held().is_some_and(|held| held.give_back(into).is_ok());
        if filled.is_err() || !into.as_mut().is_some_and(is_back) {
            into = None;
        }
        CopyError::new(error, Some(from)).with_destination(into)
    }
}

impl<S> CopyHandle<S> {
    /// Whether the copy is done. Asks the device; never blocks.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    pub fn is_ready(&self) -> Result<bool> {
        self.completion.is_done()
    }

    /// What the copy did so far.
    pub fn report(&self) -> CopyReport {
        match &self.job {
            None => self.completion.figures.complete(&self.planned),
            Some(job) => {
                let mut planned = self.planned.clone();
                job.report(&mut planned);
                self.completion.figures.complete(&planned)
            }
        }
    }

    fn poll_done(
        &mut self,
        context: &mut Context<'_>,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Poll<Result<()>> {
        let first = !std::mem::replace(&mut self.polled, true);
        if first {
            meanwhile(self);
            if self.completion.is_submitted() && self.spin()? {
                return Poll::Ready(Ok(()));
            }
        } else if self.completion.is_done()? {
            return Poll::Ready(Ok(()));
        }
        self.completion.register(context.waker())?;
        // The copy may have ended between the look and the registration.
        if self.completion.is_done()? { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn spin(&self) -> Result<bool> {
        let begin = Instant::now();
        loop {
            if self.completion.is_done()? {
                return Ok(true);
            }
            if begin.elapsed() > SPIN_IN_POLL {
                return Ok(false);
            }
            hint::spin_loop();
        }
    }
}

impl<S: TensorTree> Future for CopyHandle<S> {
    type Output = Result<S, CopyError<S>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut rebuilt = Ok(());
        let done = self.poll_done(context, |handle| rebuilt = handle.rebuild());
        if let Err(error) = rebuilt {
            return Poll::Ready(Err(error));
        }
        match done {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(self.finish_done()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.give_up(error))),
        }
    }
}

/// The handle holds its structure, but never a pin to it.
impl<S> Unpin for CopyHandle<S> {}

/// Units to carry, whatever becomes of the structure meanwhile: who has begun a copy may be the only one who knows of it.
struct Share(Arc<Crew>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.work();
    }
}

impl<S> Drop for CopyHandle<S> {
    fn drop(&mut self) {
        // A structure that was handed out is wanted; what its copy uses is looked after by whoever handed it out.
        if self.value.is_some() && !matches!(self.completion.is_done(), Ok(true) | Err(_)) {
            self.completion.abandon();
        }
    }
}

impl<S> fmt::Debug for CopyHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyHandle({} tensors to {})", self.planned.leaves, self.planned.target)
    }
}

/// A copy in progress, whatever its structure: for lists of copies of different types.
#[async_trait]
pub trait PendingCopy: Send {
    /// Whether the copy is done. Asks the device; never blocks.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    fn is_ready(&self) -> Result<bool>;

    /// What the copy did so far.
    fn report(&self) -> CopyReport;

    /// Waits on any executor until the copy is done; the structure stays in the handle.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    async fn done(&mut self) -> Result<()>;
}

#[async_trait]
impl<S: Send> PendingCopy for CopyHandle<S> {
    fn is_ready(&self) -> Result<bool> {
        Self::is_ready(self)
    }

    fn report(&self) -> CopyReport {
        Self::report(self)
    }

    async fn done(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_done(context, |_| {})).await
    }
}
