//! Copies of the same bytes to several devices that read the same staging blocks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::crew;
use crate::copy::completion::Completion;
use crate::copy::flow::{Flow, Way};
use crate::copy::job::{HostResults, Job};
use crate::copy::run::{self, Diligence, Refusal};
use crate::copy::start;
use crate::copy::transfer::{self, Filled, Supply};
use crate::copy::unit::{Unit, units};
use crate::{CopyOptions, Device, Error, Result};

/// Copies with one plan. What fails for one of them leaves the others alone.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) jobs: SmallVec<[Arc<Job>; 2]>,
}

impl Group {
    pub(super) fn of(job: Arc<Job>) -> Self {
        Self { jobs: smallvec![job] }
    }

    /// Whether a copy to `target` can share with these.
    pub(super) fn can_take(&self, target: &Device) -> bool {
        self.jobs.iter().all(|job| job.can_share_with(target))
    }

    /// Adds the copy to a device that it [can take](Self::can_take).
    pub(super) fn add(
        &mut self,
        target: &Device,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Arc<Job>> {
        let known = self.jobs.first().ok_or(Error::NotReady)?;
        let job = Arc::new(known.to_another(target, options, completion)?);
        self.jobs.push(job.clone());
        Ok(job)
    }

    /// Carries all out, at once or by workers. Fails, and with it each of them, if none can be.
    pub(super) fn launch(&self) -> Result<()> {
        let launched = match &*self.jobs {
            [only] => start::launch(
                only,
                |diligence| run::inline(only, diligence),
                || run::in_background(only.clone()),
            ),
            [first, ..] => {
                start::launch(first, |diligence| self.inline(diligence), || crew::in_background(self.clone()))
            }
            [] => Ok(()),
        };
        launched.inspect_err(|error| self.jobs.iter().for_each(|job| job.completion.fail(error.clone())))
    }

    /// As [`run::inline`].
    fn inline(&self, diligence: Diligence) -> Result<(), Refusal> {
        let Some(first) = self.jobs.first() else { return Ok(()) };
        run::weigh(first, diligence)?;
        for job in &self.jobs {
            match run::order_behind_predecessors(job, false) {
                Ok(true) => {}
                Ok(false) => return Err(Refusal::NeedsWorker("a source is still being filled")),
                Err(error) => job.completion.fail(error),
            }
        }
        if let Some(lead) = self.allocate() {
            let units = units(lead);
            let blocks = run::take_blocks(lead, &units, diligence)?;
            for (unit, taken) in units.iter().zip(blocks) {
                self.carry(lead, unit, Supply::Taken(taken));
            }
        }
        self.running().for_each(|job| job.completion.submitted());
        self.common_error().map_or(Ok(()), |error| Err(Refusal::Failed(error)))
    }

    /// Allocates what the copies fill; the first of them that has its memory, whose pool serves all.
    pub(super) fn allocate(&self) -> Option<&Arc<Job>> {
        self.each(|job| job.allocate(HostResults::Grow).map(drop));
        let lead = self.jobs.iter().find(|job| job.destinations.get().is_some())?;
        for flow in self.jobs.iter().flat_map(|job| &job.flows) {
            lead.target.staging().serve(&flow.lane);
        }
        Some(lead)
    }

    /// Carries one unit to all, staged once.
    pub(super) fn carry(&self, lead: &Job, unit: &Unit, supply: Supply) {
        if self.running().next().is_none() {
            return;
        }
        let is_staged = |flow: &Flow| matches!(flow.way, Way::Staged);
        if !lead.flows.get(unit.flow).is_some_and(is_staged) {
            // Pinned sources, which each device reads where they lie.
            return self.each(|job| transfer::carry(job, unit, Supply::Now, &mut |_| Err(Error::NotReady)));
        }
        // The block goes back to its pool when the last of the lanes that read it is through: each of them holds it.
        let outlet = &mut |filled: Filled| {
            let shared = filled.share(lead);
            self.each(|job| transfer::copy_up_shared(job, &shared));
            Ok(())
        };
        if let Err(error) = caught(|| transfer::carry(lead, unit, supply, outlet)) {
            self.each(|_| Err(error.clone()));
        }
    }

    /// Does the same for each copy that still runs; those that it fails for fail.
    pub(super) fn each(&self, step: impl Fn(&Job) -> Result<()>) {
        for job in self.running() {
            if let Err(error) = caught(|| step(job)) {
                job.completion.fail(error);
            }
        }
    }

    /// The copies that have neither failed nor been abandoned.
    fn running(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.iter().filter(|job| !job.completion.is_submitted() && !job.completion.is_abandoned())
    }

    /// Why the first of them has failed, if all have.
    fn common_error(&self) -> Option<Error> {
        let all_failed = self.jobs.iter().all(|job| !job.completion.is_accepted());
        let first = self.jobs.first().filter(|_| all_failed)?;
        first.completion.is_done().err()
    }
}

/// What `work` returns; an error if it panics.
pub(super) fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(run::panicked(&*panic)))
}
