//! Carrying a planned copy out at once, on the thread of the caller.

use smallvec::smallvec;

use crate::device::block_size::MOST_INLINE_BYTES;
use crate::error::{Error, Result};
use crate::in_flight::memory_budget::Reservation;
use crate::job::callers_memory::Preallocated;
use crate::job::job::Job;
use crate::job::options::BackgroundWork;
use crate::job::result_blocks::HostResults;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::transfer::carry_segment::carry;
use crate::transfer::coalesce;
use crate::transfer::cut_segments::segments;
use crate::transfer::not_inline::{
    ALLOW, Effort, MOST_INLINE_COPIES, NO_ROOM_YET, NotInline, PIN, UNPACE, WAIT,
};
use crate::transfer::order::{order_behind_destinations, order_behind_predecessors, order_behind_uses};
use crate::transfer::staged_upload::copy_up;
use crate::transfer::take_blocks::{BlockSource, table_inline, take_blocks};

/// Carries the copy out on this thread, without waiting for a device.
pub(crate) fn inline(job: &Job, effort: Effort) -> Result<(), NotInline> {
    weigh(job, effort)?;
    if !order_behind_predecessors(job, false)? {
        return Err(NotInline::NeedsWorker("a source is still being filled", WAIT));
    }
    if !order_behind_destinations(job, false)? {
        return Err(NotInline::NeedsWorker("memory that is to be filled is still in use", WAIT));
    }
    let host_results = if effort == Effort::Quick { HostResults::IdleOnly } else { HostResults::Grow };
    let destinations = match job.allocate(host_results, |bytes| reserve(job, bytes)) {
        Err(refused) if has_no_room_yet(job, &refused, effort) => return Err(NO_ROOM_YET),
        allocated => allocated?.ok_or(NotInline::NeedsWorker("no pinned result is idle", WAIT))?,
    };
    if !order_behind_uses(job, &destinations.uses, false)? {
        return Err(NotInline::NeedsWorker("memory that is to be filled is still in use", WAIT));
    }
    let down = || job.paths.iter().filter(|path| matches!(path.kind, PathKind::Download));
    if destinations.pageable && !job.pinned && down().next().is_some() {
        return Err(NotInline::NeedsWorker("copies into ordinary memory wait for the device", PIN));
    }
    let is_large = |path: &TransferPath| job.plan.source_span(path.source) > MOST_INLINE_BYTES;
    if destinations.pageable && effort == Effort::Quick && down().any(is_large) {
        return Err(NotInline::NeedsWorker("large results in ordinary memory", ALLOW));
    }
    let segments = segments(job);
    let blocks = take_blocks(job, &segments, effort)?;
    for (segment, taken) in segments.iter().zip(blocks) {
        let outlet = &mut |filled| copy_up(job, smallvec![filled]);
        carry(job, segment, BlockSource::SegmentBlocks(taken), outlet)?;
    }
    // SAFETY: this thread has carried all segments (the loop over `segments`). No worker carries this job: `launch_by` calls
    // workers only if this function refuses.
    unsafe { job.close()? };
    job.completion.submitted();
    Ok(())
}

/// Counts `bytes` bytes of what `job` fills as used. Never waits.
pub(crate) fn reserve(job: &Job, bytes: usize) -> Result<Reservation> {
    let waits_its_turn = job.completion.has_deadline() && job.background != BackgroundWork::Never;
    job.target.reserve_in_turn(bytes, waits_its_turn)
}

/// Whether the copy may get the room that it was refused. Where workers are allowed, nobody can tell before it stands in line.
pub(crate) fn has_no_room_yet(job: &Job, refused: &Error, effort: Effort) -> bool {
    matches!(refused, Error::OverBudget { .. })
        && (effort == Effort::Quick || job.target.may_have_room_later(refused))
}

/// Refuses what is too much for the caller's thread.
pub(crate) fn weigh(job: &Job, effort: Effort) -> Result<(), NotInline> {
    let total = job.paths.iter().map(|path| job.plan.source_span(path.source)).fold(0, usize::saturating_add);
    if job.pace.is_some_and(|pace| total > pace) {
        return Err(NotInline::NeedsWorker("a paced copy waits for the device", UNPACE));
    }
    let scattering = job.held().map_or(0, Preallocated::scattering_copies);
    for path in &job.paths {
        let refusal = match path.kind {
            PathKind::ViaHost { .. } => Some("the bytes go over the host, which waits for a device"),
            _ if effort == Effort::Thorough => None,
            PathKind::Staged if !job.pinned => Some("copies from ordinary memory block"),
            PathKind::Staged | PathKind::Direct if scattering > MOST_INLINE_COPIES => Some("many copies"),
            PathKind::HostWrite | PathKind::Staged if path.staged_bytes > MOST_INLINE_BYTES => Some("large"),
            PathKind::Direct | PathKind::Download
                if table_inline(job, path).is_none()
                    && coalesce::count(job, path, most_copies(job, path)) > most_copies(job, path) =>
            {
                Some("many copies")
            }
            _ => None,
        };
        if let Some(reason) = refusal {
            return Err(NotInline::NeedsWorker(reason, ALLOW));
        }
    }
    Ok(())
}

/// How many copies of `path` this thread may submit.
fn most_copies(job: &Job, path: &TransferPath) -> usize {
    match path.kind {
        PathKind::Download => path.read_by(&job.target).limits().copies_at_once,
        _ => MOST_INLINE_COPIES,
    }
}
