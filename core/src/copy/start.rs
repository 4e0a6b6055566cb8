//! Starts a copy.

use std::sync::Arc;
use std::time::Instant;

use crate::copy::handle::CopyHandle;
use crate::copy::take_and_put;
use crate::device::device::Device;
use crate::error::CopyError;
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::locate_leaves::Scan;
use crate::job::options::CopyOptions;
use crate::job::report::CopyReport;
use crate::runtime::trace::span;
use crate::transfer::launch::launch;
use crate::tree::tensor_tree::TensorTree;

/// Starts to copy every tensor of `value` to `to` and returns at once: the thread does not wait for a device.
///
/// With one exception, which is the driver's: a stream takes only so many submissions that it has not begun. CUDA's takes 1,022
/// small copies on a stream that stands still (an H200, driver 13.0); the next call waits until the stream goes on, on whichever
/// thread, and calls on other threads may have to wait for that one. A thread that starts a thousand copies without waiting for
/// any, behind a kernel that waits for the host, waits here. An [allocator of the program](CopyOptions::allocator) may block as well.
///
/// The structure comes out of the handle with its tensors on `to`. Meanwhile the copy owns it: sources cannot be
/// freed or changed while they are read, whatever happens to the handle.
///
/// - Tensors on the host are gathered into staging memory: small batches before this returns, large ones by workers.
/// - Tensors that are on `to` already stay as they are; equal tensors over the same memory still share it afterwards, views of
///   different parts of it do not.
/// - Strided tensors on the host arrive contiguous. So do views of device memory with gaps, which are those that lie in more bytes
///   than their elements have, where the device that reads them has a kernel for it
///   ([`Limits::gathers`](crate::backend::Limits::gathers): CUDA, HIP, GPUs of wgpu) and they have at most eight dimensions, where
///   dimensions that lie as one count as one; on wgpu they lie in at most
///   [`Limits::largest_strided`](crate::backend::Limits::largest_strided) bytes. The kernel does not read what the program has allocated
///   on another device. All other views of device memory, transposed, broadcast or overlapping ones, are copied as they lie and keep
///   their strides: ask [`is_contiguous`](crate::Tensor::is_contiguous).
/// - Everything that is no tensor stays untouched.
///
/// # Errors
///
/// An invalid option, a structure nested too deeply, memory that cannot be had, a failed submission. The error gives
/// the structure back as it was.
///
/// # Panics
///
/// If [`visit`](TensorTree::visit) of the structure does, which is dropped then.
///
/// ```
/// use transship_core::{CopyOptions, Device, Tensor, start_copy};
///
/// let batch = vec![Tensor::from(vec![1.0f32, 2.0]), Tensor::from(vec![3u8])];
/// let batch: Vec<Tensor> = start_copy(batch, &Device::host(), CopyOptions::default())?.wait()?;
/// assert_eq!(batch[0].as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), transship_core::Error>(())
/// ```
pub fn start_copy<S: TensorTree>(
    value: S,
    to: &Device,
    options: CopyOptions,
) -> Result<CopyHandle<S>, CopyError<S>> {
    let span = span!(
        "start_copy",
        device = to.id().to_string(),
        copy = tracing::field::Empty,
        leaves = tracing::field::Empty,
        bytes = tracing::field::Empty
    );
    let completion = Completion::within(options.deadline, options.timeline.as_ref());
    let _timed = completion.metrics.timed("start_copy");
    let Prepared { mut value, job, report } = Prepared::new(value, to, &options, completion)?;
    job.describe(&span);
    match job.allocate_by_program(&options).and_then(|()| launch(&job, &span)) {
        Ok(workers) => Ok(CopyHandle::new(value, job, workers, report)),
        Err(error) => {
            job.completion.fail(error.clone());
            take_and_put::restore(&job.leaves, &mut value);
            Err(CopyError::new(error, Some(value)).of_copy_to(to.id()))
        }
    }
}

/// A structure whose tensors were taken out of it, and the copy that they were planned for.
pub(crate) struct Prepared<S> {
    pub(crate) value: S,
    pub(crate) job: Arc<Job>,
    pub(crate) report: CopyReport,
}

impl<S: TensorTree> Prepared<S> {
    /// Takes and plans; submits nothing.
    pub(crate) fn new(
        mut value: S,
        to: &Device,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, CopyError<S>> {
        let mut report = CopyReport::new(to.id());
        let mut scan = match options.validate().and_then(|()| Scan::new(to, options)) {
            Ok(scan) => scan,
            Err(error) => return Err(CopyError::new(error, Some(value)).of_copy_to(to.id())),
        };
        let started = Instant::now();
        let leaves = match take_and_put::take(&mut value, &mut scan, &completion) {
            Ok(leaves) => leaves,
            Err(error) => return Err(CopyError::new(error, Some(value)).of_copy_to(to.id())),
        };
        let taken = Instant::now();
        report.traverse = taken - started;
        let job = match Job::new(leaves, scan, options, completion) {
            Ok(job) => Arc::new(job),
            Err(failed) => {
                let (error, leaves) = *failed;
                take_and_put::restore(&leaves, &mut value);
                return Err(CopyError::new(error, Some(value)).of_copy_to(to.id()));
            }
        };
        let planned = Instant::now();
        report.plan = planned - taken;
        if let Some(recorder) = job.completion.metrics.recorder() {
            recorder.phase("traverse", started, taken);
            recorder.phase("plan", taken, planned);
        }
        report.leaves = job.leaves.len();
        Ok(Self { value, job, report })
    }
}
