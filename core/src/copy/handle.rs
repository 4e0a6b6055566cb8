//! The handle of a copy: poll it, wait for it, await it, or hand the result to a stream without waiting.

mod poll;
mod rebuild;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::copy::completion::Completion;
use crate::copy::figures::CopyReport;
use crate::copy::job::Job;
use crate::storage::Storage;
use crate::{CopyError, Error, Result, Stream, TensorTree};

pub use poll::PendingCopy;

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
#[non_exhaustive]
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
    /// deadline, is paced, or is one of several ([`start_copy_to_all`](crate::start_copy_to_all)).
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
