//! The copies that a backend is given.

use std::ptr::NonNull;

use crate::backend::{Buffer, Elements, Staging};
use crate::cast::Cast;

/// One copy of a contiguous range. There may be more kinds later: a backend is given those alone that it says it can run.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum CopyOp<'a> {
    /// Host to device.
    Upload {
        /// The source.
        from: HostSide<'a>,
        /// The destination, a buffer of the device that runs the copy.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
    /// Device to host.
    Download {
        /// The source, a buffer of the device that runs the copy.
        from: &'a dyn Buffer,
        /// Where in `from`, in bytes.
        from_offset: usize,
        /// The destination.
        to: HostSide<'a>,
        /// How much.
        bytes: usize,
    },
    /// Device to device. The device of `to` runs it, or that of `from`, whose kernels [reach](crate::backend::Backend::kernels_reach) `to`: memory of the program.
    Between {
        /// The source, a buffer of a device that the other one [reaches](crate::backend::Backend::reaches); both reach each other where this one runs the copy.
        from: &'a dyn Buffer,
        /// Where in `from`, in bytes.
        from_offset: usize,
        /// The destination.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
    /// Out of device memory, without the gaps of a strided tensor, and cast. Only for a device whose
    /// [`Limits::gather_strided`](crate::backend::Limits::gather_strided) or
    /// [`Limits::largest_strided`](crate::backend::Limits::largest_strided) says so.
    Gather {
        /// The source: a buffer of the device that runs the copy, or of one that it
        /// [reaches](crate::backend::Backend::reaches); memory of the program on another device only where that one
        /// [writes](crate::backend::Backend::is_written_by) to `to`, which this one has allocated.
        from: &'a dyn Buffer,
        /// The elements in `from`. At most [`Runs::MOST_DIMS`](crate::backend::Runs::MOST_DIMS) dimensions.
        elements: &'a Elements,
        /// How many bytes of the elements, taken without gaps and cast, are left out before. They may end within an element.
        skip: usize,
        /// The destination, which the bytes fill without gaps.
        to: GatherTo<'a>,
        /// How many bytes of the elements, cast. They may end within an element.
        bytes: usize,
    },
    /// To strided places of a buffer, whose gaps stay as they are. Only for a device whose
    /// [`Limits::gather_strided`](crate::backend::Limits::gather_strided) or
    /// [`Limits::largest_scattered_run`](crate::backend::Limits::largest_scattered_run) says so.
    Scatter {
        /// The source.
        from: ScatterFrom<'a>,
        /// The destination, a buffer of the device that runs the copy.
        to: &'a dyn Buffer,
        /// Where the bytes lie in both.
        elements: &'a Scattered,
    },
    /// Host to device, each element cast. Only for a device whose
    /// [`Limits::gather_strided`](crate::backend::Limits::gather_strided) or
    /// [`Limits::largest_strided`](crate::backend::Limits::largest_strided) says so.
    UploadCast {
        /// The source, a staging block as of [`HostSide::Staging`].
        from: &'a dyn Staging,
        /// Where in `from`, in bytes: elements side by side, which need not be aligned.
        from_offset: usize,
        /// What they become.
        cast: &'a Cast,
        /// The destination, a buffer of the device that runs the copy.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much of it is written: whole elements.
        bytes: usize,
    },
    /// Zeros.
    Clear {
        /// The destination.
        to: &'a dyn Buffer,
        /// Where in `to`, in bytes.
        to_offset: usize,
        /// How much.
        bytes: usize,
    },
}

impl CopyOp<'_> {
    /// How many bytes it writes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Upload { bytes, .. }
            | Self::UploadCast { bytes, .. }
            | Self::Download { bytes, .. }
            | Self::Between { bytes, .. }
            | Self::Gather { bytes, .. }
            | Self::Clear { bytes, .. } => *bytes,
            Self::Scatter { elements, .. } => elements.bytes,
        }
    }
}

/// Where a [`CopyOp::Gather`] writes.
#[derive(Clone, Copy)]
pub enum GatherTo<'a> {
    /// Host memory. The device of the source runs the copy.
    Host(HostSide<'a>),
    /// A buffer of the device that runs the copy, at an offset in bytes.
    Device(&'a dyn Buffer, usize),
}

/// Where a [`CopyOp::Scatter`] reads.
#[derive(Clone, Copy)]
pub enum ScatterFrom<'a> {
    /// A staging block as of [`HostSide::Staging`], in which elements need not be aligned.
    Staging(&'a dyn Staging),
    /// A buffer of the device that runs the copy, or of one that it [reaches](crate::backend::Backend::reaches).
    Device(&'a dyn Buffer),
}

/// What a [`CopyOp::Scatter`] copies: bytes of the elements of one place to as many of another one. Nothing is cast.
#[derive(Debug, Clone)]
pub struct Scattered {
    /// The elements that are read. At most [`Runs::MOST_DIMS`](crate::backend::Runs::MOST_DIMS) dimensions; none where the bytes lie
    /// side by side.
    pub from: Elements,
    /// How many bytes of these are left out before. They may end within an element.
    pub from_skip: usize,
    /// The elements that are written, of which none overlap. At most as many dimensions.
    pub to: Elements,
    /// How many bytes of these are left out before. They may end within an element.
    pub to_skip: usize,
    /// How many bytes are copied. They may end within an element.
    pub bytes: usize,
}

/// The end of a copy that lies in host memory.
#[derive(Clone, Copy)]
pub enum HostSide<'a> {
    /// In a staging block, at an offset in bytes: of the device that runs the copy, or for uploads of one whose blocks
    /// it [reads](crate::backend::Backend::reads_staging_of).
    Staging(&'a dyn Staging, usize),
    /// In a buffer with a host pointer, at an offset in bytes.
    Buffer(&'a dyn Buffer, usize),
}

impl HostSide<'_> {
    /// The same memory, at another offset.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> Self {
        match *self {
            Self::Staging(block, _) => Self::Staging(block, offset),
            Self::Buffer(buffer, _) => Self::Buffer(buffer, offset),
        }
    }

    /// The address, if it can be read.
    pub fn source(&self) -> Option<NonNull<u8>> {
        let (start, offset) = match self {
            Self::Staging(block, offset) => (block.window()?.at(0, 0)?, offset),
            Self::Buffer(buffer, offset) => (buffer.host_pointer()?.0, offset),
        };
        // SAFETY: `submit` requires that the range lies within the block or buffer.
        Some(unsafe { start.add(*offset) })
    }

    /// The address, if it can be written.
    pub fn destination(&self) -> Option<NonNull<u8>> {
        let (start, offset) = match self {
            Self::Staging(block, offset) => (block.contents()?, offset),
            Self::Buffer(buffer, offset) => {
                (buffer.host_pointer().filter(|(_, writable)| *writable)?.0, offset)
            }
        };
        // SAFETY: as in `source`.
        Some(unsafe { start.add(*offset) })
    }
}

/// What one call of [`Backend::submit`](crate::backend::Backend::submit) did.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Submission {
    /// The position behind it.
    pub position: u64,
    /// How many copies the driver was given.
    pub copies: usize,
    /// How many bytes they move.
    pub bytes: usize,
    /// How many places a kernel gathers that the backend has chosen itself, among `ops` of
    /// [`Backend::submit`](crate::backend::Backend::submit).
    pub gathered: usize,
}

impl Submission {
    /// One that ends at `position`, with `copies` copies of `bytes` bytes altogether.
    pub const fn new(position: u64, copies: usize, bytes: usize) -> Self {
        Self { position, copies, bytes, gathered: 0 }
    }

    /// The same, where a kernel gathers so many places.
    pub const fn gathering(self, gathered: usize) -> Self {
        Self { gathered, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of them are written and read for each copy of many small tensors.
    #[test]
    fn the_rarest_kind_makes_the_others_no_larger() {
        assert_eq!(size_of::<CopyOp<'_>>(), 72);
    }
}
