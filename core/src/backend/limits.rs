//! What a device demands of a plan.

use crate::alignment::Alignment;
use crate::backend::Runs;

/// What a device demands of a plan. It is asked once, when the device is opened, and refused if it is out of the ranges given
/// here ([`Error::InvalidLimit`](crate::Error::InvalidLimit)); what has none may be anything.
///
/// ```
/// use transship_core::Alignment;
/// use transship_core::backend::Limits;
///
/// let mut limits = Limits::new(const { Alignment::new(256).unwrap() }, 1 << 30);
/// limits.copy_granularity = const { Alignment::new(4).unwrap() };
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Offsets and sizes of copies are multiples of this, and so are the sizes of buffers. At most 64 KiB.
    pub copy_granularity: Alignment,
    /// Where a buffer may be bound to a kernel on its own: offsets are multiples of this.
    pub bindable_alignment: Alignment,
    /// How buffers are aligned at the least. At least 16 bytes.
    pub buffer_alignment: Alignment,
    /// The largest buffer, in bytes. At least one granule.
    pub largest_buffer: usize,
    /// The host writes to a new buffer directly, which makes staging pointless.
    pub host_writable: bool,
    /// New buffers of up to so many bytes the host writes directly, which is faster than staging there
    /// ([`Backend::allocate_open`](crate::backend::Backend::allocate_open)); 0 where there is no such memory.
    pub largest_open: usize,
    /// Staging blocks belong to buffers of the device's own API: the host has access only while no copy uses them, and
    /// copies reach no other host memory, page-locked or not.
    pub mapped_staging: bool,
    /// The device can make many small copies by one kernel
    /// ([`Backend::submit_gathered`](crate::backend::Backend::submit_gathered)), which needs so many bytes of
    /// staging for each, or for each part of one; `None` if it cannot, or if its staging is mapped: copies beside the kernel would be a second
    /// submission that uses a block. At most 8192.
    pub gather: Option<usize>,
    /// The device can leave out the gaps of strided tensors and cast elements ([`CopyOp::Gather`](crate::backend::CopyOp::Gather),
    /// [`CopyOp::UploadCast`](crate::backend::CopyOp::UploadCast)), one at a time or many by one kernel, whose table needs so many
    /// bytes of staging for each, and write to strided places ([`CopyOp::Scatter`](crate::backend::CopyOp::Scatter)), one at a time;
    /// `None` if it cannot, if its staging is mapped, or if it copies granules of more than a byte. At most 8192.
    pub gather_strided: Option<usize>,
    /// The device leaves out the gaps of strided tensors and casts elements ([`CopyOp::Gather`](crate::backend::CopyOp::Gather),
    /// [`CopyOp::UploadCast`](crate::backend::CopyOp::UploadCast)) beside the other copies of a submission, to any host memory and
    /// without a table of ours, where elements with gaps have at most so many bytes and the memory from the first to the last as well;
    /// those in one run, which are cast, may have any number. 0 if it cannot, or if [`gather`](Self::gather) or
    /// [`gather_strided`](Self::gather_strided) is set. It begins to write with a granule ([`copy_granularity`](Self::copy_granularity)),
    /// whole granules of elements are left out before, and it may write up to the end of the last one.
    pub largest_strided: usize,
    /// The device writes to strided places as well ([`CopyOp::Scatter`](crate::backend::CopyOp::Scatter)), in runs of elements of at most so many
    /// bytes; longer ones are a copy each. 0 if it does not. The elements, and the memory from the first to the last of either side, have at
    /// most [`largest_strided`](Self::largest_strided) bytes, which must be set then; runs and steps that it writes are whole granules. Devices
    /// with [`gather_strided`](Self::gather_strided) write runs of any size.
    pub largest_scattered_run: usize,
    /// It does so where a tensor has so many runs; fewer are a copy each.
    pub fewest_scattered_runs: usize,
    /// So many copies down to the host, without the table of a kernel, the caller's thread submits itself; more are left to a
    /// worker. 64, unless the device is faster at many.
    pub copies_at_once: usize,
}

impl Limits {
    /// Those of a device that copies any number of bytes from and to any offset, and has neither open memory, nor mapped staging,
    /// nor a kernel that copies. What else a device has is set in the fields.
    pub const fn new(buffer_alignment: Alignment, largest_buffer: usize) -> Self {
        Self {
            copy_granularity: Alignment::ONE,
            bindable_alignment: Alignment::ONE,
            buffer_alignment,
            largest_buffer,
            host_writable: false,
            largest_open: 0,
            mapped_staging: false,
            gather: None,
            gather_strided: None,
            largest_strided: 0,
            largest_scattered_run: 0,
            fewest_scattered_runs: 0,
            copies_at_once: 64,
        }
    }

    /// Whether the device runs a [`CopyOp::Gather`](crate::backend::CopyOp::Gather), if not of every tensor, and a
    /// [`CopyOp::UploadCast`](crate::backend::CopyOp::UploadCast).
    pub fn gathers(&self) -> bool {
        self.gather_strided.is_some() || self.largest_strided > 0
    }

    /// Whether the device runs a [`CopyOp::Scatter`](crate::backend::CopyOp::Scatter) that writes elements which lie so.
    pub(crate) fn scatters(&self, runs: &Runs) -> bool {
        if runs.dims().len() > Runs::MOST_DIMS {
            return false;
        }
        let bytes = runs.count() * runs.bytes();
        self.gather_strided.is_some()
            || (runs.bytes() <= self.largest_scattered_run
                && runs.count() >= self.fewest_scattered_runs
                && bytes.max(runs.span()) <= self.largest_strided)
    }
}
