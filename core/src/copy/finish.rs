//! Puts the structure together again, with the copies or with its sources, and helps workers meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::copy::handle::CopyHandle;
use crate::copy::{pairing, put_callers_memory, take_and_put};
use crate::device::stream::Stream;
use crate::error::{CopyError, Error, Result};
use crate::job::job::Job;
use crate::runtime::backoff::Backoff;
use crate::runtime::fork;
use crate::runtime::sync::Instant;
use crate::runtime::trace::span;
use crate::tensor::storage::Storage;
use crate::tree::tensor_tree::TensorTree;

impl<S: TensorTree> CopyHandle<S> {
    pub(crate) fn hand_to(&mut self, stream: &Stream) -> Result<()> {
        if self.planned.target.is_host() {
            // Memory of the caller without a tensor is on no device: the host stands for it.
            return if self.planned.leaves == 0 { Ok(()) } else { Err(Error::HostTarget) };
        }
        // What a lost stream is handed is leaked.
        stream.queue().check()?;
        self.completion.wait_submitted(None)?;
        for (queue, position) in self.completion.positions() {
            queue.precede(stream.backend_stream(), position)?;
        }
        if let Some(job) = &self.job {
            self.placed = job.results();
        }
        for storage in &self.placed {
            storage.hand_to(stream.queue().handed());
        }
        Ok(())
    }

    /// Waits. While the device copies, puts the structure together and releases the sources.
    pub(crate) fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, CopyError<S>> {
        let _span = span!("wait", copy = self.number());
        let _timed = self.completion.metrics.timed("wait");
        if timeout.is_none() {
            self.help()?;
        }
        let sleeps = timeout.is_none() && self.is_one_of_many();
        self.rebuild()?;
        if sleeps {
            self.sleep_until_done();
        }
        match self.completion.wait(timeout) {
            Ok(done) => Ok(done),
            Err(error) => Err(self.give_up(error)),
        }
    }

    /// The number of the copy in its spans, as long as it has its sources.
    #[cfg(feature = "tracing")]
    pub(crate) fn number(&self) -> Option<u32> {
        self.job.as_ref().map(|job| job.leaves.copy())
    }

    /// Whether workers carry it out and many copies share the same staging. Not in a child, where a thread of the parent may have the lock of
    /// the staging for ever.
    fn is_one_of_many(&self) -> bool {
        let is_shared = |job: &Arc<Job>| job.target.staging().is_shared_by_many();
        self.workers.is_some() && !fork::is_child() && self.job.as_ref().is_some_and(is_shared)
    }

    /// Polls now and then until the copy is over, if all of it is submitted: where many threads copy, they need the processor.
    fn sleep_until_done(&self) {
        let begin = Instant::now();
        while self.completion.is_submitted() && matches!(self.completion.is_done(), Ok(false)) {
            Backoff::AMONG_MANY.sleep(begin);
        }
    }

    /// Helps the workers until every piece is submitted. For threads that would wait for that without a limit. Segments are
    /// carried as workers carry them: no code of the program runs meanwhile, since that may wait for this copy.
    pub(crate) fn help(&mut self) -> Result<(), CopyError<S>> {
        if self.completion.is_submitted() {
            return Ok(());
        }
        fork::check().map_err(|error| self.give_up(error))?;
        // A copy that is paced or has a deadline is left to the workers.
        let is_free =
            self.job.as_ref().is_some_and(|job| job.pace.is_none()) && !self.completion.has_deadline();
        if let Some(copy) = self.workers.as_ref().filter(|_| is_free).and_then(|workers| workers.join()) {
            copy.work();
            self.completion.await_last_segments();
        }
        Ok(())
    }

    /// Puts the copies in and releases the sources, once every piece is submitted.
    pub(crate) fn rebuild(&mut self) -> Result<(), CopyError<S>> {
        if !self.completion.is_done_cached() {
            fork::check().map_err(|error| self.give_up(error))?;
        }
        if !self.completion.is_accepted() {
            return Ok(());
        }
        let Some(job) = &self.job else { return Ok(()) };
        let left = job.left_to_unstage();
        if left.is_some() && !self.completion.is_done_cached() {
            return Ok(());
        }
        let _span = span!("finish", copy = job.leaves.copy());
        let _timed = self.completion.metrics.timed("finish");
        if let Some(unstaging) = left {
            // SAFETY: the copy is done (`is_done_cached`), and only `place`, below, puts its results into the structure.
            if let Err(error) = unsafe { unstaging.unstage() } {
                return Err(self.give_up(error));
            }
        }
        self.place()?;
        if let Some(job) = self.job.take() {
            job.note_memory();
            self.placed = job.results();
            job.report(&mut self.planned);
        }
        Ok(())
    }

    /// Puts the copies in.
    fn place(&mut self) -> Result<(), CopyError<S>> {
        let (Some(job), Some(value)) = (&self.job, &mut self.value) else { return Ok(()) };
        let placed = match job.held() {
            Some(held) => put_callers_memory::place(held, value, job.leaves.copy()),
            None => take_and_put::place(value, job),
        };
        let Err(error) = placed else { return Ok(()) };
        job.report(&mut self.planned);
        // Some of its tensors have no memory.
        (self.job, self.value) = (None, None);
        self.completion.abandon();
        Err(self.failed(error, None))
    }

    /// The structure of a copy that is done. A tensor that stayed where it is may have failed to be filled meanwhile.
    pub(crate) fn finish_done(&mut self) -> Result<S, CopyError<S>> {
        self.rebuild()?;
        match self.placed.iter().try_for_each(Storage::check_ready) {
            Ok(()) => self.finish(),
            Err(error) if self.into.is_some() => Err(self.give_up(error)),
            Err(error) => {
                let value = self.value.take();
                Err(self.failed(error, value))
            }
        }
    }

    pub(crate) fn finish(&mut self) -> Result<S, CopyError<S>> {
        self.rebuild()?;
        self.note_memory();
        self.placed.clear();
        if self.job.is_some() {
            // It has failed since the last look.
            let error = self.completion.is_done().err().unwrap_or(Error::NotReady);
            return Err(self.give_up(error));
        }
        // Its memory is in the structure that comes out.
        self.into = None;
        self.value.take().ok_or_else(|| self.failed(Error::Finished, None))
    }

    /// Writes down what is in use at its end, if it goes into a timeline.
    fn note_memory(&self) {
        if let Some(recorder) = self.completion.metrics.recorder()
            && let Some(device) = self.placed.first().and_then(Storage::device)
        {
            device.note_memory(recorder);
        }
    }

    fn failed(&self, error: Error, value: Option<S>) -> CopyError<S> {
        CopyError::new(error, value).of_copy_to(self.planned.target)
    }

    /// The structure with its sources, if they are still there.
    pub(crate) fn give_up(&mut self, error: Error) -> CopyError<S> {
        if fork::is_child() {
            // Workers of the parent may have been in the middle of the copy.
            std::mem::forget((self.value.take(), self.into.take(), self.job.take(), self.workers.take()));
            return self.failed(error, None);
        }
        self.call_off();
        if let Some(into) = self.into.take() {
            return self.give_up_both(error, *into);
        }
        let value = self.job.take().and_then(|job| {
            job.report(&mut self.planned);
            let mut value = self.value.take()?;
            take_and_put::restore(&job.leaves, &mut value);
            Some(value)
        });
        self.failed(error, value)
    }

    /// Both structures of a copy into memory of the caller. Unless the copy is done it fails now: nobody may read memory that is
    /// being filled, or that was filled in part.
    fn give_up_both(&mut self, error: Error, mut into: S) -> CopyError<S> {
        self.completion.fail(error.clone());
        self.placed.clear();
        let Some(job) = self.job.take() else {
            // The sources are gone, and the memory is in the structure that was to come out.
            return self.failed(error, None).with_destination(self.value.take());
        };
        job.report(&mut self.planned);
        let mut value = self.value.take();
        if let Some(value) = &mut value {
            take_and_put::restore(&job.leaves, value);
        }
        let filled = match job.left_to_unstage() {
            // SAFETY: the copy is done, and only `give_back`, below, puts its results into a structure: the job is still
            // here, so `place` has not run.
            Some(unstaging) if self.completion.is_done_cached() => unsafe { unstaging.unstage() },
            _ => Ok(()),
        };
        let is_back = job
            .held()
            .is_some_and(|held| put_callers_memory::give_back(held, &mut into, job.leaves.copy()).is_ok());
        let mut into = Some(into).filter(|_| filled.is_ok() && is_back);
        let error = match (&mut value, &mut into) {
            (Some(value), Some(into)) => pairing::located(error, value, into),
            _ => error,
        };
        self.failed(error, value).with_destination(into)
    }
}
