//! One structure to several devices.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::copy::completion::Completion;
use crate::copy::figures::CopyReport;
use crate::copy::group::Group;
use crate::copy::handle::CopyHandle;
use crate::copy::job::Job;
use crate::copy::start::Prepared;
use crate::{CopyError, CopyOptions, Device, Error, Result, TensorTree};

/// Starts to copy every tensor of `value` to each device of `to` and returns at once, with a handle for each device in
/// the order of `to`. A device that is named twice gets two structures; without a device there is nothing to do.
///
/// As [`start_copy`](crate::start_copy) to each of them, but what can be shared is done once: tensors on the host are
/// taken, planned and gathered into staging memory once for all devices of one driver that read each other's staging.
/// Each further device costs an allocation, a submission and a clone of the structure without its tensors.
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
    // Here already: deadlines and reports count from the call.
    let mut targets = to.iter().map(|target| (target, Completion::within(options.deadline)));
    let Some((first, completion)) = targets.next() else { return Ok(Vec::new()) };
    let mut fan = Fan::new(Prepared::new(value, first, &options, completion)?);
    for (target, completion) in targets {
        if let Err(error) = fan.add(target, &options, completion) {
            return Err(fan.fail(error));
        }
    }
    match fan.launch() {
        Ok(()) => Ok(fan.into_handles()),
        Err(error) => Err(fan.fail(error)),
    }
}

/// The copies of one structure.
struct Fan<S> {
    /// Without its tensors' memory.
    value: S,
    /// In the order of their targets.
    copies: Vec<(Arc<Job>, CopyReport)>,
    groups: SmallVec<[Group; 1]>,
}

impl<S: TensorTree + Clone> Fan<S> {
    fn new(Prepared { value, job, report }: Prepared<S>) -> Self {
        let groups = SmallVec::from_buf([Group::of(job.clone())]);
        Self { value, copies: vec![(job, report)], groups }
    }

    /// Adds a copy to `target`: to a group that it can share with, else planned by itself.
    fn add(&mut self, target: &Device, options: &CopyOptions, completion: Arc<Completion>) -> Result<()> {
        let open = self.groups.iter_mut().find(|group| group.can_take(target));
        let copy = match open {
            Some(group) => {
                let job = group.add(target, options, completion)?;
                let mut report = CopyReport::new(target.id());
                report.leaves = job.leaves.len();
                (job, report)
            }
            None => {
                // Its value is as good as a clone of ours.
                let Prepared { job, report, .. } =
                    Prepared::new(self.restored(), target, options, completion)?;
                self.groups.push(Group::of(job.clone()));
                (job, report)
            }
        };
        self.copies.push(copy);
        Ok(())
    }

    /// Launches all; fails if no copy can be.
    fn launch(&self) -> Result<()> {
        let mut failed = None;
        let mut some_run = false;
        for group in &self.groups {
            match group.launch() {
                Ok(()) => some_run = true,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        match failed {
            Some(error) if !some_run => Err(error),
            _ => Ok(()),
        }
    }

    /// Clones are made of the structure without its tensors' memory, while the devices copy.
    fn into_handles(mut self) -> Vec<CopyHandle<S>> {
        let last = self.copies.pop();
        let mut handles = Vec::with_capacity(self.copies.len() + 1);
        let others = self.copies.into_iter();
        handles.extend(others.map(|(job, report)| CopyHandle::new(self.value.clone(), job, report)));
        handles.extend(last.map(|(job, report)| CopyHandle::new(self.value, job, report)));
        handles
    }

    fn fail(mut self, error: Error) -> CopyError<S> {
        if let Some((job, _)) = self.copies.first() {
            job.give_back(&mut self.value);
        }
        CopyError::new(error, Some(self.value))
    }

    fn restored(&self) -> S {
        let mut value = self.value.clone();
        if let Some((job, _)) = self.copies.first() {
            job.give_back(&mut value);
        }
        value
    }
}
