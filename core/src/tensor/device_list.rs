//! Ranges of memory of a device that copies read as one run of bytes.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;

use crate::backend::{Backend, Buffer, MemoryKind, RawMemory};
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::tensor::layout::Layout;
use crate::tensor::lent_together::has;
use crate::tensor::memory::Owner;
use crate::tensor::storage::Storage;

/// Memory that lies nowhere as a whole: it has no address. What is between two ranges is no memory, and is not copied.
pub(crate) struct DeviceList {
    /// None is empty.
    ranges: Vec<ListedRange>,
    parts: Vec<Part>,
    bytes: usize,
    has_gaps: bool,
}

struct ListedRange {
    /// The number of the part that it lies in.
    part: u32,
    address: u64,
    /// Its offset in the list, in bytes.
    to: usize,
    bytes: usize,
}

/// From the first to the last byte of the ranges in one allocation.
struct Part {
    address: u64,
    buffer: Box<dyn Buffer>,
}

/// What lies in one run, in the list and in memory.
pub(crate) struct Run {
    /// The number of the buffer that it lies in, and the offset there, in bytes.
    pub(crate) buffer: u32,
    pub(crate) from: usize,
    /// Its offset in the list, in bytes.
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

impl DeviceList {
    /// Each piece comes with its offset; none begins before the end of the one before it. The driver is asked about each allocation once.
    ///
    /// # Safety
    ///
    /// As [`Backend::wrap`] of `device`, for each piece, until `owner` is dropped.
    pub(crate) unsafe fn new(
        pieces: impl IntoIterator<Item = (RawMemory, usize)>,
        device: &Device,
        owner: &Owner,
    ) -> Result<Self> {
        let pieces = pieces.into_iter();
        let mut ranges = Vec::with_capacity(pieces.size_hint().0);
        let (mut end, mut has_gaps, mut allocations) = (0, false, Allocations::default());
        for (memory, to) in pieces {
            let RawMemory { address, bytes, kind } = memory;
            let invalid = |reason| Error::InvalidMemory { address, bytes, reason };
            if kind != MemoryKind::Device {
                return Err(invalid(format!("it is {kind:?} memory, and a device gathers its own alone")));
            }
            let next = to.checked_add(bytes).filter(|_| to >= end);
            let next = next.ok_or_else(|| {
                invalid(format!("its offset is {to}, and the piece before it ends at {end}"))
            })?;
            has_gaps |= to > end;
            end = next;
            if bytes > 0 {
                let part = allocations.part_of(memory, |address| device.backend().allocation_of(address));
                ranges.push(ListedRange { part, address, to, bytes });
            }
        }
        let wrap = |memory: RawMemory| {
            // SAFETY: the caller's promise: nothing but the pieces is read (`within`). This share of the owner keeps them.
            let buffer = unsafe { device.backend().wrap(memory, Box::new(owner.clone())) }?;
            Ok(Part { address: memory.address, buffer })
        };
        let parts = allocations.used.into_iter().map(wrap).collect::<Result<_>>()?;
        Ok(Self { ranges, parts, bytes: end, has_gaps })
    }

    /// It, if that is what the buffer is.
    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    /// The same of a tensor's memory. Only what is lent to be copied can be one.
    pub(crate) fn of_storage(storage: &Storage) -> Option<&Self> {
        let may_be = storage.device().is_some() && storage.is_shared_with_others();
        may_be.then(|| Self::of(storage.buffer())).flatten()
    }

    /// How many runs it consists of.
    pub(crate) fn runs(&self) -> usize {
        self.ranges.len()
    }

    /// The buffer of this number.
    pub(crate) fn buffer(&self, number: u32) -> Option<&dyn Buffer> {
        self.parts.get(number as usize).map(|part| &*part.buffer)
    }

    /// What lies among these bytes of it, in order.
    pub(crate) fn within(&self, bytes: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let Range { start, end } = bytes;
        self.ranges_within(start, end).iter().filter_map(move |range| {
            let (begin, until) = (range.to.max(start), (range.to + range.bytes).min(end));
            let part = self.parts.get(range.part as usize)?;
            let from = (range.address - part.address) as usize + (begin - range.to);
            Some(Run { buffer: range.part, from, to: begin, bytes: until - begin })
        })
    }

    /// How many runs these are.
    pub(crate) fn count_within(&self, bytes: Range<usize>) -> usize {
        self.ranges_within(bytes.start, bytes.end).len()
    }

    fn ranges_within(&self, start: usize, end: usize) -> &[ListedRange] {
        let first = self.ranges.partition_point(|range| range.to + range.bytes <= start);
        let behind = self.ranges.partition_point(|range| range.to < end);
        self.ranges.get(first..behind).unwrap_or_default()
    }

    /// Fails unless a view of it can be copied: one run of its bytes, and into memory that is there where it has gaps, which nobody writes.
    pub(crate) fn check_view(&self, device: DeviceId, layout: &Layout, into_memory: bool) -> Result<()> {
        let what = if layout.numel() == 0 {
            return Ok(());
        } else if !layout.is_contiguous() {
            "copy views with strides of gathered pieces of its memory; copy all of them, and take views of that"
        } else if self.has_gaps && !into_memory {
            "copy pieces of its memory that are gathered with gaps into new memory; use start_copy_into, or leave no gaps"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported { device, what })
    }
}

/// Whether kernels of `reader` reach what is lent in `buffer`, which lies on another device.
pub(crate) fn kernels_reach(reader: &dyn Backend, buffer: &dyn Buffer) -> bool {
    match DeviceList::of(buffer) {
        Some(list) => list.parts.iter().all(|part| reader.kernels_reach(&*part.buffer)),
        None => reader.kernels_reach(buffer),
    }
}

/// The allocations that pieces lie in, and what is used of each.
#[derive(Default)]
struct Allocations {
    used: Vec<RawMemory>,
    /// The bounds of the last of them; `None` where the driver does not say.
    last: Option<Range<u64>>,
    /// All bounds, by where they begin, with the numbers of those in `used`.
    known: BTreeMap<u64, (Range<u64>, u32)>,
    number: u32,
}

impl Allocations {
    /// The number of the one that `piece` lies in.
    fn part_of(&mut self, piece: RawMemory, allocation_of: impl Fn(u64) -> Option<Range<u64>>) -> u32 {
        if !self.last.as_ref().is_some_and(|bounds| has(bounds, piece)) {
            let known = self.known.range(..=piece.address).next_back();
            let known = known.map(|(_, known)| known).filter(|(bounds, _)| has(bounds, piece));
            if let Some((bounds, number)) = known {
                (self.last, self.number) = (Some(bounds.clone()), *number);
            } else {
                self.last = allocation_of(piece.address).filter(|bounds| has(bounds, piece));
                // Fewer than there are pieces, of which a copy has less than 2^32.
                self.number = self.used.len() as u32;
                self.used.push(piece);
                if let Some(bounds) = &self.last {
                    self.known.insert(bounds.start, (bounds.clone(), self.number));
                }
                return self.number;
            }
        }
        if let Some(used) = self.used.get_mut(self.number as usize) {
            extend(used, piece);
        }
        self.number
    }
}

/// Makes `used` as large as to have `piece`, which lies in the same allocation.
fn extend(used: &mut RawMemory, piece: RawMemory) {
    let end = (used.address + used.bytes as u64).max(piece.address + piece.bytes as u64);
    used.address = used.address.min(piece.address);
    used.bytes = (end - used.address) as usize;
}

// SAFETY: it says of no address that the memory is there. The parts keep promises 3 and 4, and go with it.
unsafe impl Buffer for DeviceList {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address(&self) -> Option<u64> {
        None
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        None
    }
}
