//! Memory that tensors share: a buffer, where it lies, and when it may be used.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::host::foreign_memory::ForeignMemory;
use crate::backend::{BackendStream, Buffer, MemoryKind, Ticket, WriteWindow};
use crate::device::device::Device;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::deferred_release;
use crate::in_flight::graph_use::GraphUse;
use crate::in_flight::locked_uses::LockedUses;
use crate::in_flight::memory_budget::Allocated;
use crate::in_flight::retained::Retained;
use crate::in_flight::stream_uses::{Handed, List, StreamUses, Uses};
use crate::plan::plan::Chunk;
use crate::runtime::fork;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::staging::page_locked::PageLocked;
use crate::tensor::bulk_arc;
use crate::tensor::bulk_arc::BulkArc;
use crate::tensor::memory;
use crate::tensor::memory::{Memory, Owner};
use crate::tensor::parts::{Joined, Split, Whole};

/// Shared ownership of one piece of memory. Cloning it shares the memory.
#[derive(Clone)]
pub(crate) struct Storage(BulkArc<StorageInner>);

/// A storage for several tensors; see [`Storage::shares`].
pub(crate) struct Shares(bulk_arc::BulkClones<StorageInner>);

impl Iterator for Shares {
    type Item = Storage;

    #[inline]
    fn next(&mut self) -> Option<Storage> {
        self.0.next().map(Storage)
    }
}

/// What a traversal looks at comes first, in one cache line with the count.
#[repr(C)]
struct StorageInner {
    /// Where it ends in its buffer. A part does not begin at the start, but no offset of a tensor in it lies before it.
    bytes: usize,
    host: Option<(NonNull<u8>, bool)>,
    /// `None` is the host: sources are let go of by many threads at once, and a shared count would slow them down.
    device: Option<Device>,
    /// The copy that fills the memory; `None` for memory that was there before.
    filled_by: Option<Arc<Completion>>,
    gaps: Gaps,
    lent: Lent,
    /// Bytes before this are seen by others than who holds the storage alone: by its lender, or by who joins a part with the others.
    seen_up_to: usize,
    /// Whether there was ever something in `uses`, which is locked only then.
    used: AtomicBool,
    memory: ManuallyDrop<Memory>,
    uses: LockedUses,
}

// SAFETY: `host` points into `memory`, which is Send and Sync; reads and writes through it are guarded by
// `host_bytes` (no copy in flight writes it) and `host_bytes_mut` (nobody else holds the storage).
unsafe impl Send for StorageInner {}
// SAFETY: as above.
unsafe impl Sync for StorageInner {}

/// Whether the program has allocated the memory, and what it lets be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lent {
    /// It is ours.
    No,
    ToRead,
    ToWrite,
    /// To be read by copies alone: others, such as another process, may write it at any time.
    ToCopy,
}

/// Whose the bytes between tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// Perhaps somebody's.
    Kept,
    /// Padding of a plan, which belongs to no tensor.
    Padding,
    /// Not lent: not even read.
    Unread,
}

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

    /// Fails unless it may be written and nobody else holds it, but for the copy that still fills it.
    pub(crate) fn check_splittable(&self) -> Result<()> {
        if !self.is_writable() {
            let cure = "split a copy of it, or memory that was lent to be written";
            return Err(Error::NotWritable { why: "lent read-only", cure });
        }
        let is_filled = || matches!(self.check_ready(), Err(Error::NotReady));
        let is_joined = matches!(&*self.0.memory, Memory::Joined(_));
        match self.is_exclusive() || is_filled() || self.is_exclusive() {
            true if is_joined => {
                let cure = "wait for what fills and reads them (Device::synchronize)";
                Err(Error::NotWritable { why: "joined of parts that are still in flight", cure })
            }
            true => Ok(()),
            false => Err(self.shared()),
        }
    }

    /// What tells this storage from any other that is alive.
    #[inline]
    pub(crate) fn identity(&self) -> usize {
        self.0.address()
    }

    /// It for `count` more tensors, which are counted now.
    #[inline]
    pub(crate) fn shares(&self, count: usize) -> Shares {
        Shares(self.0.shares(count))
    }

    /// Where it ends, counted from the start of its buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether others than who holds it alone see bytes behind `end`.
    pub(crate) fn is_seen_behind(&self, end: usize) -> bool {
        end < self.0.seen_up_to
    }

    /// The size of what it keeps alive.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.buffer().bytes()
    }

    /// The size of what is its own.
    pub(crate) fn own_bytes(&self) -> usize {
        match &*self.0.memory {
            Memory::Split(part) => self.0.bytes.saturating_sub(part.start()),
            _ => self.0.bytes,
        }
    }

    /// What it is a part of, and which.
    pub(crate) fn as_part(&self) -> Option<&Split> {
        match &*self.0.memory {
            Memory::Split(part) => Some(part),
            Memory::Joined(joined) => joined.whole().storage().as_part(),
            Memory::Buffer(_) | Memory::Part(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.buffer().kind()
    }

    pub(crate) fn buffer(&self) -> &dyn Buffer {
        self.0.memory.buffer()
    }

    /// The device, `None` for the host.
    #[inline]
    pub(crate) fn device(&self) -> Option<&Device> {
        self.0.device.as_ref()
    }

    pub(crate) fn device_id(&self) -> DeviceId {
        self.0.device.as_ref().map_or(DeviceId::HOST, Device::id)
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    pub(crate) fn gaps(&self) -> Gaps {
        self.0.gaps
    }

    /// Whether its owner lets it be written.
    pub(crate) fn is_writable(&self) -> bool {
        let by_host = || self.0.host().is_some_and(|(_, writable)| writable);
        matches!(self.0.lent, Lent::No | Lent::ToWrite)
            && (self.0.device.is_some() || self.0.bytes == 0 || by_host())
    }

    /// Whether nobody else holds it: no other tensor, and nothing in flight.
    pub(crate) fn is_exclusive(&self) -> bool {
        !self.0.is_shared() && self.0.memory.is_exclusive()
    }

    /// All of it, if nobody else holds it.
    fn exclusive(&mut self) -> Option<&mut StorageInner> {
        if !self.0.memory.is_exclusive() {
            return None;
        }
        self.0.get_mut()
    }

    /// Takes out the uses that are over, if nobody else holds it: dropping them may run code of a stream's owner. A stream that somebody
    /// holds stays, whether or not it has work now: the memory was handed to it until its end.
    pub(crate) fn take_over_uses(&mut self) -> List {
        self.exclusive().map(|memory| memory.take_over_uses()).unwrap_or_default()
    }

    /// Whether nothing of its uses runs now.
    #[cfg(feature = "dlpack")]
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_unused()
    }

    /// Swaps the copy that fills it for another one; `false`, and nothing is changed, if somebody else holds it.
    pub(crate) fn swap_filler(&mut self, filler: &mut Option<Arc<Completion>>) -> bool {
        let memory = self.exclusive();
        memory.map(|memory| std::mem::swap(&mut memory.filled_by, filler)).is_some()
    }

    /// What tells the device from any other that is open; 0 is the host.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.0.device.as_ref().map_or(0, Device::identity)
    }

    /// Whether the program has allocated it.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Whether a range of it is memory that is there and filled, and that no stream uses.
    #[inline]
    pub(crate) fn is_plain(&self, offset: usize, bytes: usize) -> bool {
        self.pending().is_none()
            && !self.0.used.load(Ordering::Acquire)
            && offset.checked_add(bytes).is_some_and(|end| end <= self.0.bytes)
    }

    /// The copy that fills the memory, unless that is known to be done.
    #[inline]
    pub(crate) fn pending(&self) -> Option<&Arc<Completion>> {
        self.0.filled_by.as_ref().filter(|copy| !copy.is_done_cached())
    }

    /// Fails unless whatever fills the memory is done. Asks the driver at most once; never blocks.
    pub(crate) fn check_ready(&self) -> Result<()> {
        match &self.0.filled_by {
            None => Ok(()),
            Some(copy) => match copy.is_done() {
                Ok(true) => Ok(()),
                Ok(false) => Err(Error::NotReady),
                Err(error) => Err(poisoned(error)),
            },
        }
    }

    /// Fails unless whatever fills the memory is done, or has failed and has nothing in flight. Never blocks.
    fn check_over(&self) -> Result<()> {
        let Some(copy) = self.pending() else { return Ok(()) };
        fork::check()?;
        match copy.is_over(false).map_err(poisoned)? {
            true => Ok(()),
            false => Err(Error::NotReady),
        }
    }

    /// Fails unless all of the copy that fills the memory is submitted, without asking the driver: before, the host may be
    /// writing it.
    pub(crate) fn check_submitted(&self) -> Result<()> {
        match self.pending() {
            None => Ok(()),
            Some(copy) if copy.is_accepted() => Ok(()),
            Some(copy) if copy.is_submitted() => Err(poisoned(copy.error())),
            Some(_) => Err(Error::NotReady),
        }
    }

    /// The bytes of a range, for the host to read. No bytes are always ready.
    pub(crate) fn host_bytes(&self, offset: usize, bytes: usize) -> Result<&[u8]> {
        if bytes > 0 {
            self.check_ready()?;
            self.check_unshared()?;
        }
        let start = self.host_range(offset, bytes)?;
        // SAFETY: the range is inside of the buffer (`host_range`), which outlives the borrow of `self`; nothing
        // writes it: no other process does (`check_unshared`), copies into it are done (`check_ready`), and `host_bytes_mut` needs an unshared storage.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }

    /// The bytes of a range, for the host to write; only while nobody else holds the memory.
    pub(crate) fn host_bytes_mut(&mut self, offset: usize, bytes: usize) -> Result<&mut [u8]> {
        self.check_ready()?;
        let start = self.host_range(offset, bytes)?;
        let shared = self.shared();
        let Some(memory) = self.exclusive() else {
            return Err(shared);
        };
        if !memory.host().is_some_and(|(_, writable)| writable) {
            let cure = "write to a copy of its elements (to_vec)";
            return Err(Error::NotWritable { why: "lent read-only", cure });
        }
        memory.check_unused()?;
        // SAFETY: as in `host_bytes`; `get_mut` has shown that nobody else, a copy in flight included, holds it.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) })
    }

    /// The memory itself, to be taken out; only while nobody else holds it and nothing uses it, whatever came of the copy into it. `None`
    /// if its owner has lent more of it.
    pub(crate) fn buffer_mut(&mut self) -> Result<Option<&mut Box<dyn Buffer>>> {
        self.check_over()?;
        let shared = self.shared();
        let memory = self.exclusive().ok_or(shared)?;
        memory.check_unused()?;
        Ok(match &mut *memory.memory {
            Memory::Buffer(memory) => Some(&mut memory.buffer),
            Memory::Part(_) | Memory::Split(_) | Memory::Joined(_) => None,
        })
    }

    /// Fails for memory that others may write at any time: no reference may point there.
    pub(crate) fn check_unshared(&self) -> Result<()> {
        if self.is_shared_with_others() { Err(Error::SharedMemory) } else { Ok(()) }
    }

    /// Whether others than this library may write it at any time.
    pub(crate) fn is_shared_with_others(&self) -> bool {
        self.0.lent == Lent::ToCopy
    }

    /// Fails unless a range lies within the storage.
    #[inline]
    pub(crate) fn check_range(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.0.bytes => Ok(()),
            _ => Err(self.out_of_range(offset, bytes)),
        }
    }

    /// Where `offset`, which lies within the storage, is on the host; `None` if the host cannot reach it, or not yet.
    #[inline]
    pub(crate) fn host_address(&self, offset: usize) -> Option<NonNull<u8>> {
        debug_assert!(offset <= self.0.bytes);
        self.0.host().map(|(start, _)| start.map_addr(|address| address.saturating_add(offset)))
    }

    /// Where the host writes the memory while nobody else has it; `None` if it cannot.
    pub(crate) fn window(&self) -> Option<WriteWindow> {
        match self.0.host() {
            Some((start, true)) => {
                // SAFETY: the buffer has so many bytes there and lives as long as the storage (promise 3 of `Backend`).
                Some(unsafe { WriteWindow::new(start, self.0.bytes) })
            }
            _ => self.buffer().window(),
        }
    }

    /// Where a range of host memory lies, whether or not it may be read yet.
    pub(crate) fn host_range(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>> {
        self.check_range(offset, bytes)?;
        self.host_address(offset).ok_or_else(|| Error::NotOnHost { device: self.device_id() })
    }

    /// The error of a write to memory that something else holds. Who that is, nobody knows: it is counted only.
    #[cold]
    fn shared(&self) -> Error {
        let cure = match self.gaps() {
            Gaps::Kept | Gaps::Unread => {
                "drop the other tensors over it, and wait for the copies that use it: a handle that was only asked keeps what its copy has read (after a cancelled one: Cancelled::in_flight)"
            }
            Gaps::Padding => {
                "tensors that came packed share their memory: copy them with CopyOptions::packing(false), or this one alone \
                 with CopyPolicy::Always"
            }
        };
        Error::NotWritable { why: "shared with another tensor or in flight", cure }
    }

    #[cold]
    fn out_of_range(&self, start: usize, bytes: usize) -> Error {
        Error::OutOfRange { what: "bytes", start, end: start.saturating_add(bytes), limit: self.0.bytes }
    }

    /// The memory is not given back before everything submitted to `stream` up to that moment is done.
    pub(crate) fn record_stream(&self, stream: &Arc<dyn BackendStream>) {
        let is_known = self.0.uses.with(|uses| uses.know(stream));
        if !is_known {
            self.hand_to(&Handed::new(stream));
        }
    }

    /// The same for the stream of a queue.
    pub(crate) fn hand_to(&self, stream: &Arc<Handed>) {
        let over = self.0.uses.with(|uses| {
            self.0.used.store(true, Ordering::Release);
            uses.hand_to(stream)
        });
        // Not under the lock: streams may go with it.
        drop(over);
    }

    /// Its end waits for no stream that it was handed to.
    pub(crate) fn forget_streams(&self) {
        let forgotten = self.0.uses.with(Uses::take_streams);
        drop(forgotten);
    }

    /// A graph that is being captured on `stream` uses the memory.
    pub(crate) fn use_in_graph(&self, graph: &Arc<GraphUse>, stream: &Arc<Handed>) {
        self.hand_to(stream);
        let over = self.0.uses.with(|uses| uses.add_graph(graph));
        drop(over);
    }

    /// The memory is not given back before `ticket` is reached.
    pub(crate) fn record_use(&self, ticket: Ticket) {
        let over = self.0.uses.with(|uses| {
            self.0.used.store(true, Ordering::Release);
            uses.last_until(ticket)
        });
        drop(over);
    }

    /// Adds the streams that use the memory to `streams`: later work must come behind them, up to a position or behind
    /// all that they were given so far.
    #[inline]
    pub(crate) fn add_uses(&self, streams: &mut StreamUses) {
        if self.0.used.load(Ordering::Acquire) {
            self.add_known_uses(streams);
        }
    }

    fn add_known_uses(&self, streams: &mut StreamUses) {
        self.0.uses.with(|uses| uses.add_to(streams));
        self.0.memory.also_used().iter().for_each(|storage| storage.add_uses(streams));
    }

    /// Its uses up to now.
    pub(crate) fn uses_so_far(&self) -> Uses {
        self.0.uses.with(|uses| uses.so_far())
    }

    /// Keeps the uses of parts that have gone until the memory goes.
    pub(crate) fn keep(&self, uses: Uses) {
        if !uses.is_empty() {
            let over = self.0.uses.with(|known| {
                self.0.used.store(true, Ordering::Release);
                known.absorb(uses)
            });
            drop(over);
        }
    }
}

fn gaps_of(chunk: &Chunk) -> Gaps {
    if chunk.order.len() > 1 { Gaps::Padding } else { Gaps::Kept }
}

pub(crate) fn poisoned(error: Error) -> Error {
    match error {
        Error::CopyFailed(_) => error,
        other => Error::CopyFailed(Arc::new(other)),
    }
}

/// What a device fills outside of any copy.
impl Retained for Storage {
    fn give_up(&self) -> usize {
        self.own_bytes()
    }
}

impl Drop for StorageInner {
    fn drop(&mut self) {
        // What lies in ordinary memory is the child's own, unless a stream of the parent uses it.
        if fork::is_child()
            && (self.device.is_some()
                || self.memory.buffer().kind() != MemoryKind::Pageable
                || !self.uses.get_mut().is_empty())
        {
            return;
        }
        // SAFETY: the field is not touched again.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // What is page-locked hands its owner on itself, behind its end.
        let is_foreign = self.is_lent() && PageLocked::of(memory.buffer()).is_none();
        let uses = std::mem::take(self.uses.get_mut());
        match (uses.is_empty(), memory) {
            (_, Memory::Split(part)) => part.whole().keep(uses),
            (_, Memory::Joined(joined)) => joined.whole().keep(uses),
            (true, Memory::Buffer(memory)) => {
                memory
                    .free_behind(SmallVec::new(), |buffer| deferred_release::drop_unused(buffer, is_foreign));
            }
            (true, Memory::Part(part)) => memory::let_go(part),
            (false, Memory::Buffer(memory)) => uses.release(memory, is_foreign),
            (false, Memory::Part(part)) => {
                let part: Box<dyn Buffer> = Box::new(part);
                uses.release(part.into(), is_foreign);
            }
        }
    }
}

impl StorageInner {
    /// Fails while a stream uses the memory.
    fn check_unused(&self) -> Result<()> {
        drop(self.take_over_uses());
        match self.is_unused() {
            true => Ok(()),
            false => Err(Error::NotWritable {
                why: "in use on a stream",
                cure: "wait for the stream (Stream::synchronize)",
            }),
        }
    }

    /// Takes out the uses that are over. To be called while nobody else holds the memory.
    fn take_over_uses(&self) -> List {
        let mut over = self.uses.with(Uses::take_over);
        self.memory.also_used().iter().for_each(|storage| over.extend(storage.0.take_over_uses()));
        over
    }

    fn is_unused(&self) -> bool {
        self.uses.with(|uses| uses.are_past())
            && self.memory.also_used().iter().all(|storage| storage.0.is_unused())
    }

    fn is_lent(&self) -> bool {
        self.lent != Lent::No
    }

    /// Where the host reaches the memory. What a copy fills may be mapped only when that is done.
    #[inline]
    fn host(&self) -> Option<(NonNull<u8>, bool)> {
        match (self.host, &self.device) {
            (None, None) => self.memory.buffer().host_pointer(),
            (known, _) => known,
        }
    }
}
