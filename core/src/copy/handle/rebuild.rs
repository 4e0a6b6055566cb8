//! Putting the structure together, with the copies or again with its sources, and helping workers on the way.

use std::sync::Arc;
use std::time::Duration;

use super::CopyHandle;
use crate::copy::crew::Crew;
use crate::copy::leaves;
use crate::copy::muster::Muster;
use crate::storage::Storage;
use crate::{CopyError, Error, Result, Stream, TensorTree};

impl<S: TensorTree> CopyHandle<S> {
    pub(super) fn hand_to(&mut self, stream: &Stream) -> Result<()> {
        if self.planned.target.is_host() {
            return Err(Error::HostTarget);
        }
        self.completion.wait_submitted(None)?;
        for (lane, position) in self.completion.positions() {
            lane.precede(stream.backend_stream(), position)?;
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
    pub(super) fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, CopyError<S>> {
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
    pub(super) fn help(&mut self) -> Result<(), CopyError<S>> {
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
    pub(super) fn rebuild(&mut self) -> Result<(), CopyError<S>> {
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
    pub(super) fn finish_done(&mut self) -> Result<S, CopyError<S>> {
        self.rebuild()?;
        match self.placed.iter().try_for_each(Storage::check_ready) {
            Ok(()) => self.finish(),
            Err(error) if self.from.is_some() => Err(self.give_up(error)),
            Err(error) => Err(CopyError::new(error, self.value.take())),
        }
    }

    pub(super) fn finish(&mut self) -> Result<S, CopyError<S>> {
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
    pub(super) fn give_up(&mut self, error: Error) -> CopyError<S> {
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

/// Units to carry, whatever becomes of the structure meanwhile: who has begun a copy may be the only one who knows of it.
struct Share(Arc<Crew>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.work();
    }
}
