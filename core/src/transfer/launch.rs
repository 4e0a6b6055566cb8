//! Carries copies out at once or by workers, as their options and their size say.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::job::Job;
use crate::job::options::BackgroundWork;
use crate::runtime::trace::Entered;
use crate::transfer::background::BackgroundCopy;
use crate::transfer::job_group::JobGroup;
use crate::transfer::not_inline::{Effort, NotInline};
use crate::transfer::{inline, into_graph};

/// Carries a copy out, at once or by workers, whose spans belong to `span`. Returns what the workers carry out, so that a thread that waits can help them.
pub(crate) fn launch(job: &Arc<Job>, span: &Entered) -> Result<Option<Arc<BackgroundCopy>>> {
    let inline = |effort| match inline::inline(job, effort) {
        Err(refused) if into_graph::is_meant(job, &refused) => Ok(into_graph::record(job)?),
        carried => carried,
    };
    launch_by(job, inline, || in_background(JobGroup::of(job.clone()), span).map(Some))
}

/// Carries the copies of `group` out, at once or by workers. If none of them can be, this fails, and so does each copy. Workers
/// are returned for a single copy only: a thread that waits for one of several copies must neither wait for the devices of the
/// others nor work for those alone.
pub(crate) fn launch_all(group: &JobGroup, span: &Entered) -> Result<Option<Arc<BackgroundCopy>>> {
    let first = match group.jobs() {
        [] => return Ok(None),
        [only] => return launch(only, span).inspect_err(|error| only.completion.fail(error.clone())),
        [first, ..] => first,
    };
    let inline = |effort| group.inline(effort);
    launch_by(first, inline, || in_background(group.clone(), span).map(|_| None))
        .inspect_err(|error| group.jobs().iter().for_each(|job| job.completion.fail(error.clone())))
}

fn launch_by(
    job: &Job,
    inline: impl FnOnce(Effort) -> Result<(), NotInline>,
    in_background: impl FnOnce() -> Result<Option<Arc<BackgroundCopy>>>,
) -> Result<Option<Arc<BackgroundCopy>>> {
    let effort = match job.background {
        BackgroundWork::Always if !job.is_trivial() => return in_background(),
        BackgroundWork::Never => Effort::Thorough,
        _ => Effort::Quick,
    };
    match inline(effort) {
        Ok(()) => Ok(None),
        Err(NotInline::Failed(error)) => Err(error),
        Err(NotInline::NeedsWorker(reason, cure)) if job.background == BackgroundWork::Never => {
            let requested = job.plan.chunks().iter().map(|chunk| chunk.bytes).sum();
            Err(Error::Busy { device: job.target.id(), requested, reason, cure })
        }
        Err(NotInline::NeedsWorker(..)) => in_background(),
    }
}

/// Hands the copies to workers.
fn in_background(mut group: JobGroup, span: &Entered) -> Result<Arc<BackgroundCopy>> {
    group.parent = span.as_parent();
    for job in group.jobs() {
        job.completion.metrics.note_background();
        for device in [&job.target].into_iter().chain(job.source_devices()) {
            device.note_background(&job.completion);
        }
    }
    BackgroundCopy::call(group)
}
