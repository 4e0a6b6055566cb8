//! Memory that the caller holds, for a copy to fill.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::backend::{Elements, Limits};
use crate::cast::{Cast, cast_of};
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::stream_uses::{StreamUses, Use};
use crate::job::apart::{Apart, Extent};
use crate::job::chunk_memory::StridedPlaces;
use crate::job::dependencies::Dependencies;
use crate::job::leaf::Leaf;
use crate::job::locate_leaves::Scan;
use crate::job::options::CopyOptions;
use crate::job::source::{Source, may_push};
use crate::plan::preallocated::{DestinationRange, DestinationSpot};
use crate::runtime::lent_collector;
use crate::runtime::scratch::{Scratch, ScratchVec};
use crate::runtime::sync::Mutex;
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Gaps, Storage};
use crate::tensor::tensor::{Mark, Tensor};

/// The two structures, as errors name them.
pub(crate) const SOURCE: &str = "to copy";
const DESTINATION: &str = "to copy into";

/// The memory of a structure, taken out of it. [`check`](Self::check) and [`claim`](Self::claim) make sure that nobody else
/// reaches it meanwhile.
pub(crate) struct Preallocated {
    /// Each storage once, however many tensors lie in it. The thread that begins the copy locks it, later its handle.
    memory: Mutex<Vec<HeldStorage>>,
    tensors: ScratchVec<Slot>,
    /// The number of each storage by its identity.
    numbers: FxHashMap<usize, usize>,
    /// Where the chunks of the plan lie.
    regions: Vec<DestinationRange>,
    is_cast_into: bool,
    /// Some tensor has gaps.
    is_strided: bool,
    /// Some memory was allocated by the program.
    has_lent: bool,
}

/// One storage.
struct HeldStorage {
    storage: Storage,
    /// The first tensor in it.
    first: usize,
    /// Whether a tensor in it has elements.
    is_written: bool,
    /// The copy that filled it before this one claimed it.
    filler: Option<Arc<Completion>>,
    is_claimed: bool,
}

/// Where a tensor lay.
struct Slot {
    memory: usize,
    offset: usize,
    layout: Layout,
    /// A kernel of the target fills it.
    by_kernel: bool,
}

thread_local! {
    static SLOTS: Scratch<Slot> = const { Scratch::new() };
}

impl Preallocated {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            memory: Mutex::default(),
            tensors: ScratchVec::new(&SLOTS),
            numbers: FxHashMap::default(),
            regions: Vec::new(),
            is_cast_into: false,
            is_strided: false,
            has_lent: false,
        }
    }

    /// Takes the memory of `tensor`, to be filled by copy number `copy`. On an error the tensor is as it was.
    pub(crate) fn take(&mut self, tensor: &mut Tensor, copy: u32) -> Result<()> {
        let first = self.tensors.len();
        // The plan refuses more tensors than it can count.
        let mark = Mark { copy, leaf: first as u32 };
        let Some((storage, offset)) = tensor.take(mark) else { return Err(Error::Taken) };
        let all = self.memory.get_mut();
        // Neighbours mostly share their memory.
        let last = all.last().filter(|last| last.storage.identity() == storage.identity());
        let number = match last {
            Some(_) => all.len() - 1,
            None => *self.numbers.entry(storage.identity()).or_insert(all.len()),
        };
        if number == all.len() {
            self.has_lent |= storage.is_lent();
            all.push(HeldStorage { storage, first, is_written: false, filler: None, is_claimed: false });
        }
        if let Some(memory) = all.get_mut(number) {
            memory.is_written |= tensor.nbytes() > 0;
        }
        self.is_strided |= !tensor.is_contiguous();
        self.tensors.push(Slot { memory: number, offset, layout: tensor.layout().clone(), by_kernel: false });
        Ok(())
    }

    /// How many tensors were taken.
    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// The device of the first tensor, to be that of all.
    pub(crate) fn target(&mut self) -> Device {
        let first = self.memory.get_mut().first();
        first.and_then(|memory| memory.storage.device().cloned()).unwrap_or_else(Device::host)
    }

    /// Fails unless `tensor`, whose elements are to be of type `dtype`, is of the same shape and type as the one at `index`.
    #[inline]
    pub(crate) fn compare(&self, index: usize, tensor: &Tensor, dtype: DType) -> Result<()> {
        self.tensors.get(index).map_or(Ok(()), |slot| slot.compare(tensor, dtype))
    }

    /// The same where tensors are cast.
    pub(crate) fn compare_cast(&mut self, index: usize, tensor: &Tensor, casts: &[Cast]) -> Result<()> {
        self.is_cast_into = true;
        let cast = cast_of(casts, tensor.dtype());
        self.compare(index, tensor, cast.map_or(tensor.dtype(), |cast| cast.to_dtype()))
    }

    /// Whether some tensor has gaps, or another order of its elements than that of its dimensions.
    pub(crate) fn is_strided(&self) -> bool {
        self.is_strided
    }

    /// How the elements of the tensor at `index` lie, if they do so.
    #[inline]
    pub(crate) fn strided(&self, index: usize) -> Option<&Layout> {
        if !self.is_strided {
            return None;
        }
        self.tensors.get(index).map(|slot| &slot.layout).filter(|layout| !layout.is_contiguous())
    }

    /// Whether the program has allocated the memory of the tensor at `index`.
    #[inline]
    pub(crate) fn is_lent(&mut self, index: usize) -> bool {
        let (all, slot) = (self.memory.get_mut(), self.tensors.get(index));
        self.has_lent
            && slot.and_then(|slot| all.get(slot.memory)).is_some_and(|memory| memory.storage.is_lent())
    }

    /// Whether the devices that the tensors lie on which `scan` has looked at make the copy: all of this is memory of the program's on another device, to which their kernels write, nothing is gathered or
    /// cast on the way, and nobody has named a stream of the target.
    ///
    /// Such memory is mostly another process's, which computes there: kernels of this process that ran there, and its events, would take turns with that process's. 2 GB in 2,000 tensors take kernels of
    /// the target 6.4 ms where it has another kernel every millisecond, and 8.4 where it multiplies matrices all the time; those of the source 5.7 and 5.5 (two H200s, NVLink; one peer copy 5.2 and 5.7).
    pub(crate) fn is_pushed(&mut self, scan: &Scan<'_>, options: &CopyOptions) -> bool {
        if !self.has_lent || self.is_strided || self.is_cast_into || scan.has_gathered() {
            return false;
        }
        let target = scan.target();
        if options.stream.is_some() || Stream::current(target).is_some() {
            return false;
        }
        let all = &*self.memory.get_mut();
        let writes_to_all = |source: &Device| {
            let mut written = all.iter().filter(|memory| memory.is_written).map(|memory| &memory.storage);
            may_push(source, target)
                && written
                    .all(|storage| storage.is_lent() && source.backend().kernels_reach(storage.buffer()))
        };
        let mut sources = scan.sources().iter().map(Source::device);
        !scan.sources().is_empty() && sources.all(|source| source.is_some_and(writes_to_all))
    }

    /// Where they lie in the memory.
    pub(crate) fn places(&self, index: usize) -> Option<StridedPlaces> {
        let (layout, slot) = (self.strided(index)?, self.tensors.get(index)?);
        let elements = Elements { offset: slot.offset, runs: layout.runs(), cast: None };
        Some(StridedPlaces { elements, by_kernel: slot.by_kernel })
    }

    /// Notes which of the tensors with gaps a kernel of the target, which has these limits, fills.
    pub(crate) fn plan_scattering(&mut self, limits: &Limits) {
        let all = self.memory.get_mut();
        for slot in self.tensors.iter_mut().filter(|slot| !slot.layout.is_contiguous()) {
            let memory = all.get(slot.memory).map(|memory| &memory.storage);
            let takes_it = memory.is_some_and(|storage| storage.buffer().is_scattered_to());
            slot.by_kernel = takes_it && limits.scatters(&slot.layout.runs());
        }
    }

    /// How many copies fill them on a device.
    pub(crate) fn scattering_copies(&self) -> usize {
        if !self.is_strided {
            return 0;
        }
        let copies = |places: StridedPlaces| match places.by_kernel {
            true => 1,
            false => places.elements.runs.count(),
        };
        (0..self.len()).filter_map(|index| self.places(index)).map(copies).fold(0, usize::saturating_add)
    }

    /// Whether tensors get another type on the way.
    pub(crate) fn is_cast_into(&self) -> bool {
        self.is_cast_into
    }

    /// The type of a tensor.
    pub(crate) fn dtype(&self, index: usize) -> Option<DType> {
        self.tensors.get(index).map(|slot| slot.layout.dtype())
    }

    /// Fails unless each of `leaves`, the sources, is copied without gaps and begins with a granule of both devices, and none is cast
    /// by the kernel that would have to write it with gaps. `scan` has looked at them.
    pub(crate) fn check_sources(&self, leaves: &[Leaf], scan: &Scan<'_>) -> Result<()> {
        if let Some((index, leaf)) = leaves.iter().enumerate().find(|(_, leaf)| !leaf.is_gathered()) {
            let (device, what) = (leaf.storage.device_id(), scan.why_not_gathered(leaf));
            return Err(unsuited(index, SOURCE, Error::Unsupported { device, what }));
        }
        let is_cast_into_gaps = |(index, leaf): (usize, &Leaf)| {
            self.strided(index).is_some() && leaf.cast_to().is_some() && scan.copies_within(&leaf.storage)
        };
        if self.is_strided
            && let Some(index) = leaves.iter().enumerate().position(is_cast_into_gaps)
        {
            let what = "cast elements into a tensor with gaps or in another order; cast them into a contiguous one, and copy that";
            return Err(unsuited(index, SOURCE, Error::Unsupported { device: scan.target().id(), what }));
        }
        match scan.leaves().iter().position(|leaf| leaf.skew > 0 && leaf.bytes > 0) {
            Some(index) => {
                let offset = leaves.get(index).map_or(0, |leaf| leaf.offset);
                let cure = "copy it with start_copy, or to the host first";
                Err(unsuited(index, SOURCE, misaligned(offset, scan.granularity(), cure)))
            }
            None => Ok(()),
        }
    }

    /// Fails unless all of it lies on `target`, may be written, and nobody else holds it. Memory that a copy still fills is
    /// looked at again when that copy is done ([`claim`](Self::claim)).
    pub(crate) fn check(&mut self, target: &Device) -> Result<()> {
        let granularity = target.limits().copy_granularity;
        for memory in self.memory.get_mut() {
            memory.check(target).map_err(|error| unsuited(memory.first, DESTINATION, error))?;
        }
        for (index, slot) in self.tensors.iter().enumerate() {
            let storage = self.memory.get_mut().get(slot.memory).map(|memory| &memory.storage);
            let checked = storage.map_or(Ok(()), |storage| slot.check(storage, granularity));
            checked.map_err(|error| unsuited(index, DESTINATION, error))?;
        }
        self.check_apart()
    }

    /// Fails if two tensors overlap.
    fn check_apart(&self) -> Result<()> {
        let overlaps = |index| {
            let why = "shared with another tensor to copy into";
            let cure = "copy into tensors that do not overlap";
            Err(unsuited(index, DESTINATION, Error::NotWritable { why, cure }))
        };
        let mut order: Vec<_> =
            self.tensors.iter().enumerate().filter(|(_, slot)| slot.layout.nbytes() > 0).collect();
        order.sort_unstable_by_key(|(_, slot)| (slot.memory, slot.offset));
        if self.is_strided {
            return self.first_overlap(&order).map_or(Ok(()), overlaps);
        }
        for pair in order.windows(2) {
            if let [(_, before), (index, slot)] = pair
                && before.memory == slot.memory
                && slot.offset < before.offset + before.layout.nbytes()
            {
                return overlaps(*index);
            }
        }
        Ok(())
    }

    /// The first tensor that overlaps one before it, some of which may lie between the elements of others.
    fn first_overlap(&self, order: &[(usize, &Slot)]) -> Option<usize> {
        order.chunk_by(|(_, one), (_, next)| one.memory == next.memory).find_map(|of_memory| {
            let mut apart = Apart::default();
            let mut is_apart = |slot: &Slot| slot.extent().is_some_and(|extent| apart.take(extent));
            of_memory.iter().find(|(_, slot)| !is_apart(slot)).map(|(index, _)| *index)
        })
    }

    /// Where each tensor lies.
    pub(crate) fn spots(&mut self) -> Vec<DestinationSpot> {
        // What lies between two tensors may belong to one with gaps.
        let may_pad = !self.is_strided;
        let all = self.memory.get_mut();
        let padded = |number: usize| {
            may_pad && all.get(number).is_some_and(|memory| memory.storage.gaps() == Gaps::Padding)
        };
        let spot = |slot: &Slot| DestinationSpot {
            memory: u32::try_from(slot.memory).unwrap_or(u32::MAX),
            offset: slot.offset,
            padded: padded(slot.memory),
            strided: !slot.layout.is_contiguous(),
        };
        self.tensors.iter().map(spot).collect()
    }

    pub(crate) fn set_regions(&mut self, regions: Vec<DestinationRange>) {
        self.regions = regions;
    }

    pub(crate) fn regions(&self) -> &[DestinationRange] {
        &self.regions
    }

    /// Adds the copies that still fill the memory, or that have failed and may have left something in flight.
    pub(crate) fn note_predecessors(&mut self, before: &mut Dependencies) {
        for memory in self.memory.get_mut().iter().filter(|memory| memory.is_written) {
            let filler = memory.storage.pending().filter(|copy| !matches!(copy.is_over(false), Ok(true)));
            before.of_destinations.extend(filler.cloned());
        }
    }

    /// The error of the tensor whose memory is not to be had, because of `error`, from the copy that has filled it before.
    pub(crate) fn unsuited_by(&self, filler: &Arc<Completion>, error: Error) -> Error {
        let all = self.memory.lock();
        let is_its =
            |memory: &&HeldStorage| memory.storage.pending().is_some_and(|copy| Arc::ptr_eq(copy, filler));
        all.iter().find(is_its).map_or(error.clone(), |memory| unsuited(memory.first, DESTINATION, error))
    }

    /// Marks the memory as filled by `copy`. Returns the streams that it was handed to, to which nobody else can add any more.
    /// Fails, and marks nothing, if somebody else holds some of it.
    pub(crate) fn claim(&self, copy: &Arc<Completion>) -> Result<StreamUses> {
        // Dropped after the lock is released, as are owners of streams that go meanwhile.
        let mut over = Vec::new();
        let (claimed, gone) = lent_collector::collect(|| self.claim_all(copy, &mut over));
        gone.let_go();
        claimed
    }

    fn claim_all(&self, copy: &Arc<Completion>, over: &mut Vec<Use>) -> Result<StreamUses> {
        let mut all = self.memory.lock();
        let mut uses = StreamUses::new();
        for memory in all.iter_mut().filter(|memory| memory.is_written) {
            if !memory.storage.is_exclusive() {
                return Err(unsuited(memory.first, DESTINATION, SHARED));
            }
            over.extend(memory.storage.take_over_uses());
            memory.storage.add_uses(&mut uses);
        }
        for memory in all.iter_mut().filter(|memory| memory.is_written) {
            memory.filler = Some(copy.clone());
            memory.is_claimed = memory.storage.swap_filler(&mut memory.filler);
        }
        Ok(uses)
    }

    /// Takes the marks away again.
    pub(crate) fn restore_fillers(&mut self) {
        for memory in self.memory.get_mut().iter_mut().filter(|memory| memory.is_claimed) {
            memory.is_claimed = !memory.storage.swap_filler(&mut memory.filler);
        }
    }

    pub(crate) fn storage(&self, memory: u32) -> Option<Storage> {
        self.memory.lock().get(memory as usize).map(|memory| memory.storage.clone())
    }

    /// All of the memory.
    pub(crate) fn storages(&self) -> Vec<Storage> {
        self.memory.lock().iter().map(|memory| memory.storage.clone()).collect()
    }

    /// Where tensor number `index` lay, in the memory that [`storages`](Self::storages) has given.
    pub(crate) fn find<'a>(&self, index: usize, storages: &'a [Storage]) -> Option<(&'a Storage, usize)> {
        let slot = self.tensors.get(index)?;
        Some((storages.get(slot.memory)?, slot.offset))
    }

    /// What the copy fills.
    pub(crate) fn written(&self) -> SmallVec<[Storage; 1]> {
        let all = self.memory.lock();
        all.iter().filter(|memory| memory.is_written).map(|memory| memory.storage.clone()).collect()
    }
}

impl HeldStorage {
    fn check(&mut self, target: &Device) -> Result<()> {
        let is_there = match self.storage.device() {
            None => target.is_host(),
            Some(device) => device.same_as(target),
        };
        if !is_there {
            return Err(Error::WrongDevice { actual: self.storage.device_id(), expected: target.id() });
        }
        if !self.is_written {
            return Ok(());
        }
        if !self.storage.is_writable() {
            return Err(Error::NotWritable { why: "lent read-only", cure: "copy into memory of your own" });
        }
        if self.still_filled_by().is_none() && !self.storage.is_exclusive() {
            return Err(SHARED);
        }
        Ok(())
    }

    /// The copy that fills it, unless that is done or has failed. Asks the driver: a copy that is over releases what it used. What
    /// one that has failed may have left is waited for all the same (`note_predecessors`).
    fn still_filled_by(&self) -> Option<&Arc<Completion>> {
        self.storage.pending().filter(|copy| matches!(copy.is_done(), Ok(false)))
    }
}

impl Slot {
    /// Fails unless a copy of `tensor` with elements of type `dtype` fits in here.
    #[inline]
    fn compare(&self, tensor: &Tensor, dtype: DType) -> Result<()> {
        match dtype == self.layout.dtype() && tensor.shape() == self.layout.shape() {
            true => Ok(()),
            false => Err(self.mismatch(tensor, dtype)),
        }
    }

    #[cold]
    #[inline(never)]
    fn mismatch(&self, tensor: &Tensor, dtype: DType) -> Error {
        Error::DestinationMismatch {
            path: String::new(),
            shape: tensor.shape().to_vec(),
            dtype,
            into_shape: self.layout.shape().to_vec(),
            into_dtype: self.layout.dtype(),
        }
    }

    fn check(&self, storage: &Storage, granularity: Alignment) -> Result<()> {
        if self.layout.nbytes() == 0 {
            return Ok(());
        }
        if !self.layout.is_contiguous() {
            return self.check_strided(storage, granularity);
        }
        if !granularity.divides(self.offset) {
            let cure = "copy into a tensor that begins at a multiple of that";
            return Err(misaligned(self.offset, granularity, cure));
        }
        let bytes = self.layout.nbytes();
        // The device writes whole granules: the rest of the last one must be nobody else's.
        if !granularity.divides(bytes) && storage.is_seen_behind(self.offset.saturating_add(bytes)) {
            return Err(Error::Misaligned {
                what: "size of a view, in bytes,",
                value: bytes as u64,
                alignment: granularity.bytes(),
                cure: "copy into a view that ends at a multiple of that or at the end of its tensor: what lies behind it is in the same granule",
            });
        }
        storage.check_range(self.offset, granularity.round_up(bytes).unwrap_or(usize::MAX))
    }

    fn check_strided(&self, storage: &Storage, granularity: Alignment) -> Result<()> {
        if self.extent().is_none() {
            let cure = "copy into one whose elements neither overlap nor interleave";
            return Err(self.layout.not_contiguous(cure));
        }
        let runs = self.layout.runs();
        let sizes = runs.dims().iter().map(|dim| dim.step).chain([self.offset, runs.bytes()]);
        match sizes.into_iter().find(|bytes| !granularity.divides(*bytes)) {
            None => storage.check_range(self.offset, self.layout.span()),
            Some(value) => {
                let cure = "copy into a contiguous tensor, or one whose runs of elements begin and end at multiples of that";
                let (value, alignment) = (value as u64, granularity.bytes());
                Err(Error::Misaligned { what: "run of elements, in bytes,", value, alignment, cure })
            }
        }
    }

    /// Where it lies. `None` if its elements overlap or interleave.
    fn extent(&self) -> Option<Extent> {
        Extent::of(self.offset, &self.layout.runs())
    }
}

const SHARED: Error = Error::NotWritable {
    why: "shared with another tensor or in flight",
    cure: "drop the other tensors over it, and wait for the copies that use it: a handle that was only asked keeps what its copy has read (after a cancelled one: Cancelled::in_flight)",
};

/// The error of a tensor of one of the two structures.
pub(crate) fn unsuited(index: usize, role: &'static str, error: Error) -> Error {
    Error::UnsuitedTensor { index, path: String::new(), role, error: Arc::new(error) }
}

/// The error of a tensor that does not begin with a granule.
fn misaligned(offset: usize, granularity: Alignment, cure: &'static str) -> Error {
    Error::Misaligned { what: "offset", value: offset as u64, alignment: granularity.bytes(), cure }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::backend::{BackendStream, Ticket, TimeMark};
    use crate::runtime::lent_collector;

    /// A stream on which everything is done. The program keeps it alive, and counts when it goes.
    struct KeptStream(Arc<AtomicUsize>);

    struct Gone(Arc<AtomicUsize>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Drop for KeptStream {
        fn drop(&mut self) {
            lent_collector::let_go(Box::new(Gone(self.0.clone())));
        }
    }

    // SAFETY: nothing is copied on it.
    unsafe impl BackendStream for KeptStream {
        fn record(&self) -> Result<u64> {
            Ok(1)
        }

        fn wait_for(&self, _: &dyn BackendStream, _: u64) -> Result<()> {
            Ok(())
        }

        fn reached(&self) -> Result<u64> {
            Ok(1)
        }

        fn wait(&self, _: u64, _: Option<Duration>) -> Result<bool> {
            Ok(true)
        }

        fn mark(&self) -> Result<Box<dyn TimeMark>> {
            Err(Error::NotReady)
        }
    }

    /// The doors to the program's code refuse to be opened under a lock.
    ///
    /// Mutant: uses that are over are dropped under the lock.
    #[test]
    fn streams_that_are_over_go_under_no_lock() {
        let gone = Arc::new(AtomicUsize::new(0));
        let mut tensor = Tensor::from(vec![1_u8; 8]);
        let stream = Arc::new(KeptStream(gone.clone()));
        tensor.record_use(Ticket { stream, position: 1 }).unwrap();
        let mut held = Preallocated::new();
        held.take(&mut tensor, 0).unwrap();
        held.check(&Device::host()).unwrap();
        assert!(held.claim(&Completion::new()).unwrap().is_empty());
        assert_eq!(gone.load(Ordering::Relaxed), 1);
    }
}
