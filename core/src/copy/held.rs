//! Memory that the caller holds and has filled by a copy.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::copy::completion::Completion;
use crate::copy::leaves::Leaf;
use crate::copy::survey::Predecessors;
use crate::plan::{self, Region, Spot};
use crate::storage::{Gaps, Storage, StreamUses};
use crate::sync::Mutex;
use crate::tree::{Stop, TensorTree, Visitor, for_each_tensor};
use crate::{Alignment, Device, Error, Layout, Result, Tensor};

/// The two structures, as errors name them.
const SOURCE: &str = "to copy";
const DESTINATION: &str = "to copy into";

/// The memory of a structure, taken out of it: nobody else reaches it meanwhile, which [`check`](Self::check) and
/// [`claim`](Self::claim) make sure of.
pub(crate) struct Held {
    /// Each once, however many tensors lie in it. Locked by one at a time: whoever starts the copy, then its handle.
    memory: Mutex<Vec<Memory>>,
    tensors: Vec<Slot>,
    /// Where the chunks of the plan lie.
    regions: Vec<Region>,
}

/// One storage.
struct Memory {
    storage: Storage,
    /// The first tensor in it.
    first: usize,
    /// Whether a tensor in it has elements.
    is_written: bool,
    /// What it was filled by before the copy has claimed it.
    filler: Option<Arc<Completion>>,
    is_claimed: bool,
}

/// Where a tensor lay.
struct Slot {
    memory: usize,
    offset: usize,
    layout: Layout,
}

impl Held {
    /// Takes the memory of all tensors out of `into`. On an error `into` is as it was.
    pub(crate) fn take<S: TensorTree>(into: &mut S) -> Result<Self> {
        let mut held = Self { memory: Mutex::default(), tensors: Vec::new(), regions: Vec::new() };
        let mut numbers = FxHashMap::default();
        let taken = for_each_tensor(into, |tensor| held.take_tensor(tensor, &mut numbers));
        match taken {
            Ok(()) => Ok(held),
            Err(error) => {
                let _ = held.give_back(into);
                Err(error)
            }
        }
    }

    fn take_tensor(&mut self, tensor: &mut Tensor, numbers: &mut FxHashMap<usize, usize>) -> Result<()> {
        let first = self.tensors.len();
        tensor.storage()?.check_range(tensor.offset(), tensor.layout().span())?;
        let Some(storage) = tensor.take_storage() else { return Err(Error::Taken) };
        let all = self.memory.get_mut();
        let number = *numbers.entry(storage.identity()).or_insert(all.len());
        if number == all.len() {
            all.push(Memory { storage, first, is_written: false, filler: None, is_claimed: false });
        }
        if let Some(memory) = all.get_mut(number) {
            memory.is_written |= tensor.bytes() > 0;
        }
        self.tensors.push(Slot { memory: number, offset: tensor.offset(), layout: tensor.layout().clone() });
        Ok(())
    }

    /// The device of the first tensor, to be that of all.
    pub(crate) fn target(&mut self) -> Device {
        let first = self.memory.get_mut().first();
        first.and_then(|memory| memory.storage.device().cloned()).unwrap_or_else(Device::host)
    }

    /// Fails unless `value` has as many tensors, each of the same shape and type, and its elements in one run where they lie
    /// on a device.
    pub(crate) fn compare<S: TensorTree>(&self, value: &mut S) -> Result<()> {
        let mut tensors = 0;
        for_each_tensor(value, |tensor| {
            let index = tensors;
            tensors += 1;
            self.tensors.get(index).map_or(Ok(()), |slot| slot.compare(index, tensor))
        })?;
        let destinations = self.tensors.len();
        match tensors == destinations {
            true => Ok(()),
            false => Err(Error::DestinationCount { tensors, destinations }),
        }
    }

    /// Fails unless what was taken out of the other structure, and seen as `known`, is what it has shown before
    /// ([`compare`](Self::compare)), in whole granules of its devices.
    pub(crate) fn check_taken(
        &self,
        leaves: &[Leaf],
        known: &[plan::Leaf],
        granularity: Alignment,
    ) -> Result<()> {
        let fit = |(leaf, slot): (&Leaf, &Slot)| leaf.copied_bytes() == slot.layout.bytes();
        if leaves.len() != self.tensors.len() || !leaves.iter().zip(&self.tensors).all(fit) {
            return Err(Error::TreeChanged { first: self.tensors.len(), second: leaves.len() });
        }
        match known.iter().position(|leaf| leaf.skew > 0 && leaf.bytes > 0) {
            Some(index) => {
                let offset = leaves.get(index).map_or(0, |leaf| leaf.offset);
                Err(unsuited(index, SOURCE, misaligned(offset, granularity)))
            }
            None => Ok(()),
        }
    }

    /// Fails unless all of it lies on `target`, may be written, and is of nobody else: what is being filled is looked at again
    /// when that is done ([`claim`](Self::claim)).
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
        let mut order: Vec<_> =
            self.tensors.iter().enumerate().filter(|(_, slot)| slot.layout.bytes() > 0).collect();
        order.sort_unstable_by_key(|(_, slot)| (slot.memory, slot.offset));
        for pair in order.windows(2) {
            if let [(_, before), (index, slot)] = pair
                && before.memory == slot.memory
                && slot.offset < before.offset + before.layout.bytes()
            {
                let why = "shared with another tensor to copy into";
                return Err(unsuited(*index, DESTINATION, Error::NotWritable { why }));
            }
        }
        Ok(())
    }

    /// Where each tensor lies.
    pub(crate) fn spots(&mut self) -> Vec<Spot> {
        let all = self.memory.get_mut();
        let padded =
            |number: usize| all.get(number).is_some_and(|memory| memory.storage.gaps() == Gaps::Padding);
        let spot = |slot: &Slot| Spot {
            memory: u32::try_from(slot.memory).unwrap_or(u32::MAX),
            offset: slot.offset,
            padded: padded(slot.memory),
        };
        self.tensors.iter().map(spot).collect()
    }

    pub(crate) fn set_regions(&mut self, regions: Vec<Region>) {
        self.regions = regions;
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Adds the copies that still fill the memory.
    pub(crate) fn note_predecessors(&mut self, before: &mut Predecessors) {
        for memory in self.memory.get_mut().iter().filter(|memory| memory.is_written) {
            before.of_destinations.extend(memory.still_filled_by().cloned());
        }
    }

    /// Marks the memory as filled by `copy`; the streams that it was handed to, which now become no more. Fails, and marks nothing,
    /// if somebody else holds some of it.
    pub(crate) fn claim(&self, copy: &Arc<Completion>) -> Result<StreamUses> {
        let mut all = self.memory.lock();
        let mut uses = StreamUses::new();
        for memory in all.iter_mut().filter(|memory| memory.is_written) {
            if !memory.storage.is_exclusive() {
                return Err(unsuited(memory.first, DESTINATION, SHARED));
            }
            memory.storage.forget_past_uses();
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

    /// What the copy fills.
    pub(crate) fn written(&self) -> SmallVec<[Storage; 1]> {
        let all = self.memory.lock();
        all.iter().filter(|memory| memory.is_written).map(|memory| memory.storage.clone()).collect()
    }

    /// Puts the memory back into the structure that it was taken out of.
    pub(crate) fn give_back<S: TensorTree>(&self, into: &mut S) -> Result<()> {
        let all = self.memory.lock();
        let mut rest = self.tensors.iter();
        let changed = |second| Error::TreeChanged { first: self.tensors.len(), second };
        let mut sink = |tensor: &mut Tensor| {
            let visited = self.tensors.len() - rest.len();
            let slot = rest.next().filter(|slot| slot.is_of(tensor));
            match slot.and_then(|slot| all.get(slot.memory)) {
                Some(memory) => {
                    tensor.put_storage(memory.storage.clone());
                    Ok(())
                }
                None => Err(Stop(changed(visited))),
            }
        };
        into.visit(&mut Visitor::new(&mut sink)).map_err(Stop::into_reason)?;
        if rest.len() == 0 { Ok(()) } else { Err(changed(self.tensors.len() - rest.len())) }
    }
}

impl Memory {
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
            return Err(Error::NotWritable { why: "lent read-only" });
        }
        if self.still_filled_by().is_none() && !self.storage.is_exclusive() {
            return Err(SHARED);
        }
        Ok(())
    }

    /// The copy that fills it, unless that is over: asks the driver, which lets go of what it used.
    fn still_filled_by(&self) -> Option<&Arc<Completion>> {
        self.storage.pending().filter(|copy| matches!(copy.is_done(), Ok(false)))
    }
}

impl Slot {
    /// Fails unless `tensor` fits in here.
    fn compare(&self, index: usize, tensor: &Tensor) -> Result<()> {
        if (tensor.dtype(), tensor.shape()) != (self.layout.dtype(), self.layout.shape()) {
            return Err(Error::DestinationMismatch {
                index,
                shape: tensor.shape().to_vec(),
                dtype: tensor.dtype(),
                into_shape: self.layout.shape().to_vec(),
                into_dtype: self.layout.dtype(),
            });
        }
        let storage = tensor.storage()?;
        match storage.device() {
            Some(_) if !tensor.is_contiguous() => {
                let what = "copy strided tensors into memory that is there; start_copy keeps their strides";
                let error = Error::Unsupported { device: storage.device_id(), what };
                Err(unsuited(index, SOURCE, error))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, storage: &Storage, granularity: Alignment) -> Result<()> {
        if !self.layout.is_contiguous() {
            return Err(self.layout.not_contiguous());
        }
        if self.layout.bytes() == 0 {
            return Ok(());
        }
        if !granularity.divides(self.offset) {
            return Err(misaligned(self.offset, granularity));
        }
        let whole = granularity.round_up(self.layout.bytes()).unwrap_or(usize::MAX);
        storage.check_range(self.offset, whole)
    }

    /// Whether `tensor` is the one that lay here.
    fn is_of(&self, tensor: &Tensor) -> bool {
        tensor.is_taken() && tensor.offset() == self.offset && *tensor.layout() == self.layout
    }
}

const SHARED: Error = Error::NotWritable { why: "shared with another tensor or in flight" };

/// The error of a tensor of one of the two structures.
fn unsuited(index: usize, role: &'static str, error: Error) -> Error {
    Error::UnsuitedTensor { index, role, error: Arc::new(error) }
}

/// The error of a tensor that does not begin with a granule.
fn misaligned(offset: usize, granularity: Alignment) -> Error {
    Error::Misaligned { what: "offset", value: offset as u64, alignment: granularity.bytes() }
}
