//! How storages come about: over new memory, over memory that is lent, as parts of one another.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::MemoryKind;
use crate::backend::host::foreign_memory::ForeignMemory;
use crate::device::device::Device;
use crate::in_flight::completion::Completion;
use crate::in_flight::locked_uses::LockedUses;
use crate::in_flight::memory_budget::Allocated;
use crate::plan::plan::Chunk;
use crate::runtime::sync::atomic::AtomicBool;
use crate::tensor::bulk_arc::BulkArc;
use crate::tensor::memory::{Memory, Owner};
use crate::tensor::parts::{Joined, Split, Whole};
use crate::tensor::storage::{Gaps, Lent, Storage, StorageInner};

impl Storage {
    /// Takes a buffer of `device` (`None`: of the host), filled by a copy or usable at once.
    pub(crate) fn new(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
    ) -> Self {
        Self::with(buffer, device, filled_by, Gaps::Kept, Lent::No)
    }

    /// The same for the memory of a chunk.
    pub(crate) fn planned(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Arc<Completion>,
        chunk: &Chunk,
    ) -> Self {
        Self::with(buffer, device, Some(filled_by), gaps_of(chunk), Lent::No)
    }

    /// The same in memory of somebody else, who lets it be written.
    pub(crate) fn planned_in_lent(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Arc<Completion>,
        chunk: &Chunk,
    ) -> Self {
        // Whole granules were asked for.
        Self::with(buffer, device, Some(filled_by), gaps_of(chunk), Lent::ToWrite).seen_up_to(0)
    }

    /// The same for memory whose gaps belong to somebody or not.
    pub(crate) fn with_gaps(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
        gaps: Gaps,
    ) -> Self {
        Self::with(buffer, device, filled_by, gaps, Lent::No)
    }

    /// The same for memory of somebody else, who lets it be read.
    pub(crate) fn lent(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
    ) -> Self {
        Self::lent_to(Lent::ToRead, buffer, device, filled_by)
    }

    /// The same for memory of somebody else, who lets that be done with it.
    pub(crate) fn lent_to(
        lent: Lent,
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
    ) -> Self {
        Self::with(buffer, device, filled_by, Gaps::Kept, lent)
    }

    /// It, whose lender leaves what lies behind `end` to copies: the rest of the last granule. To be called before it is shared.
    pub(crate) fn seen_up_to(mut self, end: usize) -> Self {
        if let Some(inner) = self.0.get_mut() {
            inner.seen_up_to = end;
        }
        self
    }

    /// The same for memory that others have in between: what no tensor is over is not read.
    pub(crate) fn lent_in_pieces(
        buffer: impl Into<Allocated>,
        device: &Device,
        filled_by: Option<Arc<Completion>>,
    ) -> Self {
        Self::with(buffer, Some(device.clone()), filled_by, Gaps::Unread, Lent::ToRead)
    }

    /// The same for memory of the host whose owner has lent more of it.
    pub(crate) fn lent_part(
        lent: Lent,
        part: ForeignMemory<Owner>,
        filled_by: Option<Arc<Completion>>,
    ) -> Self {
        Self::over(Memory::Part(part), None, filled_by, Gaps::Kept, lent)
    }

    /// Part number `number` of `whole`, which lies at `range` of its buffer, its elements up to `elements_end`.
    pub(crate) fn part(whole: &Arc<Whole>, number: usize, range: Range<usize>, elements_end: usize) -> Self {
        let from = whole.storage();
        let memory = Memory::Split(Split::new(whole, number, range.start));
        Self(BulkArc::new(StorageInner {
            bytes: range.end,
            seen_up_to: elements_end.max(from.0.seen_up_to),
            host: from.0.host,
            memory: ManuallyDrop::new(memory),
            device: from.0.device.clone(),
            filled_by: from.pending().cloned(),
            gaps: Gaps::Kept,
            lent: from.0.lent,
            used: AtomicBool::new(true),
            uses: LockedUses::new(whole.uses_so_far()),
        }))
    }

    /// All parts of `whole`, which `filled_by` fills.
    pub(crate) fn joined(whole: Arc<Whole>, parts: Vec<Self>, filled_by: Option<Arc<Completion>>) -> Self {
        let from = whole.storage().0.clone();
        let mut joined = Self(BulkArc::new(StorageInner {
            bytes: from.bytes,
            seen_up_to: from.seen_up_to,
            host: from.host,
            memory: ManuallyDrop::new(Memory::Joined(Box::new(Joined::new(whole, parts)))),
            device: from.device.clone(),
            filled_by,
            gaps: Gaps::Kept,
            lent: from.lent,
            used: AtomicBool::new(true),
            uses: LockedUses::default(),
        }));
        drop(from);
        joined.settle();
        joined
    }

    /// Makes one storage out of parts that were joined, if nothing is in flight in them any more.
    pub(crate) fn settle(&mut self) {
        let Memory::Joined(joined) = &*self.0.memory else { return };
        if self.check_ready().is_err() || !self.is_exclusive() {
            return;
        }
        // The parts go, and leave their uses to the whole.
        let whole = joined.whole().storage().clone();
        *self = whole;
        self.swap_filler(&mut None);
    }

    fn with(
        buffer: impl Into<Allocated>,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
        gaps: Gaps,
        lent: Lent,
    ) -> Self {
        Self::over(Memory::Buffer(buffer.into()), device, filled_by, gaps, lent)
    }

    #[inline]
    fn over(
        memory: Memory,
        device: Option<Device>,
        filled_by: Option<Arc<Completion>>,
        gaps: Gaps,
        lent: Lent,
    ) -> Self {
        let buffer = memory.buffer();
        let buffer_bytes = buffer.bytes();
        let memory = StorageInner {
            // An idle block may still be mapped from its last use, and is mapped anew, perhaps elsewhere, by the next one.
            host: buffer.host_pointer().filter(|_| buffer.kind() != MemoryKind::Mapped),
            bytes: buffer_bytes,
            memory: ManuallyDrop::new(memory),
            device: device.filter(|device| !device.is_host()),
            filled_by,
            gaps,
            lent,
            seen_up_to: if lent == Lent::ToWrite { buffer_bytes } else { 0 },
            used: AtomicBool::new(false),
            uses: LockedUses::default(),
        };
        Self(BulkArc::new(memory))
    }
}

fn gaps_of(chunk: &Chunk) -> Gaps {
    if chunk.order.len() > 1 { Gaps::Padding } else { Gaps::Kept }
}
