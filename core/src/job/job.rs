//! One copy, planned: what goes where, and by which way.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::copy::left_in_flight::Departure;

use crate::alignment::Alignment;
use crate::backend::host::memory::HostMemory;
use crate::backend::{Buffer, Direction};
use crate::copy::take::{Leaf, Leaves};
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::metrics::{CopyReport, Phase};
use crate::job::options::{BackgroundWork, CopyOptions};
use crate::job::path::{Flow, Way};
use crate::job::preallocated::Held;
use crate::job::scan::{Predecessors, Survey};
use crate::job::unstage::Landings;
use crate::plan::plan::{Counts, Plan, PlanOptions, Route};
use crate::runtime::sync::OnceLock;
use crate::tensor::storage::Storage;
use crate::tensor::uses::StreamUses;
use crate::transfer::muster::Muster;

/// A planned copy. Shared by its handle and the workers that carry it out; it owns the sources until they are not
/// needed any more.
pub(crate) struct Job {
    /// Shared with what is in flight: one count for all sources.
    pub(crate) leaves: Arc<Leaves>,
    /// Shared with copies of the same leaves to other devices.
    pub(crate) plan: Arc<Plan>,
    pub(crate) flows: SmallVec<[Flow; 1]>,
    /// Offsets and sizes of copies are multiples of this.
    pub(crate) granularity: Alignment,
    pub(crate) target: Device,
    pub(crate) pinned: bool,
    pub(crate) mapped_results: bool,
    pub(crate) pace: Option<usize>,
    pub(crate) background: BackgroundWork,
    pub(crate) completion: Arc<Completion>,
    /// What the copy must come behind.
    pub(crate) before: Predecessors,
    pub(crate) has_residents: bool,
    /// The memory of the caller that it fills, if it makes none.
    pub(crate) held: Option<Held>,
    pub(crate) destinations: OnceLock<Destinations>,
    /// What must be put into ordinary memory when the copy is done.
    pub(crate) landings: OnceLock<Arc<Landings>>,
    /// Where those meet who carry it out, if that is done in the background.
    pub(crate) muster: OnceLock<Arc<Muster>>,
    /// Dropped last.
    pub(crate) departure: Departure,
}

/// The memory that the copy fills.
pub(crate) struct Destinations {
    /// One for each chunk of the plan.
    pub(crate) chunks: SmallVec<[Destination; 1]>,
    /// For tensors without elements, if there are any.
    pub(crate) empty: Option<Storage>,
    /// Results on the host are in ordinary memory, which devices cannot write asynchronously.
    pub(crate) pageable: bool,
    /// The sources whose chunks the host writes itself, on a device that would need staging otherwise.
    pub(crate) open: SmallVec<[u16; 1]>,
    /// Streams that memory of the caller was handed to.
    pub(crate) uses: StreamUses,
}

/// The memory of one chunk.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) storage: Storage,
    /// Where the chunk begins there, in bytes.
    pub(crate) offset: usize,
    /// How many of its bytes there is room for.
    pub(crate) bytes: usize,
}

impl Destination {
    /// Memory for a chunk alone.
    fn whole(storage: Storage) -> Self {
        Self { offset: 0, bytes: storage.bytes(), storage }
    }

    /// How many of `bytes` bytes at `offset` in the chunk there is room for: that ends with a whole granule of either end, the
    /// memory of the caller with one of the target.
    pub(crate) fn room_for(&self, offset: usize, bytes: usize) -> usize {
        bytes.min(self.bytes.saturating_sub(offset))
    }
}

impl Destinations {
    /// Whether the host writes the chunks of `flow` where they lie, instead of staging them.
    pub(crate) fn are_open(&self, flow: &Flow) -> bool {
        self.open.contains(&flow.source)
    }
}

impl Job {
    /// Plans the copy of `leaves`, which `survey` has seen; gives the leaves back on an error.
    pub(crate) fn new(
        leaves: Leaves,
        survey: Survey<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves)>> {
        let target = survey.target();
        let planning = plan_options(options, &survey);
        match Plan::new(survey.leaves(), &planning, target.limits()) {
            Ok(plan) => Self::by_plan(plan, leaves, survey, options, completion),
            Err(error) => Err(Box::new((error.on(target.id()), leaves))),
        }
    }

    pub(crate) fn by_plan(
        plan: Plan,
        leaves: Leaves,
        mut survey: Survey<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves)>> {
        let target = survey.target();
        let flows = match Flow::all(&plan, survey.origins(), target, options) {
            Ok(flows) => flows,
            Err(error) => return Err(Box::new((error, leaves))),
        };
        Ok(Self {
            leaves: Arc::new(leaves),
            plan: Arc::new(plan),
            flows,
            granularity: survey.granularity(),
            target: target.clone(),
            pinned: options.pinned,
            mapped_results: options.mapped_results,
            pace: options.pace,
            background: options.background,
            landings: OnceLock::new(),
            muster: OnceLock::new(),
            departure: Departure::new(),
            completion,
            has_residents: survey.has_residents(),
            before: survey.take_predecessors(),
            held: None,
            destinations: OnceLock::new(),
        })
    }

    /// Where somebody who waits for the copy can help, unless it is held back or has a time to keep.
    pub(crate) fn helped_by_waiting(&self) -> Option<&Muster> {
        let helps = self.pace.is_none() && !self.completion.has_deadline();
        self.muster.get().filter(|_| helps).map(|muster| &**muster)
    }

    /// Whether workers carry it out and more copies than a few share the same staging.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.muster.get().is_some() && self.target.staging().is_shared_by_many()
    }

    /// For what must be put into ordinary memory when the copy is done.
    pub(crate) fn landings(&self) -> &Arc<Landings> {
        self.landings.get_or_init(|| Landings::of(self.completion.clone()))
    }

    /// The same, if there is anything.
    pub(crate) fn left_to_land(&self) -> Option<&Landings> {
        self.landings.get().map(|landings| &**landings).filter(|landings| !landings.is_empty())
    }

    /// The devices that something is copied from.
    pub(crate) fn source_devices(&self) -> impl Iterator<Item = &Device> {
        self.flows.iter().filter_map(|flow| flow.origin.device())
    }

    /// Whether there is anything to copy.
    pub(crate) fn is_trivial(&self) -> bool {
        self.flows.is_empty()
    }

    /// The memory of the tensors that come out: what the copy fills, and what stays where it is.
    pub(crate) fn results(&self) -> SmallVec<[Storage; 1]> {
        if let Some(held) = &self.held {
            return held.written();
        }
        let filled = self.destinations.get().into_iter().flat_map(|destinations| &destinations.chunks);
        let mut results: SmallVec<[Storage; 1]> = filled.map(|to| to.storage.clone()).collect();
        if self.has_residents {
            let resident =
                |(leaf, route): (&Leaf, &Route)| (*route == Route::Resident).then(|| leaf.storage.clone());
            results.extend(self.leaves.iter().zip(self.plan.routes()).filter_map(resident));
        }
        results
    }

    /// Allocates what the copy fills, unless that is done. `allocate_chunk` makes the results on the host.
    pub(crate) fn allocate(&self, host_results: HostResults) -> Result<Option<&Destinations>> {
        if let Some(known) = self.destinations.get() {
            return Ok(Some(known));
        }
        let made = self.completion.figures.time(Phase::Allocate, || self.make_destinations(host_results))?;
        Ok(made.map(|made| self.destinations.get_or_init(|| made)))
    }

    fn make_destinations(&self, host_results: HostResults) -> Result<Option<Destinations>> {
        if let Some(held) = &self.held {
            return self.begin_to_fill(held).map(Some);
        }
        let fill = || self.completion.clone();
        let target = || (!self.target.is_host()).then(|| self.target.clone());
        let mut chunks = SmallVec::new();
        let mut pageable = false;
        let mut open = SmallVec::new();
        if let Some(blocks) = self.host_blocks(host_results)? {
            match blocks {
                HostBlocks::Pinned(blocks) => {
                    let all = blocks.into_iter().zip(self.plan.chunks());
                    let storages = all.map(|(block, chunk)| Storage::planned(block, None, fill(), chunk));
                    chunks.extend(storages.map(Destination::whole));
                }
                HostBlocks::Missing => return Ok(None),
                HostBlocks::Pageable => {
                    pageable = true;
                    for chunk in self.plan.chunks() {
                        let memory = Box::new(HostMemory::uninit(chunk.bytes)?);
                        self.completion.figures.count_pageable_result(chunk.bytes);
                        chunks.push(Destination::whole(Storage::planned(memory, None, fill(), chunk)));
                    }
                }
            }
        } else {
            for flow in &self.flows {
                let buffers = self.device_buffers(flow)?;
                if are_open(&buffers) {
                    open.push(flow.source);
                }
                for (buffer, chunk) in buffers.into_iter().zip(self.plan.chunks_of(flow.source)) {
                    let storage = Storage::planned(buffer, target(), fill(), chunk);
                    if flow.on_callers_stream {
                        storage.hand_to(flow.lane.handed());
                    }
                    chunks.push(Destination::whole(storage));
                }
            }
        }
        let empty = if self.plan.routes().contains(&Route::Empty) {
            // Workers have no lanes.
            let lane = self.flows.first().map_or_else(|| self.target.up(), |flow| &flow.lane);
            let nothing = self.target.allocate(0, lane)?;
            Some(Storage::new(nothing, target(), None))
        } else {
            None
        };
        Ok(Some(Destinations { chunks, empty, pageable, open, uses: SmallVec::new() }))
    }

    /// Memory for the chunks of `flow`; all of it is open if the host is to write it where it lies, else none.
    fn device_buffers(&self, flow: &Flow) -> Result<Buffers> {
        let target = &self.target;
        let may_open = self.plan.source_span(flow.source) <= target.limits().largest_open;
        let chunks = self.plan.chunks_of(flow.source).iter().map(|chunk| chunk.bytes);
        if !(may_open && matches!(flow.way, Way::Staged)) {
            return chunks.map(|bytes| target.allocate(bytes, &flow.lane)).collect();
        }
        let buffers: Buffers =
            chunks.map(|bytes| target.allocate_open(bytes, &flow.lane)).collect::<Result<_>>()?;
        if !are_open(&buffers) {
            // SAFETY: they are new, and nobody has asked for a window.
            buffers.iter().try_for_each(|buffer| unsafe { buffer.close() })?;
        }
        Ok(buffers)
    }

    /// Gives what the host has written to the device.
    ///
    /// # Safety
    ///
    /// No thread carries a unit of this job any more, or will.
    pub(crate) unsafe fn close(&self) -> Result<()> {
        match self.destinations.get() {
            Some(written) if !written.open.is_empty() => {
                // SAFETY: only units are written through windows, and the program is not shown the buffers before this
                // (`Tensor::buffer`).
                let close =
                    || written.chunks.iter().try_for_each(|chunk| unsafe { chunk.storage.buffer().close() });
                self.completion.figures.time(Phase::Submit, close)
            }
            _ => Ok(()),
        }
    }

    /// Pinned blocks for results that come down from devices; `None` if the copy is of another kind.
    fn host_blocks(&self, host_results: HostResults) -> Result<Option<HostBlocks>> {
        if !self.flows.iter().any(|flow| matches!(flow.way, Way::Download)) {
            return Ok(None);
        }
        // Mapped memory goes with its device, whoever reads it; and a block is filled at once, whatever the pace.
        let unmapped = !self.mapped_results || self.pace.is_some();
        let pinned = self.pinned && !(unmapped && self.flows.iter().any(Flow::fills_at_once));
        if !pinned || self.flows.iter().any(|flow| !matches!(flow.way, Way::Download)) {
            return Ok(Some(HostBlocks::Pageable));
        }
        let mut blocks = Vec::with_capacity(self.plan.chunks().len());
        for chunk in self.plan.chunks() {
            let Some(flow) = self.flows.iter().find(|flow| flow.source == chunk.source) else { continue };
            let Some(pool) = flow.origin.device().map(Device::results) else { continue };
            if chunk.bytes > pool.budget() {
                pool.note_fallback();
                return Ok(Some(HostBlocks::Pageable));
            }
            let block = match host_results {
                HostResults::IdleOnly => match pool.try_take(chunk.bytes, Direction::Download) {
                    None => return Ok(Some(HostBlocks::Missing)),
                    block => block,
                },
                // Results that cannot be pinned are ordinary memory, and the report says so.
                HostResults::Grow => pool.take_or_grow(chunk.bytes, Direction::Download).unwrap_or(None),
            };
            match block {
                Some(block) => blocks.push(block.into_buffer(chunk.bytes)),
                None => {
                    pool.note_fallback();
                    return Ok(Some(HostBlocks::Pageable));
                }
            }
        }
        Ok(Some(HostBlocks::Pinned(blocks)))
    }

    /// Fills in what the plan says. Not done before somebody asks, or while the device copies.
    pub(crate) fn report(&self, report: &mut CopyReport) {
        let Counts { resident, empty, aliases, packed, alone } = self.plan.counts();
        (report.resident, report.empty, report.aliased) = (resident, empty, aliases);
        (report.packed, report.alone) = (packed, alone);
        let copied = self.plan.order().iter().filter_map(|leaf| self.leaves.get(*leaf as usize));
        report.payload_bytes = copied.map(|leaf| leaf.payload as u64).sum();
        report.chunks = self.plan.chunks().len();
        report.chunk_bytes = self.plan.chunks().iter().map(|chunk| chunk.bytes as u64).sum();
    }
}

/// How hard to try for pinned results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostResults {
    /// Idle blocks of the pool; never the driver.
    IdleOnly,
    /// New ones within the budget.
    Grow,
}

type Buffers = SmallVec<[Box<dyn Buffer>; 1]>;

fn are_open(buffers: &Buffers) -> bool {
    !buffers.is_empty() && buffers.iter().all(|buffer| buffer.window().is_some())
}

enum HostBlocks {
    Pinned(Vec<Box<dyn Buffer>>),
    Pageable,
    Missing,
}

fn plan_options(options: &CopyOptions, survey: &Survey<'_>) -> PlanOptions {
    PlanOptions {
        granularity: survey.granularity(),
        pack: options.pack,
        alignment: survey.alignment(options),
        largest_chunk: options.max_chunk,
        largest_packed: options.max_packed,
    }
}
