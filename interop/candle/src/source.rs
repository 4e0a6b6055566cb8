//! Tensors of candle, lent to a copy that reads them.

use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Storage, Tensor, WithDType};
use parking_lot::{RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use transship::{Layout, MemoryKind, RawMemory, SharedOwner};

use crate::element::{of_candle, with_element};
use crate::error::{Error, Result};

/// Locks the storages of `tensors`, so that nobody writes to them before the result is dropped.
///
/// Safe code of candle's may write to the memory of any tensor (`Var::set`, `slice_set`, operations in place): it takes the lock of
/// the storage to do so, and waits for this.
pub(crate) fn lock_all(tensors: &[Tensor]) -> AllLocked {
    // Found before anything is locked: candle shows the lock only with its own guard, which waits for who writes.
    lock_found(&find_locks(tensors))
}

pub(crate) fn find_locks(tensors: &[Tensor]) -> Vec<(&Tensor, &RwLock<Storage>)> {
    tensors.iter().map(|tensor| (tensor, lock_of(tensor))).collect()
}

pub(crate) fn lock_found(locks: &[(&Tensor, &RwLock<Storage>)]) -> AllLocked {
    loop {
        let mut locked = AllLocked(Vec::with_capacity(locks.len()));
        let mut is_locked = |&(tensor, lock)| {
            let tensor = ReadLocked::try_new(tensor, lock);
            tensor.map(|tensor| locked.0.push(tensor)).is_some()
        };
        let Some((writing, _)) = locks.iter().find(|one| !is_locked(one)) else { return locked };
        // Who writes there may need what is locked here: nothing stays locked while this waits.
        drop(locked);
        drop(writing.storage_and_layout());
    }
}

/// Tensors whose storages are locked for reading, and let go of on whichever thread.
pub(crate) struct AllLocked(Vec<ReadLocked>);

#[cfg(feature = "cuda")]
impl Drop for AllLocked {
    fn drop(&mut self) {
        for locked in self.0.drain(..) {
            crate::cuda::bind_for(locked.tensor.device());
            drop(locked);
        }
    }
}

/// A tensor whose storage is locked for reading, on whichever thread it is unlocked.
struct ReadLocked {
    lock: NonNull<RwLock<Storage>>,
    is_locked: AtomicBool,
    /// Owns the lock, which is that of its storage. Dropped behind `Drop`, which unlocks it.
    tensor: Tensor,
}

// SAFETY: a lock of parking_lot can be unlocked on any thread, and `Storage` and `Tensor` are `Send` and `Sync`.
unsafe impl Send for ReadLocked {}

// SAFETY: as for `Send`; what is read through the lock is read by anybody.
unsafe impl Sync for ReadLocked {}

impl ReadLocked {
    /// `None` while somebody writes. Others that read, or wait to write, are in nobody's way.
    fn try_new(tensor: &Tensor, lock: &RwLock<Storage>) -> Option<Self> {
        mem::forget(lock.try_read_recursive()?);
        // Its storage alone: a graph may hold the last share of tensors of other devices.
        let tensor = tensor.detach();
        Some(Self { lock: NonNull::from(lock), is_locked: AtomicBool::new(true), tensor })
    }

    /// Lets others write again. The memory stays.
    fn unlock(&self) {
        if self.is_locked.swap(false, Ordering::AcqRel) {
            // SAFETY: the tensor owns the lock; `try_new` has locked it and forgotten the guard, and this is the first call.
            unsafe { self.lock.as_ref().force_unlock_read() };
        }
    }
}

impl Drop for ReadLocked {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// The locks of what was lent to a copy, which has a share of them.
pub(crate) struct Locks(Arc<AllLocked>);

impl Locks {
    /// To be called once nothing of what was lent is read any more, or the reads are submitted to a stream that candle's writes are
    /// submitted to as well.
    pub(crate) fn unlock(&self) {
        self.0.0.iter().for_each(ReadLocked::unlock);
    }
}

/// Tensors of transship over the elements of `locked`, which stay locked until the last one is gone and nothing reads them, or until
/// [`Locks::unlock`].
///
/// # Errors
///
/// The number of a tensor whose type or device is not copied, with the error; of any where the driver says no.
pub(crate) fn lend(locked: AllLocked) -> Result<(Vec<transship::Tensor>, Locks), (usize, Error)> {
    let places = places_of(&locked)?;
    let locked = Arc::new(locked);
    let mut lent = Vec::with_capacity(locked.0.len());
    for Places { device, numbers, pieces } in places {
        let first = numbers.first().copied().unwrap_or(0);
        let owner = SharedOwner::new(locked.clone(), &device);
        // SAFETY: the storages of the pieces are kept until the owner is dropped, and locked for reading until then or until nothing reads them. They are initialised:
        // candle shows a storage once something fills it. `piece_of` has made sure that the layouts lie in them, and
        // `elements_of` that they lie on the device that their tensors name, which this is.
        let tensors =
            unsafe { owner.tensors_of_allocations(pieces) }.map_err(|error| (first, error.into()))?;
        lent.extend(numbers.into_iter().zip(tensors));
    }
    lent.sort_unstable_by_key(|(number, _)| *number);
    Ok((lent.into_iter().map(|(_, tensor)| tensor).collect(), Locks(locked)))
}

/// The tensors that lie on one device.
struct Places {
    device: transship::Device,
    /// Which of all tensors they are.
    numbers: Vec<usize>,
    pieces: Vec<Piece>,
}

/// The addresses of a storage, and what of it a tensor is.
type Piece = (Range<u64>, RawMemory, Layout);

fn places_of(locked: &AllLocked) -> Result<Vec<Places>, (usize, Error)> {
    let mut all: Vec<(&candle_core::Device, Places)> = Vec::new();
    let mut known = FxHashMap::default();
    for (number, tensor) in locked.0.iter().enumerate() {
        let of_tensor = |error| (number, error);
        let piece = piece_of(tensor, &mut known).map_err(of_tensor)?;
        let device = tensor.tensor.device();
        if let Some((_, places)) = all.iter_mut().find(|(known, _)| known.same_device(device)) {
            places.numbers.push(number);
            places.pieces.push(piece);
        } else {
            let opened = crate::device::open(device).map_err(of_tensor)?;
            all.push((device, Places { device: opened, numbers: vec![number], pieces: vec![piece] }));
        }
    }
    Ok(all.into_iter().map(|(_, places)| places).collect())
}

/// Where the elements of a tensor lie. `known` has the storages that were looked at before.
fn piece_of(locked: &ReadLocked, known: &mut FxHashMap<NonNull<RwLock<Storage>>, Elements>) -> Result<Piece> {
    let tensor = &locked.tensor;
    let not_copied = || Error::NotCopied { path: String::new(), dtype: tensor.dtype() };
    let dtype = of_candle(tensor.dtype()).ok_or_else(not_copied)?;
    let layout = Layout::strided(dtype, tensor.dims(), tensor.stride())?;
    let Elements { start, limit, kind } = match known.get(&locked.lock) {
        Some(elements) => *elements,
        None => {
            // SAFETY: the tensor owns the lock, which is locked for reading: this is called before anything unlocks it.
            let storage = unsafe { &*locked.lock.as_ref().data_ptr() };
            *known.entry(locked.lock).or_insert(elements_of(storage)?)
        }
    };
    // candle makes a tensor of any shape over any storage (`Tensor::from_storage`), and finds out when it reads it.
    let first = tensor.layout().start_offset();
    let end = first.saturating_add(layout.span() / dtype.size());
    if end > limit {
        return Err(transship::Error::OutOfRange { what: "elements", start: first, end, limit }.into());
    }
    let address = start + (first * dtype.size()) as u64;
    let storage = start..start + (limit * dtype.size()) as u64;
    Ok((storage, RawMemory::new(address, layout.span(), kind), layout))
}

/// Where the elements of a storage begin, and how many they are.
#[derive(Clone, Copy)]
struct Elements {
    start: u64,
    limit: usize,
    kind: MemoryKind,
}

fn elements_of(storage: &Storage) -> Result<Elements> {
    let (elements, kind) = match storage {
        Storage::Cpu(storage) => (elements_on_host(storage)?, MemoryKind::Pageable),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => (crate::cuda::elements_of(storage)?, MemoryKind::Device),
        _ => {
            let device = format!("{:?}", storage.device().location());
            return Err(Error::UnsupportedDevice { path: String::new(), device });
        }
    };
    Ok(Elements { start: elements.0, limit: elements.1, kind })
}

fn elements_on_host(storage: &CpuStorage) -> Result<(u64, usize)> {
    let dtype = storage.dtype();
    with_element!(dtype, T => {
        let elements = <T as WithDType>::cpu_storage_as_slice(storage)?;
        Ok((elements.as_ptr().expose_provenance() as u64, elements.len()))
    }, else Err(Error::NotCopied { path: String::new(), dtype }))
}

/// The lock of a tensor's storage, which is the tensor's for as long as that lives: no operation exchanges it. Waits for who writes.
pub(crate) fn lock_of(tensor: &Tensor) -> &RwLock<Storage> {
    RwLockReadGuard::rwlock(&tensor.storage_and_layout().0)
}
