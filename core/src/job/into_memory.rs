//! Copies into memory that the caller holds: planned by where its tensors lie, and nothing is allocated.

use std::sync::Arc;

use crate::alignment::Alignment;
use crate::backend::{HostSide, MemoryKind};
use crate::copy::pairing::Paired;
use crate::copy::take::Leaves;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::{Destination, Destinations, Job};
use crate::job::options::CopyOptions;
use crate::job::path::{Flow, Way};
use crate::job::preallocated::Held;
use crate::plan::plan::Plan;
use crate::plan::preallocated::Region;
use crate::staging::block::host_side;
use crate::tree::visitor::TensorTree;

impl Job {
    /// Plans the copy of what was taken and checked; gives it back on an error.
    pub(crate) fn into_memory(
        Paired { leaves, mut held, survey }: Paired<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves, Held)>> {
        if let Err(error) = Held::check_sources(&leaves, survey.leaves(), survey.granularity()) {
            return Err(Box::new((error, leaves, held)));
        }
        let planned = Plan::into_memory(survey.leaves(), &held.spots(), survey.granularity());
        let (plan, regions) = match planned {
            Ok(planned) => planned,
            Err(error) => return Err(Box::new((error.on(survey.target().id()), leaves, held))),
        };
        let mut job = match Self::by_plan(plan, leaves, survey, options, completion) {
            Ok(job) => job,
            Err(failed) => {
                let (error, leaves) = *failed;
                return Err(Box::new((error, leaves, held)));
            }
        };
        held.note_predecessors(&mut job.before);
        held.set_regions(regions);
        job.held = Some(held);
        Ok(job)
    }

    /// Whether it fills memory of the caller.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Whether results in ordinary memory come down through staging blocks, and not by copies that wait for the device. What
    /// is copied in whole granules would not end where the memory of the caller does.
    pub(crate) fn lands(&self) -> bool {
        self.pinned || (self.held.is_some() && self.granularity > Alignment::ONE)
    }

    /// Gives the memory back as it was before a copy that has not begun.
    pub(crate) fn give_up_held<S: TensorTree>(self, into: &mut S) {
        let Self { leaves, destinations, held, .. } = self;
        drop(destinations);
        if let Some(mut held) = held {
            held.restore_fillers();
            // It stops where the structure shows other tensors than it did before.
            let _ = held.give_back(into, leaves.copy());
        }
    }

    /// Claims the memory: until the copy is done nobody reads it, and if it fails, not before another one has filled it.
    pub(crate) fn begin_to_fill(&self, held: &Held) -> Result<Destinations> {
        let uses = held.claim(&self.completion)?;
        let granularity = self.target.limits().copy_granularity;
        let place = |region: &Region| {
            let storage = held.storage(region.memory)?;
            Some(Destination { storage, offset: region.offset, bytes: granularity.round_up(region.bytes)? })
        };
        let destinations = Destinations {
            chunks: held.regions().iter().filter_map(place).collect(),
            empty: None,
            pageable: false,
            open: smallvec::SmallVec::new(),
            uses,
        };
        for flow in self.flows.iter().filter(|flow| flow.on_callers_stream && !self.target.is_host()) {
            self.chunks_of(flow, &destinations).for_each(|to| to.storage.hand_to(flow.lane.handed()));
        }
        let mut downloads = self.flows.iter().filter(|flow| matches!(flow.way, Way::Download));
        let pageable = downloads.any(|flow| {
            let source = flow.origin.device();
            !self
                .chunks_of(flow, &destinations)
                .all(|to| source.is_some_and(|source| to.is_reached_by(source)))
        });
        Ok(Destinations { pageable, ..destinations })
    }

    fn chunks_of<'a>(
        &'a self,
        flow: &Flow,
        destinations: &'a Destinations,
    ) -> impl Iterator<Item = &'a Destination> {
        let numbered = self.plan.numbered_chunks_of(flow.source);
        numbered.filter_map(|(number, _)| destinations.chunks.get(number))
    }
}

impl Destination {
    /// Whether copies down from `source` write it asynchronously, and nothing beside it.
    fn is_reached_by(&self, source: &Device) -> bool {
        let limits = source.limits();
        let in_its_block =
            || matches!(host_side(self.storage.buffer(), 0, source.backend()), HostSide::Staging(..));
        limits.copy_granularity == Alignment::ONE
            && !limits.mapped_staging
            && self.storage.kind() == MemoryKind::Pinned
            && in_its_block()
    }
}
