//! Copies that are carried out together and staged once: a single copy, or those of a broadcast, which copy the same leaves to
//! devices that read the same staging blocks.

use smallvec::{SmallVec, smallvec};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::{mem, ptr};

use crate::device::device::Device;
use crate::device::host_node;
use crate::error::{Error, Result};
use crate::in_flight::carried::Hold;
use crate::in_flight::completion::Completion;
use crate::in_flight::memory_budget::Reservation;
use crate::job::job::Job;
use crate::job::options::CopyOptions;
use crate::job::result_blocks::HostResults;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::runtime::foreign;
use crate::runtime::trace::Parent;
use crate::runtime::workers::Team;
use crate::staging::copy_share::CopyShare;
use crate::transfer::carry_segment::carry;
use crate::transfer::cut_segments::{Segment, segments};
use crate::transfer::filled::{FilledSegment, Outlet, SharedSegment};
use crate::transfer::not_inline::{Effort, NO_ROOM_YET, NotInline, WAIT};
use crate::transfer::staged_upload::{copy_up, copy_up_shared};
use crate::transfer::take_blocks::{BlockSource, Now, take_blocks};
use crate::transfer::{inline, order};

/// Copies with one plan. If one of them fails, the others go on.
pub(crate) struct JobGroup {
    jobs: SmallVec<[Arc<Job>; 2]>,
    /// The share of staging that they have while they are carried out by workers.
    lease: Option<Arc<CopyShare>>,
    /// What other threads do belongs to this span.
    pub(crate) parent: Parent,
    /// What is reserved for each of them, until its memory is allocated; `None` where it asks then.
    rooms: Rooms,
    /// Of those that are left to workers. Dropped behind the copies.
    holds: SmallVec<[Hold; 2]>,
}

type Rooms = SmallVec<[Option<Reservation>; 2]>;

impl JobGroup {
    pub(crate) fn of(job: Arc<Job>) -> Self {
        Self { jobs: smallvec![job], ..Self::none() }
    }

    fn none() -> Self {
        Self {
            jobs: SmallVec::new(),
            lease: None,
            parent: Parent::none(),
            rooms: Rooms::new(),
            holds: SmallVec::new(),
        }
    }

    /// No copies yet, for workers, whose spans belong to `parent`.
    pub(crate) fn for_workers(parent: Parent) -> Self {
        Self { parent, ..Self::none() }
    }

    /// Adds a copy that workers carry out, with what is reserved for it.
    pub(crate) fn leave(&mut self, job: &Arc<Job>, hold: Hold, room: Option<Reservation>) {
        self.jobs.push(job.clone());
        self.holds.push(hold);
        self.rooms.push(room);
    }

    /// There is room for its only copy.
    pub(crate) fn give_room(&mut self, room: Reservation) {
        self.rooms = smallvec![Some(room)];
    }

    /// Whether a copy to `target` can share with these.
    pub(crate) fn can_take(&self, target: &Device) -> bool {
        self.jobs.iter().all(|job| job.can_share_with(target))
    }

    /// Adds the copy to a device that it [can take](Self::can_take).
    pub(crate) fn add(
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

    pub(crate) fn jobs(&self) -> &[Arc<Job>] {
        &self.jobs
    }

    pub(crate) fn completions(&self) -> Completions {
        self.jobs.iter().map(|job| job.completion.clone()).collect()
    }

    /// The workers that carry it out. Only copies that wait for the same devices share them. They run near these.
    pub(crate) fn team(&self) -> Team {
        let devices =
            || self.jobs.iter().flat_map(|job| [&job.target].into_iter().chain(job.source_devices()));
        let addresses = devices().map(|device| Arc::as_ptr(device.backend()).addr());
        let nodes = devices().filter(|device| !device.is_host()).map(Device::node);
        Team::waiting_for(addresses, host_node::of_workers(nodes))
    }

    /// As [`inline::inline`], for several.
    pub(crate) fn inline(&self, effort: Effort) -> Result<(), NotInline> {
        let Some(first) = self.jobs.first() else { return Ok(()) };
        inline::weigh(first, effort)?;
        for job in &self.jobs {
            match order::order_behind_predecessors(job, false) {
                Ok(true) => {}
                Ok(false) => return Err(NotInline::NeedsWorker("a source is still being filled", WAIT)),
                Err(error) => job.completion.fail(error),
            }
        }
        let (has_room, is_ordered) = (Cell::new(true), Cell::new(true));
        self.each(|job| match job.allocate(HostResults::Grow, |bytes| inline::reserve(job, bytes)) {
            Err(refused) if inline::has_no_room_yet(job, &refused, effort) => {
                has_room.set(false);
                Ok(())
            }
            Ok(Some(destinations)) if !order::order_behind_uses(job, &destinations.uses, false)? => {
                is_ordered.set(false);
                Ok(())
            }
            allocated => allocated.map(drop),
        })?;
        if !has_room.get() {
            return Err(NO_ROOM_YET);
        }
        if !is_ordered.get() {
            return Err(NotInline::NeedsWorker("memory that is to be filled is still in use", WAIT));
        }
        self.share_queues();
        if let Some(lead) = self.lead() {
            let segments = segments(lead);
            let blocks = take_blocks(lead, &segments, effort)?;
            for (segment, taken) in segments.iter().zip(blocks) {
                let outlet = &mut |filled| self.copy_up(smallvec![filled]);
                caught(|| self.carry(segment, BlockSource::SegmentBlocks(taken), outlet))?;
            }
        }
        self.running().for_each(|job| job.completion.submitted());
        self.common_error().map_or(Ok(()), |error| Err(NotInline::Failed(error)))
    }

    /// Gives the group a share of the pool whose pinned blocks its [lead](Self::lead) is staged through, if it is.
    pub(crate) fn lease(&mut self) {
        let lead = self.lead().filter(|lead| lead.pinned);
        let staged = lead.and_then(|lead| {
            Some((lead, lead.paths.iter().find(|path| matches!(path.kind, PathKind::Staged))?))
        });
        self.lease = staged.map(|(lead, path)| CopyShare::new(lead.target.staging(), &path.queue));
    }

    pub(crate) fn leased(&self) -> Option<&Arc<CopyShare>> {
        self.lease.as_ref()
    }

    /// Does what comes before the first segment. May wait for devices.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        let rooms = RefCell::new(mem::take(&mut self.rooms));
        self.each(|job| {
            order::order_behind_predecessors(job, true)?;
            order::order_behind_destinations(job, true)?;
            let number = self.jobs.iter().position(|known| ptr::eq(&**known, job));
            let room = number.and_then(|number| rooms.borrow_mut().get_mut(number)?.take());
            let reserve = |bytes| room.map_or_else(|| job.target.reserve(bytes), Ok);
            if let Some(destinations) = job.allocate(HostResults::Grow, reserve)? {
                order::order_behind_uses(job, &destinations.uses, true)?;
            }
            Ok(())
        })?;
        self.share_queues();
        Ok(())
    }

    /// Makes the queues of all copies known to the pool of the lead. They read its blocks, so threads that wait for a block ask
    /// them.
    fn share_queues(&self) {
        if let (Some(lead), [_, _, ..]) = (self.lead(), &*self.jobs) {
            for path in self.jobs.iter().flat_map(|job| &job.paths) {
                lead.target.staging().serve(&path.queue);
            }
        }
    }

    /// The first copy whose destinations are allocated. Its pool serves all.
    pub(crate) fn lead(&self) -> Option<&Arc<Job>> {
        self.jobs.iter().find(|job| job.destinations.get().is_some())
    }

    /// Carries one segment for all copies. If it goes up through a staging block, that is filled once and given to `outlet`.
    pub(crate) fn carry(&self, segment: &Segment, blocks: BlockSource<'_>, outlet: Outlet<'_>) -> Result<()> {
        let lead = self.lead().ok_or(Error::NotReady)?;
        let is_staged = |path: &TransferPath| matches!(path.kind, PathKind::Staged);
        if self.jobs.len() == 1 || lead.paths.get(segment.path).is_some_and(is_staged) {
            return carry(lead, segment, blocks, outlet);
        }
        // Pinned sources, which each device reads where they lie.
        self.each(|job| carry(job, segment, BlockSource::Now(Now::default()), &mut |_| Err(Error::NotReady)))
    }

    /// Copies blocks up that [`carry`](Self::carry) has filled. Each queue that reads a block holds it, so it goes back to its
    /// pool when the last of them has read it.
    pub(crate) fn copy_up(&self, filled: SmallVec<[FilledSegment; 1]>) -> Result<()> {
        match (&*self.jobs, self.lead()) {
            ([only], _) => copy_up(only, filled),
            (_, Some(lead)) => {
                let shared: SmallVec<[SharedSegment; 1]> =
                    filled.into_iter().map(|filled| filled.share(lead)).collect();
                self.each(|job| copy_up_shared(job, &shared))
            }
            _ => Ok(()),
        }
    }

    /// Calls `step` for each copy that still runs. A copy for which it fails, fails, and the others go on. If it fails for the
    /// last one that runs, the error is returned instead.
    pub(crate) fn each(&self, step: impl Fn(&Job) -> Result<()>) -> Result<()> {
        for job in self.running() {
            if let Err(error) = caught(|| step(job)) {
                if self.running().all(|other| Arc::ptr_eq(other, job)) {
                    return Err(error);
                }
                job.completion.fail(error);
            }
        }
        Ok(())
    }

    /// Whether one of the copies still runs.
    pub(crate) fn is_wanted(&self) -> bool {
        self.running().next().is_some()
    }

    /// The copies that have neither failed nor been abandoned.
    fn running(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.iter().filter(|job| !job.completion.is_submitted() && !job.completion.is_abandoned())
    }

    /// The error of the first copy, if all have failed.
    fn common_error(&self) -> Option<Error> {
        let all_failed = self.jobs.iter().all(|job| !job.completion.is_accepted());
        let first = self.jobs.first().filter(|_| all_failed)?;
        first.completion.is_done().err()
    }
}

/// The completions of the copies of a group. They are told the end after the group was dropped, because it owns the sources.
pub(crate) type Completions = SmallVec<[Arc<Completion>; 1]>;

/// Tells each completion that all of its copy is submitted, or why not.
pub(crate) fn conclude(completions: &Completions, error: Option<Error>) {
    for completion in completions {
        match &error {
            Some(error) => completion.fail(error.clone()),
            None if completion.is_abandoned() => completion.fail(Error::Cancelled),
            None => completion.submitted(),
        }
    }
}

/// What `work` returns; an error if it panics.
pub(crate) fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    foreign::caught_or(work).unwrap_or_else(|panic| {
        let error = Error::panicked(&*panic);
        foreign::forget_payload(panic);
        Err(error)
    })
}
