//! What kernels copy out of the memory of a device, and what they need for it.

use std::num::NonZero;

use crate::backend::Limits;
use crate::backend::kernel_table::parts;
use crate::device::block_size::power_within;
use crate::device::device::Device;
use crate::job::source::reader;
use crate::plan::plan::Chunk;

/// What a block of threads gathers of a strided tensor, in bytes: so little that even a small copy keeps a device busy. 10 tensors of
/// 64 KB come down in 36 us in parts of 4 KiB, and in 58 with a launch for each tensor (H200).
const LEAST_PART: usize = 4 << 10;
const LARGEST_PART: usize = 16 << 10;
/// So many blocks are enough.
const BLOCKS: usize = 512;

/// The largest range that a kernel copies to the host, in bytes. 4,000 tensors with a heavy tail (173 MB) come down at 42 GB/s then; with
/// 128 KiB at 39, with 64 KiB at 35 (H200). Larger copies leave the processors of the device to others.
pub(crate) const LARGEST_DOWN: usize = 512 << 10;
/// The same to memory of a device, its own or that of a peer: a copy by the driver takes 10 us beside its bytes, and kernels read over the link
/// at 360 GB/s (two H100s, NVLink).
const LARGEST_TO_DEVICE: usize = 4 << 20;
/// So many parts of a leaf are written to a table in the time in which a leaf is found and looked at.
const PARTS_OF_A_LEAF: usize = 16;
/// What a block of threads copies of a range, in bytes, unless granules are larger. Parts of 16 KiB and of 64 KiB are 1 and 5 % slower
/// (H200).
const PART_OF_RANGE: usize = 32 << 10;

/// The kernels of a device: how many bytes of its table each needs for a copy; `None` where there is no such kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kernels {
    /// What copies ranges.
    pub(crate) ranges: Option<RangeKernel>,
    /// Of a part of a strided tensor. `None` as well where no tensor of the copy has gaps that are left out.
    pub(crate) strided: Option<StridedKernel>,
}

/// The kernel that leaves gaps out.
#[derive(Clone, Copy)]
pub(crate) enum StridedKernel {
    /// It needs so many bytes of its table for each part, and writes to staging and registered memory.
    ByTable(usize),
    /// The backend runs it beside other copies ([`Limits::largest_strided`]), to any memory.
    InSubmission,
}

impl StridedKernel {
    fn of(limits: &Limits) -> Option<Self> {
        match limits.gather_strided {
            Some(entry) => Some(Self::ByTable(entry)),
            None => limits.gathers().then_some(Self::InSubmission),
        }
    }
}

/// The kernel that copies ranges.
#[derive(Clone, Copy)]
pub(crate) struct RangeKernel {
    /// How many bytes of its table it needs for each part.
    pub(crate) entry: usize,
    /// The largest part, in bytes: whole granules.
    pub(crate) part: NonZero<usize>,
    /// The largest range that it copies, in bytes.
    pub(crate) largest: usize,
}

impl RangeKernel {
    /// How many entries a range of so many bytes has; `None` if it is too large.
    #[inline]
    pub(crate) fn entries(self, bytes: usize) -> Option<usize> {
        (bytes <= self.largest).then(|| parts(bytes, self.part))
    }
}

impl Kernels {
    /// Those of the device that reads what lies on `source` and goes to `target`. `gathers`: gaps are left out. `reaches_all`: its kernels reach all of
    /// it. What they do not reach, the driver copies, or kernels of `source` by [`Backend::is_written_by`](crate::backend::Backend::is_written_by): none of it
    /// is in a table.
    pub(crate) fn of(source: Option<&Device>, target: &Device, gathers: bool, reaches_all: bool) -> Self {
        source.map_or(Self::default(), |source| {
            let reader = reader(source, target);
            let limits = reader.limits();
            Self {
                ranges: limits.gather.filter(|_| reaches_all).map(|entry| RangeKernel {
                    entry,
                    part: part_of_range(limits),
                    largest: if reader.same_as(target) { LARGEST_TO_DEVICE } else { LARGEST_DOWN },
                }),
                strided: match reaches_all {
                    true => StridedKernel::of(limits),
                    false => Some(StridedKernel::InSubmission),
                }
                .filter(|_| gathers),
            }
        })
    }

    /// Whether there is any.
    pub(crate) fn exist(self) -> bool {
        self.ranges.is_some() || self.strided.is_some()
    }

    /// How many bytes of a table the kernel that leaves gaps out needs for each part, if it needs one.
    pub(crate) fn strided_entry(self) -> Option<usize> {
        match self.strided? {
            StridedKernel::ByTable(entry) => Some(entry),
            StridedKernel::InSubmission => None,
        }
    }

    /// Whether it writes to memory that is neither staging nor registered.
    pub(crate) fn reach_all_memory(self) -> bool {
        matches!(self.strided, Some(StridedKernel::InSubmission))
    }

    /// The largest table that the leaves of `chunks` may have, of which some consist of `listed` pieces; `None` if there is no kernel. Leaves that are
    /// too large for it have chunks of their own, as have those of many pieces.
    pub(crate) fn largest_table(self, chunks: &[Chunk], listed: usize) -> Option<LargestTable> {
        let entry = self.ranges.map(|ranges| ranges.entry).max(self.strided_entry())?;
        let largest = self.ranges.map_or(LARGEST_DOWN, |ranges| ranges.largest);
        let copied =
            chunks.iter().filter(|chunk| listed > 0 || chunk.order.len() > 1 || chunk.bytes <= largest);
        let count = |(leaves, bytes): (usize, usize), chunk: &Chunk| {
            (leaves + chunk.order.len(), bytes + chunk.bytes)
        };
        let (leaves, bytes) = copied.fold((listed, 0), count);
        let parts = match self.strided {
            Some(_) => (bytes / LEAST_PART).min(2 * BLOCKS).max(bytes / LARGEST_PART),
            None => self.ranges.map_or(0, |ranges| parts(bytes, ranges.part)),
        };
        Some(LargestTable { entry, leaves, parts })
    }
}

/// How large a table may become.
#[derive(Clone, Copy)]
pub(crate) struct LargestTable {
    /// The bytes of one entry.
    entry: usize,
    leaves: usize,
    /// So many entries at most are parts of a leaf behind its first one.
    parts: usize,
}

impl LargestTable {
    pub(crate) fn bytes(self) -> usize {
        self.leaves.saturating_add(self.parts).saturating_mul(self.entry)
    }

    /// Those of leaves. Parts count as leaves that take as long to write.
    pub(crate) fn bytes_of_leaves(self) -> usize {
        self.leaves.saturating_add(self.parts / PARTS_OF_A_LEAF).saturating_mul(self.entry)
    }
}

fn part_of_range(limits: &Limits) -> NonZero<usize> {
    NonZero::new(PART_OF_RANGE.max(limits.copy_granularity.bytes())).unwrap_or(NonZero::<usize>::MIN)
}

/// How many bytes a block of threads gathers of a strided tensor, where `bytes` are copied in all.
pub(crate) fn part_of_block(bytes: usize) -> usize {
    power_within(bytes / BLOCKS).clamp(LEAST_PART, LARGEST_PART)
}
