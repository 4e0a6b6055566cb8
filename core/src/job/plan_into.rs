//! Copies into memory that the caller holds: planned by where its tensors lie, and nothing is allocated.

use std::sync::Arc;

use crate::alignment::Alignment;
use crate::backend::host::foreign_memory::WritableMemory;
use crate::backend::{HostSide, MemoryKind};
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::callers_memory::Preallocated;
use crate::job::chunk_memory::{Destination, Destinations};
use crate::job::job::Job;
use crate::job::leaves::Leaves;
use crate::job::locate_leaves::Scan;
use crate::job::options::CopyOptions;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::plan::plan::Plan;
use crate::plan::preallocated::DestinationRange;
use crate::runtime::trace::span;
use crate::staging::block::host_side;
use crate::staging::page_locked::PageLocked;

impl Job {
    /// Plans the copy of what was taken and checked; gives it back on an error.
    pub(crate) fn into_memory(
        Paired { leaves, mut held, mut scan }: Paired<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves, Preallocated)>> {
        let _span = span!("plan");
        if let Err(error) = held.check_sources(&leaves, &scan) {
            return Err(Box::new((error, leaves, held)));
        }
        if held.is_pushed(&scan, options) {
            scan.note_pushed();
        }
        // Kernels of the target write to places with gaps, but do not read what may be opened to nobody.
        let by_kernels = !scan.has_unreached();
        let planned = Plan::into_memory(scan.leaves(), &held.spots(), scan.granularity());
        let (plan, regions) = match planned {
            Ok(planned) => planned,
            Err(error) => return Err(Box::new((error.on(scan.target().id()), leaves, held))),
        };
        let mut job = match Self::by_plan(plan, leaves, scan, options, completion) {
            Ok(job) => job,
            Err(failed) => {
                let (error, leaves) = *failed;
                return Err(Box::new((error, leaves, held)));
            }
        };
        held.note_predecessors(&mut job.before);
        held.set_regions(regions);
        if held.is_strided() && by_kernels {
            held.plan_scattering(job.target.limits());
        }
        job.held = Some(held);
        Ok(job)
    }

    /// Whether it fills memory of the caller.
    pub(crate) fn held(&self) -> Option<&Preallocated> {
        self.held.as_ref()
    }

    /// Whether results in ordinary memory come down through staging blocks, and not by copies that wait for the device. Copies in
    /// whole granules always use blocks for memory of the caller, because they could write beyond its end.
    pub(crate) fn is_unstaged_later(&self) -> bool {
        self.pinned || (self.held.is_some() && self.granularity > Alignment::ONE)
    }

    /// Claims the memory. Nobody reads it until the copy is done, or, if the copy fails, until another one has filled it.
    pub(crate) fn begin_to_fill(&self, held: &Preallocated) -> Result<Destinations> {
        let uses = held.claim(&self.completion)?;
        let granularity = self.target.limits().copy_granularity;
        let place = |region: &DestinationRange| {
            let storage = held.storage(region.memory)?;
            let bytes = granularity.round_up(region.bytes)?;
            let strided = region.strided.and_then(|leaf| held.places(leaf as usize)).map(Arc::new);
            Some(Destination { storage, offset: region.offset, bytes, strided })
        };
        let destinations = Destinations {
            chunks: held.regions().iter().filter_map(place).collect(),
            empty: None,
            pageable: false,
            open: smallvec::SmallVec::new(),
            uses,
        };
        for path in self.paths.iter().filter(|path| path.on_callers_stream && !self.target.is_host()) {
            self.chunks_of(path, &destinations).for_each(|to| to.storage.hand_to(path.queue.handed()));
        }
        let mut downloads = self.paths.iter().filter(|path| matches!(path.kind, PathKind::Download));
        let pageable = downloads.any(|path| {
            let source = path.from.device();
            !self
                .chunks_of(path, &destinations)
                .all(|to| source.is_some_and(|source| to.is_reached_by(source)))
        });
        Ok(Destinations { pageable, ..destinations })
    }

    fn chunks_of<'a>(
        &'a self,
        path: &TransferPath,
        destinations: &'a Destinations,
    ) -> impl Iterator<Item = &'a Destination> {
        let numbered = self.plan.numbered_chunks_of(path.source);
        numbered.filter_map(|(number, _)| destinations.chunks.get(number))
    }
}

impl Destination {
    /// Whether copies down from `source` write it asynchronously, and each in one run: nothing beside it.
    fn is_reached_by(&self, source: &Device) -> bool {
        let (limits, buffer) = (source.limits(), self.storage.buffer());
        let in_its_block = || matches!(host_side(buffer, 0, source.backend()), HostSide::Staging(..));
        let is_registered = || PageLocked::of(buffer).is_some_and(|memory| memory.is_written_by(source.id()));
        let is_lent = || WritableMemory::of(buffer).is_some_and(|memory| memory.is_written_by(source.id()));
        self.strided.is_none()
            && limits.copy_granularity == Alignment::ONE
            && !limits.mapped_staging
            && self.storage.kind() == MemoryKind::Pinned
            && (in_its_block() || is_registered() || is_lent())
    }
}

/// What was taken: the tensors to copy, and the memory to copy them into, in the same order.
pub(crate) struct Paired<'a> {
    pub(crate) leaves: Leaves,
    pub(crate) held: Preallocated,
    pub(crate) scan: Scan<'a>,
}
