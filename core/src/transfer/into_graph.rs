//! Recording a copy into the graph into which its stream is being captured. Whoever launches the graph copies.

use smallvec::SmallVec;

use crate::backend::CopyOp;
use crate::error::{Error, Result};
use crate::in_flight::graph_use::GraphUse;
use crate::job::callers_memory::Preallocated;
use crate::job::job::Job;
use crate::job::result_blocks::HostResults;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::runtime::trace::span;
use crate::transfer::coalesce::{self, Begin, CopyRange};
use crate::transfer::cut_segments;
use crate::transfer::not_inline::NotInline;
use crate::transfer::submission_resources::Storages;

/// Whether that is what has kept the copy from being carried out at once: its stream, which is the caller's, is being captured.
pub(crate) fn is_meant(job: &Job, refused: &NotInline) -> bool {
    let [path] = &*job.paths else { return false };
    job.into_graph
        && path.on_callers_stream
        && job.held().is_some()
        && match refused {
            NotInline::Failed(Error::StreamCaptured { .. }) => true,
            NotInline::Failed(_) => false,
            // A worker would come too late: the capture may have ended by then.
            NotInline::NeedsWorker(..) => {
                matches!(path.queue.stream().record(), Err(Error::StreamCaptured { .. }))
            }
        }
}

/// Records the copy: one node for each range of bytes. What it reads and writes is kept for the graph, by a use that is no owner. The copy is
/// done with that, as far as the host is concerned.
pub(crate) fn record(job: &Job) -> Result<()> {
    let refused = |why| Error::StreamCaptured { device: job.target.id(), why };
    let [path] = &*job.paths else { return Err(refused(NOT_WITHIN)) };
    check(job, path).map_err(refused)?;
    let span = span!("record", device = path.queue.device().to_string(), stream = path.queue.number());
    let Some(destinations) = job.allocate(HostResults::Grow, |bytes| job.target.reserve(bytes))? else {
        return Err(Error::NotReady);
    };
    if destinations.chunks.iter().any(|to| to.storage.is_lent()) {
        return Err(refused(LENT));
    }
    let mut storages = Storages::new();
    let whole = cut_segments::whole(job, path);
    let ranges = coalesce::ranges(job, path, &whole, Some(&destinations.chunks), &mut storages);
    let ops: SmallVec<[CopyOp<'_>; 8]> = ranges
        .iter()
        .map(|range| between(job, &storages, range))
        .collect::<Option<_>>()
        .ok_or(Error::NotReady)?;
    job.note_begun();
    let (using, share) = GraphUse::begin();
    let written = destinations.chunks.iter().map(|to| &to.storage);
    for storage in written.chain(job.leaves.iter().map(|leaf| &leaf.storage)) {
        storage.use_in_graph(&using, path.queue.handed());
    }
    // SAFETY: `coalesce::ranges` reads leaves, which lie within their storages, and writes chunks in memory of the caller
    // (`Preallocated::check`). All of it is kept for the graph from now on (`use_in_graph`): memory whose storage goes waits in
    // `using` until `share` is dropped. That takes a lock under which nobody calls the driver, and hands the memory on. Nobody ends the
    // capture meanwhile (`CopyOptions::into_graph`).
    unsafe { job.target.backend().record_into_graph(&ops, &**path.queue.stream(), Box::new(share)) }
        .map_err(|error| explained(error, refused))?;
    span.end();
    job.completion.submitted();
    Ok(())
}

const NOT_WITHIN: &str = "which takes copies within the memory of its device alone";
const LENT: &str = "which takes copies of memory alone that transship has allocated";

/// Fails unless the copy needs nothing but its two ends, which are filled.
fn check(job: &Job, path: &TransferPath) -> Result<(), &'static str> {
    let is_within = path.from.device().is_some_and(|source| source.same_as(&job.target));
    if !is_within || !matches!(path.kind, PathKind::Direct) {
        return Err(NOT_WITHIN);
    }
    let is_strided = job.held().is_some_and(Preallocated::is_strided);
    if is_strided || job.leaves.iter().any(|leaf| leaf.special.is_some()) {
        return Err("which takes copies of contiguous tensors alone, without casts");
    }
    if job.leaves.iter().any(|leaf| leaf.storage.is_lent()) {
        return Err(LENT);
    }
    let is_filled = job.before.of_sources.iter().all(|copy| matches!(copy.is_done(), Ok(true)));
    if !is_filled || !job.before.of_destinations.is_empty() {
        return Err("which cannot wait for what still fills the tensors: wait for that before it begins");
    }
    Ok(())
}

fn between<'a>(job: &'a Job, storages: &'a Storages, range: &CopyRange) -> Option<CopyOp<'a>> {
    let (leaf, to) = (job.leaves.get(range.leaf as usize)?, storages.get(range.to as usize)?);
    let Begin::At(from_offset) = range.begin else { return None };
    let (from, to) = (leaf.storage.buffer(), to.buffer());
    Some(CopyOp::Between { from, from_offset, to, to_offset: range.to_offset, bytes: range.bytes })
}

/// The error of a backend that records nothing is that of a stream that takes no copy.
fn explained(error: Error, refused: impl FnOnce(&'static str) -> Error) -> Error {
    match error {
        Error::Unsupported { .. } => refused("whose driver has no graphs that hold what their copies use"),
        other => other,
    }
}
