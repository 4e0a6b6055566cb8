//! The handle of a copy: poll it, wait for it, await it, or hand the result to a stream without waiting.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::device::stream::Stream;
use crate::error::{CopyError, Error, Result};
use crate::in_flight::after_cancel::InFlight;
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::report::CopyReport;
use crate::runtime::trace::span;
use crate::runtime::{fork, lent_collector};
use crate::tensor::storage::Storage;
use crate::transfer::background::BackgroundCopy;
use crate::tree::tensor_tree::TensorTree;

/// A copy in progress, which gives the structure back with its tensors on the target.
///
/// Dropping, forgetting or aborting it neither blocks nor frees anything that is in use: the copy owns that, not the
/// handle. What was not submitted yet when the handle is dropped is not submitted any more.
#[must_use = "the structure comes out of the handle"]
pub struct CopyHandle<S> {
    pub(crate) value: Option<S>,
    /// The structure whose memory is filled, where that was there before.
    pub(crate) into: Option<Box<S>>,
    /// Owns the sources. Released as soon as they are not needed any more.
    pub(crate) job: Option<Arc<Job>>,
    /// What the workers carry out, if there is something and a thread that waits can help.
    pub(crate) workers: Option<Arc<BackgroundCopy>>,
    /// The memory of the structure's tensors, once the copies are in it.
    pub(crate) placed: SmallVec<[Storage; 1]>,
    pub(crate) completion: Arc<Completion>,
    /// Keeps memory that the program has lent, once the copy has released it.
    keeper: Arc<Completion>,
    pub(crate) planned: CopyReport,
    pub(crate) polled: bool,
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
#[non_exhaustive]
pub struct Cancelled<S> {
    /// The structure, with its sources as long as nobody has waited for or polled the handle, else perhaps with its
    /// copies, which are unfilled until the device is done with them. `None` if it was given out already.
    pub value: Option<S>,
    /// The structure that [`start_copy_into`](crate::start_copy_into) was to fill; if that had begun and was not done, its tensors
    /// are [`CopyFailed`](Error::CopyFailed) until another copy has filled them, which can start once nothing is
    /// [in flight](Self::in_flight).
    pub into: Option<S>,
    /// What was submitted by then ([`copied_bytes`](CopyReport::copied_bytes) and others). The device still runs that, and
    /// what it uses stays owned until it is done.
    pub report: CopyReport,
    /// Tells when that is so: from then on the memory of both structures can be written, and filled by another copy.
    pub in_flight: InFlight,
}

impl<S: TensorTree> CopyHandle<S> {
    pub(crate) fn new(
        value: S,
        job: Arc<Job>,
        workers: Option<Arc<BackgroundCopy>>,
        planned: CopyReport,
    ) -> Self {
        let keeper = job.leaves.keeper().clone();
        keeper.retired.join();
        job.note_memory();
        Self {
            keeper,
            value: Some(value),
            into: None,
            completion: job.completion.clone(),
            job: Some(job),
            workers,
            placed: SmallVec::new(),
            planned,
            polled: false,
        }
    }

    /// A copy of what was taken out of `value` into what was taken out of `into`.
    pub(crate) fn filling(
        value: S,
        into: S,
        job: Arc<Job>,
        workers: Option<Arc<BackgroundCopy>>,
        planned: CopyReport,
    ) -> Self {
        let mut handle = Self::new(value, job, workers, planned);
        handle.into = Some(Box::new(into));
        handle
    }

    /// Blocks until the copy is done. Where workers carry it out, this thread does its share of that, unless the copy has a
    /// deadline, is paced, or is one of several ([`start_copy_to_all`](crate::start_copy_to_all)).
    ///
    /// # Errors
    ///
    /// What made the copy fail. The error gives the structure back if its sources are still there: they are let go of
    /// while the device copies the last pieces. A copy into held memory that was still being filled may find only now that somebody else holds that
    /// ([`UnsuitedTensor`](Error::UnsuitedTensor) with [`NotWritable`](Error::NotWritable)).
    ///
    /// # Panics
    ///
    /// If the destructor of an owner does ([`Tensor::from_owner`](crate::Tensor::from_owner) and others) that the copy was the last to use:
    /// this thread runs it. The copies of the structure are dropped then. Owners of memory that was page-locked
    /// ([`Device::register`](crate::Device::register)) go on threads of transship's own, where a panic is reported and ends nothing; so
    /// do all of them if the handle is awaited or dropped. And if [`visit`](TensorTree::visit) of the structure panics, which is dropped then.
    pub fn wait(mut self) -> Result<S, CopyError<S>> {
        self.and_drop_sources(|handle| {
            handle.wait_for(None)?;
            handle.finish_done()
        })
    }

    /// As [`wait`](Self::wait), with the report of the whole copy.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_with_report(mut self) -> Result<(S, CopyReport), CopyError<S>> {
        self.and_drop_sources(|handle| {
            handle.wait_for(None)?;
            let value = handle.finish_done()?;
            Ok((value, handle.report()))
        })
    }

    /// Blocks until the copy is done or `timeout` is over; then the handle comes back.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<TimedWait<S>, CopyError<S>> {
        let done = self.and_drop_sources(|handle| match handle.wait_for(Some(timeout))? {
            true => handle.finish_done().map(Some),
            false => Ok(None),
        })?;
        Ok(done.map_or_else(|| TimedWait::Pending(self), TimedWait::Done))
    }

    /// Makes `stream` wait for the copy, on the device, and hands the structure out at once: work submitted to `stream`
    /// from now on finds its tensors filled. Blocks until the last piece is submitted, and stages a part of what is not. That waits for a device where the copy is larger than the
    /// [staging budget](crate::Device::set_staging_budget), goes by way of the host, or waits for room in a [budget](crate::Device::set_memory_budget).
    ///
    /// The tensors carry their fence: reading them on the host before it is reached is [`Error::NotReady`], and copying
    /// them waits in stream order. Their memory is not reused before the work of `stream` is done.
    ///
    /// # Errors
    ///
    /// [`Error::HostTarget`] if the target is the host and the structure has tensors, [`Error::Unsupported`] if `stream` is of another driver; as
    /// [`wait`](Self::wait) otherwise.
    pub fn wait_on(mut self, stream: &Stream) -> Result<S, CopyError<S>> {
        let span = span!("wait_on", copy = self.number(), stream = stream.queue().number());
        let _timed = self.completion.metrics.timed("wait_on");
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
        span.end();
        // Without a reactor thread the memory stays in its queue until the next copy settles it.
        let _ = self.completion.leave_to_reactor();
        Ok(value)
    }

    /// Stops the copy and gives the structure back at once: what is not submitted yet is not submitted any more. Never
    /// blocks. Sources that the device still reads cannot be written before it is done with them, nor can what it still fills be
    /// copied into again: [`Cancelled::in_flight`] tells when that is over.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn cancel(mut self) -> Cancelled<S> {
        if fork::is_child() {
            let (report, in_flight) = (self.planned.clone(), InFlight::until(&self.completion));
            let (value, into) = self.give_up(Error::Forked).into_both();
            return Cancelled { value, into, report, in_flight };
        }
        self.and_drop_sources(|handle| {
            handle.completion.abandon();
            let in_flight = handle.in_flight();
            let report = handle.report();
            let (value, into) = match handle.job.is_some() || handle.into.is_some() {
                true => handle.give_up(Error::Cancelled).into_both(),
                false => (handle.value.take(), None),
            };
            handle.placed.clear();
            Cancelled { value, into, report, in_flight }
        })
    }

    /// Runs `work`, and then drops on this thread what the program has lent to this copy and the copy has released. Drops nothing
    /// of other copies.
    fn and_drop_sources<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let (result, mut lent) = lent_collector::collect(|| work(self));
        lent.append(self.keeper.retired.take());
        lent.drop_here();
        result
    }
}

impl<S> CopyHandle<S> {
    /// Whether the copy is done. Asks the device; never blocks. The handle keeps the sources until it is waited for, awaited or dropped: nobody can
    /// write them before, also where this says that the copy is done.
    ///
    /// # Errors
    ///
    /// What made the copy fail.
    pub fn is_ready(&self) -> Result<bool> {
        self.completion.is_done()
    }

    /// Tells when nothing of the copy is in flight any more: after [`wait_on`](Self::wait_on), when the copy is done; after a failure, when its
    /// memory can be used again. To be asked for before either. It is over once this handle is used up or dropped, and the device is done.
    pub fn in_flight(&self) -> InFlight {
        match &self.job {
            Some(job) => job.left_in_flight.watch(&self.completion),
            None => InFlight::until(&self.completion),
        }
    }

    /// Ends what no worker has begun. For handles that give nothing out any more.
    pub(crate) fn call_off(&mut self) {
        if let Some(workers) = self.workers.take()
            && !fork::is_child()
        {
            workers.call_off();
        }
    }

    /// What the copy did so far.
    pub fn report(&self) -> CopyReport {
        match &self.job {
            None => self.completion.metrics.complete(&self.planned),
            Some(job) => {
                let mut planned = self.planned.clone();
                job.report(&mut planned);
                self.completion.metrics.complete(&planned)
            }
        }
    }
}

impl<S> Drop for CopyHandle<S> {
    fn drop(&mut self) {
        // A structure that was handed out is wanted. `wait_on`, which hands it out, has its copy watched.
        if self.value.is_some() && !matches!(self.completion.is_done(), Ok(true) | Err(_)) {
            self.completion.abandon();
        }
        if self.polled {
            self.completion.forget_waker();
        }
        // Memory that it releases may be lent by the program, whose destructors may take long: other threads drop that.
        let (_, lent) = lent_collector::collect(|| {
            self.call_off();
            self.job = None;
        });
        drop(lent);
        self.keeper.retired.leave();
    }
}

impl<S> fmt::Debug for CopyHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyHandle({} tensors to {})", self.planned.leaves, self.planned.target)
    }
}
