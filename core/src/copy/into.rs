//! Starting a copy into memory that the caller holds.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use crate::copy::handle::CopyHandle;
use crate::copy::{pairing, put_callers_memory, take_and_put};
use crate::error::{CopyError, Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::options::{CopyOptions, CopyPolicy};
use crate::job::report::CopyReport;
use crate::runtime::fork;
use crate::runtime::trace::span;
use crate::transfer::background::BackgroundCopy;
use crate::transfer::launch::launch;
use crate::tree::tensor_tree::TensorTree;

/// Starts to copy the tensors of `value` into the memory of those of `into`, and returns at once: nothing is allocated on
/// the target, and addresses stay what they are.
///
/// `value` comes out of the handle, its tensors in the memory of `into`, which is the result of an earlier copy, or made by
/// [`Tensor::empty`](crate::Tensor::empty), [`Tensor::zeros`](crate::Tensor::zeros) or from a `Vec`; its device, which may be the
/// host, is the target. The writes come behind the streams that it was handed to, and behind the copy that still fills it.
/// What else `into` holds is dropped when the copy is done.
///
/// - Tensors are paired by their place: fields by name, list items by index, map entries by key. A structure with other keys,
///   lengths or variants is an error that names the path, such as `.layers["attn.q"][3]`.
/// - Each tensor of `into` is of the same shape and type as its counterpart. That may be strided on the host, and on
///   a device that gathers ([`Limits::gathers`](crate::backend::Limits::gathers): CUDA, HIP, GPUs of wgpu; up to eight dimensions
///   and as many bytes as [`start_copy`](crate::start_copy()) gathers, and with [`pinned_staging`](CopyOptions::pinned_staging) where
///   it goes to the host).
/// - A tensor of `into` may have gaps, as columns of a larger one do, or its elements in another order than that of its dimensions: it
///   keeps its strides, and what lies between its elements is left alone. These may neither overlap nor interleave. The host and
///   devices that scatter ([`Limits::gather_strided`](crate::backend::Limits::gather_strided): CUDA, HIP) write them in one pass, the
///   latter up to eight dimensions and out of pinned staging; wgpu's GPUs do where there are many short runs
///   ([`Limits::largest_scattered_run`](crate::backend::Limits::largest_scattered_run)). Everywhere else each run of elements is a copy of its own, slow where runs are short; where a device copies whole granules (wgpu), they must consist of these.
///   Elements that lie on a device are not [cast](CopyOptions::cast) into gaps of it, or of another device that reads it.
/// - Nobody else holds its memory: no clone of a tensor, no view that is not in `into`, no copy in flight that reads it.
///   Several of its tensors may lie in the same memory, as those of a packed batch do, where they do not overlap. What lies
///   between them is left alone, but for the padding in memory that tensors were packed into.
/// - A device that copies whole granules ([`Limits::copy_granularity`](crate::backend::Limits::copy_granularity); wgpu: 4 bytes) writes the rest of the last granule of
///   a contiguous tensor as well. That must be nobody else's. So a view that ends within a granule is refused where other elements can be seen behind it again: in a part of
///   a tensor that was [split](crate::Tensor::split), which `join` gives back, and in memory that the program has lent. It is filled if it ends where the part ends, or
///   the tensor that was lent. In any other memory no tensor shows what is behind it any more, since nobody else holds that.
/// - Every tensor is copied, whatever [`CopyOptions::policy`] says, and packing is up to `into`.
/// - An error of this function leaves `into` as it was, if nothing was submitted yet; a driver that fails between two pieces of a copy
///   is the case where something was. Then, and if the copy fails or is cancelled after this function has returned, the contents of
///   `into` are unspecified: its tensors are [`CopyFailed`](Error::CopyFailed) until another copy has filled them, but for those
///   without elements. Dropping the handle drops `into`.
///
/// # Errors
///
/// [`StructureMismatch`](Error::StructureMismatch), [`DestinationMismatch`](Error::DestinationMismatch), and
/// [`UnsuitedTensor`](Error::UnsuitedTensor) for a tensor that breaks one of these rules: it says which and why. Where a device
/// copies whole granules only, tensors of both structures begin with one, and those of `into` end as said above, else the reason is
/// [`Misaligned`](Error::Misaligned). Otherwise as [`start_copy`](crate::start_copy()). [`CopyError::into_both`] gives both structures back.
///
/// Memory that an earlier copy or [`Tensor::zeros`](crate::Tensor::zeros) still fills is held by that as well. So whether somebody else holds it shows only when it is filled:
/// [`NotWritable`](Error::NotWritable) comes from this function or from the handle, as the device is fast or slow. Both structures come back either way.
///
/// ```
/// use transship_core::{CopyOptions, DType, Device, Tensor, start_copy_into};
///
/// let into = vec![Tensor::empty(&[2], DType::F32, &Device::host())?];
/// let address = into[0].address()?;
/// let batch = vec![Tensor::from(vec![1.0f32, 2.0])];
/// let into = start_copy_into(batch, into, CopyOptions::default())?.wait()?;
/// assert_eq!(into[0].as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(into[0].address()?, address);
/// # Ok::<(), transship_core::Error>(())
/// ```
pub fn start_copy_into<S: TensorTree>(
    mut value: S,
    mut into: S,
    options: CopyOptions,
) -> Result<CopyHandle<S>, CopyError<S>> {
    match started(&mut value, &mut into, options) {
        Ok((job, workers, report)) => Ok(CopyHandle::filling(value, into, job, workers, report)),
        Err(error) => {
            let error = pairing::located(error, &mut value, &mut into);
            Err(CopyError::new(error, Some(value)).with_destination(Some(into)))
        }
    }
}

/// Takes, plans and launches. On an error both structures are whole again.
fn started<S: TensorTree>(
    value: &mut S,
    into: &mut S,
    options: CopyOptions,
) -> Result<(Arc<Job>, Option<Arc<BackgroundCopy>>, CopyReport)> {
    fork::check()?;
    let span = span!(
        "start_copy_into",
        device = tracing::field::Empty,
        copy = tracing::field::Empty,
        leaves = tracing::field::Empty,
        bytes = tracing::field::Empty
    );
    let completion = Completion::within(options.deadline, options.timeline.as_ref());
    let _timed = completion.metrics.timed("start_copy_into");
    let (job, report) = prepared(value, into, &options.policy(CopyPolicy::Always), completion)?;
    span.record("device", || job.target.id().to_string());
    job.describe(&span);
    match launch(&job, &span) {
        Ok(workers) => Ok((job, workers, report)),
        Err(error) => {
            take_and_put::restore(&job.leaves, value);
            match Arc::try_unwrap(job) {
                Ok(job) if !job.has_begun() => give_up(job, into),
                Ok(job) => fail(&job, &error, into),
                Err(job) => fail(&job, &error, into),
            }
            Err(error)
        }
    }
}

fn fail<S: TensorTree>(job: &Job, error: &Error, into: &mut S) {
    job.completion.fail(error.clone());
    // It stops where the structure shows other tensors than it did before.
    let _ = job.held().map(|held| put_callers_memory::give_back(held, into, job.leaves.copy()));
}

/// Gives the memory back as it was before a copy that has not begun.
fn give_up<S: TensorTree>(job: Job, into: &mut S) {
    let Job { leaves, destinations, held, .. } = job;
    drop(destinations);
    if let Some(mut held) = held {
        held.restore_fillers();
        // It stops where the structure shows other tensors than it did before.
        let _ = put_callers_memory::give_back(&held, into, leaves.copy());
    }
}

/// Takes and plans; submits nothing.
fn prepared<S: TensorTree>(
    value: &mut S,
    into: &mut S,
    options: &CopyOptions,
    completion: Arc<Completion>,
) -> Result<(Arc<Job>, CopyReport)> {
    options.validate()?;
    let started = Instant::now();
    let target = OnceCell::new();
    let paired = pairing::take(value, into, &target, options, &completion)?;
    let taken = Instant::now();
    let mut report = CopyReport::new(paired.scan.target().id());
    report.traverse = taken - started;
    report.leaves = paired.leaves.len();
    match Job::into_memory(paired, options, completion) {
        Ok(job) => {
            let planned = Instant::now();
            report.plan = planned - taken;
            if let Some(recorder) = job.completion.metrics.recorder() {
                recorder.phase("traverse", started, taken);
                recorder.phase("plan", taken, planned);
            }
            Ok((Arc::new(job), report))
        }
        Err(failed) => {
            let (error, leaves, held) = *failed;
            take_and_put::restore(&leaves, value);
            let _ = put_callers_memory::give_back(&held, into, leaves.copy());
            Err(error)
        }
    }
}
