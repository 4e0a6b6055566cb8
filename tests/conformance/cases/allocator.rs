//! Results in memory of an allocator of the program.

use std::any::Any;
use std::error;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libtest_mimic::Failed;
use transship::{
    Alignment, Allocate, AllocatedMemory, DType, Device, Error, MemoryKind, RawMemory, Stream, Tensor,
    start_copy, start_copy_into,
};

use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(results_lie_in_its_memory),
        case!(and_are_filled_again),
        case!(it_goes_behind_dropped_copies),
        case!(results_on_the_host_lie_there_too),
    ]
}

/// Memory of a device, or vectors of the host.
struct Arena {
    device: Device,
    owners: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

impl Arena {
    fn of(device: &Device) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), owners: Mutex::default() })
    }

    fn new_owner(&self, bytes: usize) -> transship::Result<(Arc<dyn Any + Send + Sync>, u64, MemoryKind)> {
        if self.device.is_host() {
            let mut vector = vec![0_u8; bytes];
            let start = vector.as_mut_ptr().expose_provenance() as u64;
            return Ok((Arc::new(vector), start, MemoryKind::Pageable));
        }
        let memory = Tensor::zeros(&[bytes], DType::U8, &self.device)?;
        self.device.synchronize()?;
        let start = memory.address()?.unwrap_or(0);
        Ok((Arc::new(memory), start, MemoryKind::Device))
    }

    fn are_all_gone(&self) -> bool {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        !owners.is_empty() && owners.iter().all(|owner| owner.strong_count() == 0)
    }
}

// SAFETY: each piece is memory of its own, which nobody else touches, and which goes with its owner. All work in it is done.
unsafe impl Allocate for Arena {
    fn allocate(
        &self,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> Result<AllocatedMemory, Box<dyn error::Error + Send + Sync>> {
        let (owner, start, kind) = self.new_owner(bytes + alignment.bytes())?;
        let start = start.next_multiple_of(alignment.bytes() as u64);
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&owner));
        let memory = AllocatedMemory::new(RawMemory::new(start, bytes, kind), Box::new(owner));
        Ok(if self.device.is_host() { memory } else { memory.behind(stream) })
    }
}

fn has_addresses(bed: &Bed) -> Result<bool, Failed> {
    Ok(Tensor::zeros(&[64], DType::U8, &bed.device)?.address()?.is_some())
}

/// The batch in memory of the arena; `None` where that cannot be, which is said.
fn on_the_device(bed: &Bed, arena: &Arc<Arena>, batch: &[Tensor]) -> Result<Option<Vec<Tensor>>, Failed> {
    let options = bed.options().allocator(arena.clone());
    if !has_addresses(bed)? {
        let refused =
            start_copy(batch.to_vec(), &bed.device, options).err().ok_or("memory has no address")?;
        assert!(matches!(refused.error(), Error::Unsupported { .. }), "{}", refused.error());
        assert_all_same(batch, &refused.into_value().ok_or("the batch is lost")?);
        return Ok(None);
    }
    let copy = bed.start(batch.to_vec(), &bed.device, options)?;
    let placements = copy.placements().ok_or("nobody has waited")?;
    let places: Vec<_> = placements.iter().collect();
    let chunks =
        (0..placements.chunks()).map(|chunk| placements.chunk(chunk)).collect::<Result<Vec<_>, _>>()?;
    let there = copy.wait()?;
    for (tensor, place) in there.iter().zip(places) {
        let place = place.ok_or("it is copied")?;
        let start = chunks[place.chunk].address().ok_or("it has an address")?;
        assert_eq!(tensor.address()?, Some(start + place.offset as u64));
    }
    Ok(Some(there))
}

fn assert_all_same(before: &[Tensor], after: &[Tensor]) {
    let all = |tensors: &[Tensor]| tensors.iter().map(Contents::of).collect::<Vec<_>>();
    assert_same(&all(before), &all(after));
}

fn batch(bed: &Bed) -> Vec<Tensor> {
    let mut batch = bed.batch(20);
    batch.push(bed.bytes(2 << 20));
    batch
}

fn results_lie_in_its_memory(bed: &Bed) -> Result<(), Failed> {
    let (arena, sent) = (Arena::of(&bed.device), batch(bed));
    if let Some(there) = on_the_device(bed, &arena, &sent)? {
        let (back, _) = bed.copy(there, &bed.host, bed.options())?;
        assert_all_same(&sent, &back);
        drop(back);
        eventually("the owners have gone", || arena.are_all_gone())?;
    }
    Ok(())
}

fn and_are_filled_again(bed: &Bed) -> Result<(), Failed> {
    let (arena, sent) = (Arena::of(&bed.device), batch(bed));
    if let Some(there) = on_the_device(bed, &arena, &sent)? {
        let other = batch(bed);
        let addresses =
            |tensors: &[Tensor]| tensors.iter().map(Tensor::address).collect::<Result<Vec<_>, _>>();
        let before = addresses(&there)?;
        let there = start_copy_into(other.clone(), there, bed.options())?.wait()?;
        assert_eq!(addresses(&there)?, before);
        let (back, _) = bed.copy(there, &bed.host, bed.options())?;
        assert_all_same(&other, &back);
    }
    Ok(())
}

fn it_goes_behind_dropped_copies(bed: &Bed) -> Result<(), Failed> {
    let (arena, sent) = (Arena::of(&bed.device), batch(bed));
    let options = bed.options().allocator(arena.clone());
    if has_addresses(bed)? {
        drop(bed.start(sent, &bed.device, options)?);
        eventually("the owners have gone", || arena.are_all_gone())?;
    }
    Ok(())
}

fn results_on_the_host_lie_there_too(bed: &Bed) -> Result<(), Failed> {
    let sent = batch(bed);
    let (there, _) = bed.copy(sent.clone(), &bed.device, bed.options())?;
    let arena = Arena::of(&bed.host);
    let (back, _) = bed.copy(there, &bed.host, bed.options().allocator(arena.clone()))?;
    assert_all_same(&sent, &back);
    assert_eq!(back[0].memory_kind()?, MemoryKind::Pageable);
    drop(back);
    eventually("the owners have gone", || arena.are_all_gone())?;
    Ok(())
}
