//! Carries copies out at once or by workers, as their options and their size say.

use std::slice;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::device::room::Room;
use crate::error::{Error, Result};
use crate::in_flight::carried::Carried;
use crate::job::job::Job;
use crate::job::options::BackgroundWork;
use crate::runtime::trace::Entered;
use crate::transfer::background::BackgroundCopy;
use crate::transfer::job_group::JobGroup;
use crate::transfer::not_inline::{Effort, NotInline};
use crate::transfer::{inline, into_graph};

/// What workers carry out of several copies, for each copy: a thread that waits for it can help. `None` where it was carried out at once, or
/// is carried with others: the thread must neither wait for the devices of the others nor work for those alone.
pub(crate) type Workers = SmallVec<[Option<Arc<BackgroundCopy>>; 1]>;

/// Carries a copy out, at once or by workers, whose spans belong to `span`. Returns what the workers carry out, so that a thread that waits can help them.
pub(crate) fn launch(job: &Arc<Job>, span: &Entered) -> Result<Option<Arc<BackgroundCopy>>> {
    let inline = |effort| match inline::inline(job, effort) {
        Err(refused) if into_graph::is_meant(job, &refused) => Ok(into_graph::record(job)?),
        carried => carried,
    };
    let workers = launch_by(job, inline, || in_background(slice::from_ref(job), span))?;
    Ok(workers.into_iter().next().flatten())
}

/// Carries the copies of `group` out, at once or by workers. If none of them can be, this fails, and so does each copy.
pub(crate) fn launch_all(group: &JobGroup, span: &Entered) -> Result<Workers> {
    let first = match group.jobs() {
        [] => return Ok(Workers::new()),
        [only] => {
            let launched = launch(only, span).inspect_err(|error| only.completion.fail(error.clone()));
            return launched.map(|workers| smallvec![workers]);
        }
        [first, ..] => first,
    };
    launch_by(first, |effort| group.inline(effort), || in_background(group.jobs(), span))
        .inspect_err(|error| group.jobs().iter().for_each(|job| job.completion.fail(error.clone())))
}

fn launch_by(
    job: &Job,
    inline: impl FnOnce(Effort) -> Result<(), NotInline>,
    in_background: impl FnOnce() -> Result<Workers>,
) -> Result<Workers> {
    let effort = match job.background {
        BackgroundWork::Always if !job.is_trivial() => return in_background(),
        BackgroundWork::Never => Effort::Thorough,
        _ => Effort::Quick,
    };
    match inline(effort) {
        Ok(()) => Ok(Workers::new()),
        Err(NotInline::Failed(error)) => Err(error),
        Err(NotInline::NeedsWorker(reason, cure)) if job.background == BackgroundWork::Never => {
            let requested = job.plan.chunks().iter().map(|chunk| chunk.bytes).sum();
            Err(Error::Busy { device: job.target.id(), requested, reason, cure })
        }
        Err(NotInline::NeedsWorker(..)) => in_background(),
    }
}

/// Leaves the copies to workers: together those that there is room for, and each of the others once it has room, so that none holds some
/// while it waits for that of another device. Fails if none of them can be left.
fn in_background(jobs: &[Arc<Job>], span: &Entered) -> Result<Workers> {
    let mut together = JobGroup::for_workers(span.as_parent());
    let left = jobs.iter().map(|job| leave(job, &mut together, span)).collect::<SmallVec<[_; 1]>>();
    let called = match together.jobs() {
        [] => Ok(None),
        _ => BackgroundCopy::call(together).map(|workers| Some(workers).filter(|_| jobs.len() == 1)),
    };
    let left = left.into_iter().map(|left| match left? {
        Left::Waiting(workers) => Ok(Some(workers)),
        Left::Together => called.clone(),
    });
    conclude_failed(jobs, left.collect())
}

/// How a copy was left.
enum Left {
    Together,
    Waiting(Arc<BackgroundCopy>),
}

fn leave(job: &Arc<Job>, together: &mut JobGroup, span: &Entered) -> Result<Left> {
    job.completion.metrics.note_background();
    let (carried, hold) = Carried::new(&job.completion);
    let reserved = match job.ask_for_room(carried)? {
        Some(Room::Awaited(room)) => {
            let mut alone = JobGroup::for_workers(span.as_parent());
            alone.leave(job, hold, None);
            return BackgroundCopy::wait(alone, room).map(Left::Waiting);
        }
        Some(Room::Reserved(reserved)) => Some(reserved),
        None => None,
    };
    together.leave(job, hold, reserved);
    Ok(Left::Together)
}

/// Fails the copies that could not be left, unless that is all of them: then the call fails.
fn conclude_failed(
    jobs: &[Arc<Job>],
    left: SmallVec<[Result<Option<Arc<BackgroundCopy>>>; 1]>,
) -> Result<Workers> {
    if left.iter().all(Result::is_err) {
        return left.into_iter().collect();
    }
    let of_each = jobs.iter().zip(left);
    let workers = of_each.map(|(job, left)| {
        left.unwrap_or_else(|error| {
            job.completion.fail(error);
            None
        })
    });
    Ok(workers.collect())
}
