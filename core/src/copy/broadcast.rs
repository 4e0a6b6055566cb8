//! One structure to several devices.

use std::sync::Arc;

use crate::copy::handle::CopyHandle;
use crate::copy::start::Prepared;
use crate::copy::take_and_put;
use crate::device::device::Device;
use crate::error::{CopyError, Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::options::CopyOptions;
use crate::job::report::CopyReport;
use crate::runtime::foreign;
use crate::runtime::trace::{Entered, span};
use crate::transfer::background::BackgroundCopy;
use crate::transfer::job_group::JobGroup;
use crate::transfer::launch::{Workers, launch_all};
use crate::tree::tensor_tree::TensorTree;

/// Starts to copy every tensor of `value` to each device of `to` and returns at once, with a handle for each device in
/// the order of `to`. A device that is named twice gets two structures; without a device there is nothing to do.
///
/// As [`start_copy`](crate::start_copy) to each of them, but what can be shared is done once: tensors on the host are
/// taken, planned and gathered into staging memory once for all devices of one driver that read each other's staging.
/// Each further device costs an allocation, a submission and a clone of the structure while a copy has its tensors: `Clone` clones
/// them as they are, and cannot read them ([`Taken`](Error::Taken)). What it makes anew is no copy of anything.
///
/// The handles are independent: dropping or cancelling one, or a failure of its device, leaves the others alone; but what
/// is still to be staged fails with the device whose staging memory serves them, the first that could allocate. Sources
/// are let go of when all handles are waited for or gone. In the [reports](CopyHandle::report) what was done once counts
/// in the first copy of those that share it.
///
/// # Errors
///
/// As [`start_copy`](crate::start_copy), if the copy to one of the devices cannot be planned, or none of them can be
/// submitted. The error gives the structure back as it was. Where only some fail, their handles do.
///
/// ```
/// use transship_core::{CopyError, CopyHandle, CopyOptions, Device, Tensor, start_copy_to_all};
///
/// let weights = vec![Tensor::from(vec![1.0f32, 2.0]), Tensor::from(vec![3u8])];
/// let devices = [Device::host(), Device::best()?];
/// let copies = start_copy_to_all(weights, &devices, CopyOptions::default())?;
/// let copies: Vec<Vec<Tensor>> = copies.into_iter().map(CopyHandle::wait).collect::<Result<_, CopyError<_>>>()?;
/// assert_eq!(copies[0][0].as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(copies[1][0].device_id()?, devices[1].id());
/// # Ok::<(), transship_core::Error>(())
/// ```
pub fn start_copy_to_all<S: TensorTree + Clone>(
    value: S,
    to: &[Device],
    options: CopyOptions,
) -> Result<Vec<CopyHandle<S>>, CopyError<S>> {
    let span = span!(
        "start_copy_to_all",
        device = tracing::field::Empty,
        copy = tracing::field::Empty,
        leaves = tracing::field::Empty,
        bytes = tracing::field::Empty
    );
    // Made first, because deadlines and reports count from the call.
    let mut targets =
        to.iter().map(|target| (target, Completion::within(options.deadline, options.timeline.as_ref())));
    let Some((first, completion)) = targets.next() else { return Ok(Vec::new()) };
    let _timed = completion.metrics.timed("start_copy_to_all");
    let mut broadcast = Broadcast::new(Prepared::new(value, first, &options, completion)?);
    span.record("device", || names(to));
    broadcast.copies.iter().for_each(|(_, job, _)| job.describe(&span));
    for (target, completion) in targets {
        if let Err(error) = broadcast.add(target, &options, completion) {
            return Err(broadcast.fail(error));
        }
    }
    match broadcast.allocate_by_program(&options).and_then(|()| broadcast.launch(&span)) {
        Ok(()) => Ok(broadcast.into_handles()),
        Err(error) => Err(broadcast.fail(error)),
    }
}

fn names(devices: &[Device]) -> String {
    devices.iter().map(|device| device.id().to_string()).collect::<Vec<_>>().join(", ")
}

/// The copies of one structure.
struct Broadcast<S> {
    /// Those that share what was taken, with the structure that it was taken out of.
    plans: Vec<SharedPlan<S>>,
    /// In the order of their targets; the number of the plan of each.
    copies: Vec<(usize, Arc<Job>, CopyReport)>,
}

/// Copies that are staged together. Their tensors were taken once, out of `value`: clones of that have the same marks.
struct SharedPlan<S> {
    /// Until the last of its copies has it.
    value: Option<S>,
    jobs: JobGroup,
    /// What the workers carry out, in the order of the copies.
    workers: smallvec::IntoIter<[Option<Arc<BackgroundCopy>>; 1]>,
    copies: usize,
}

impl<S: TensorTree + Clone> Broadcast<S> {
    fn new(prepared: Prepared<S>) -> Self {
        let mut broadcast = Self { plans: Vec::new(), copies: Vec::new() };
        broadcast.found(prepared);
        broadcast
    }

    /// Adds a copy to `target`: to a plan that it can share, or with a plan of its own.
    fn add(&mut self, target: &Device, options: &CopyOptions, completion: Arc<Completion>) -> Result<()> {
        let mut plans = self.plans.iter_mut().enumerate();
        match plans.find(|(_, plan)| plan.jobs.can_take(target)) {
            Some((number, plan)) => {
                let job = plan.jobs.add(target, options, completion)?;
                let mut report = CopyReport::new(target.id());
                report.leaves = job.leaves.len();
                plan.copies += 1;
                self.copies.push((number, job, report));
            }
            None => self.found(Prepared::new(self.restored()?, target, options, completion)?),
        }
        Ok(())
    }

    fn found(&mut self, Prepared { value, job, report }: Prepared<S>) {
        self.copies.push((self.plans.len(), job.clone(), report));
        self.plans.push(SharedPlan {
            value: Some(value),
            jobs: JobGroup::of(job),
            workers: Workers::new().into_iter(),
            copies: 1,
        });
    }

    /// Has the program allocate for all, before one is launched.
    fn allocate_by_program(&self, options: &CopyOptions) -> Result<()> {
        self.copies.iter().try_for_each(|(_, job, _)| job.allocate_by_program(options))
    }

    /// Launches all; fails if no copy can be.
    fn launch(&mut self, span: &Entered) -> Result<()> {
        let mut failed = None;
        let mut some_run = false;
        for plan in &mut self.plans {
            match launch_all(&plan.jobs, span) {
                Ok(workers) => {
                    plan.workers = workers.into_iter();
                    some_run = true;
                }
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        match failed {
            Some(error) if !some_run => Err(error),
            _ => Ok(()),
        }
    }

    /// Clones are made of structures without their tensors' memory, while the devices copy.
    fn into_handles(self) -> Vec<CopyHandle<S>> {
        let Self { mut plans, copies } = self;
        let mut handles = Vec::with_capacity(copies.len());
        for (plan, job, report) in copies {
            let Some(plan) = plans.get_mut(plan) else { continue };
            plan.copies -= 1;
            let value = match plan.copies {
                0 => plan.value.take(),
                _ => foreign::call(|| plan.value.clone()),
            };
            let workers = plan.workers.next().flatten();
            handles.extend(value.map(|value| CopyHandle::new(value, job, workers, report)));
        }
        handles
    }

    fn fail(mut self, error: Error) -> CopyError<S> {
        let value = self.plans.first_mut().and_then(|plan| plan.value.take());
        CopyError::new(
            error,
            value.zip(self.copies.first()).map(|(mut value, (_, job, _))| {
                take_and_put::restore(&job.leaves, &mut value);
                value
            }),
        )
    }

    /// A clone of the structure with its tensors.
    fn restored(&self) -> Result<S> {
        let value = self.plans.first().and_then(|plan| foreign::call(|| plan.value.clone()));
        let (Some(mut value), Some((_, job, _))) = (value, self.copies.first()) else {
            return Err(Error::Taken);
        };
        take_and_put::restore(&job.leaves, &mut value);
        Ok(value)
    }
}
