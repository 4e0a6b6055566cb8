//! Tensors of candle, lent to a copy that reads them.

use std::collections::HashMap;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Storage, Tensor, WithDType};
use parking_lot::{RwLock, RwLockReadGuard};
use transship::{Layout, MemoryKind, RawMemory, SharedOwner};

use crate::element::{of_candle, with_element};
use crate::error::{Error, Result};

/// Locks the storages of `tensors`, so that nobody writes to them before the result is dropped.
///
/// Safe code of candle's may write to the memory of any tensor (`Var::set`, `slice_set`, operations in place): it takes the lock of
/// the storage to do so, and waits for this.
pub(crate) fn lock_all(tensors: &[Tensor]) -> Vec<ReadLocked> {
    // Found before anything is locked: candle shows the lock only with its own guard, which waits for who writes.
    lock_found(&find_locks(tensors))
}

pub(crate) fn find_locks(tensors: &[Tensor]) -> Vec<(&Tensor, &RwLock<Storage>)> {
    tensors.iter().map(|tensor| (tensor, lock_of(tensor))).collect()
}

pub(crate) fn lock_found(locks: &[(&Tensor, &RwLock<Storage>)]) -> Vec<ReadLocked> {
    loop {
        let mut locked = Vec::with_capacity(locks.len());
        let mut is_locked = |&(tensor, lock)| {
            let tensor = ReadLocked::try_new(tensor, lock);
            tensor.map(|tensor| locked.push(tensor)).is_some()
        };
        let Some((writing, _)) = locks.iter().find(|one| !is_locked(one)) else { return locked };
        // Who writes there may need what is locked here: nothing stays locked while this waits.
        drop(locked);
        drop(writing.storage_and_layout());
    }
}

/// A tensor whose storage is locked for reading, on whichever thread it is unlocked.
pub(crate) struct ReadLocked {
    lock: NonNull<RwLock<Storage>>,
    is_locked: AtomicBool,
    /// Owns the lock. Dropped behind `Drop`, which unlocks it.
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
        Some(Self { lock: NonNull::from(lock), is_locked: AtomicBool::new(true), tensor: tensor.clone() })
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
        #[cfg(feature = "cuda")]
        crate::cuda::bind_context_of(self.tensor.device());
    }
}

/// The locks of what was lent to a copy, which has a share of them.
pub(crate) struct Locks(Arc<Vec<ReadLocked>>);

impl Locks {
    /// To be called once nothing of what was lent is read any more, or the reads are submitted to a stream that candle's writes are
    /// submitted to as well.
    pub(crate) fn unlock(&self) {
        self.0.iter().for_each(ReadLocked::unlock);
    }
}

/// Which elements of which storage: equal for tensors that are the same.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Elements {
    lock: usize,
    first: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Elements {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        let layout = tensor.layout();
        Self {
            lock: NonNull::from(lock_of(tensor)).addr().get(),
            first: layout.start_offset(),
            shape: layout.dims().to_vec(),
            strides: layout.stride().to_vec(),
        }
    }
}

/// Tensors of transship over the elements of `locked`, which stay locked until the last one is gone and nothing reads them, or until
/// [`Locks::unlock`].
///
/// # Errors
///
/// The number of a tensor whose type or device is not copied, with the error.
pub(crate) fn lend(locked: Vec<ReadLocked>) -> Result<(Vec<transship::Tensor>, Locks), (usize, Error)> {
    let places =
        locked.iter().enumerate().map(|(index, tensor)| place_of(tensor).map_err(|error| (index, error)));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    let locked = Arc::new(locked);
    let mut owners = HashMap::new();
    let lend = |(index, (device, memory, layout)): (usize, Place)| {
        let owner = owners.entry(device.id()).or_insert_with(|| SharedOwner::new(locked.clone(), &device));
        // SAFETY: the storage at `memory` is kept until the owner is dropped, and locked for reading until then or until nothing reads it. It is initialised: candle
        // shows a storage once something fills it. `place_of` has made sure that the layout lies in it.
        unsafe { owner.tensor(memory, layout) }.map_err(|error| (index, error.into()))
    };
    let lent = places.into_iter().enumerate().map(lend).collect::<Result<_, _>>()?;
    Ok((lent, Locks(locked)))
}

type Place = (transship::Device, RawMemory, Layout);

/// Where the elements of a tensor lie.
fn place_of(locked: &ReadLocked) -> Result<Place> {
    let tensor = &locked.tensor;
    // SAFETY: the tensor owns the lock, which is locked for reading: this is called before anything unlocks it.
    let storage = unsafe { &*locked.lock.as_ref().data_ptr() };
    let not_copied = || Error::NotCopied { path: String::new(), dtype: tensor.dtype() };
    let dtype = of_candle(tensor.dtype()).ok_or_else(not_copied)?;
    let layout = Layout::strided(dtype, tensor.dims(), tensor.stride())?;
    let (device, (start, limit), kind) = match storage {
        Storage::Cpu(storage) => {
            (transship::Device::host(), elements_of(storage).ok_or_else(not_copied)?, MemoryKind::Pageable)
        }
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => {
            (crate::cuda::device_of(storage)?, crate::cuda::elements_of(storage)?, MemoryKind::Device)
        }
        _ => {
            let device = format!("{:?}", tensor.device().location());
            return Err(Error::UnsupportedDevice { path: String::new(), device });
        }
    };
    // candle makes a tensor of any shape over any storage (`Tensor::from_storage`), and finds out when it reads it.
    let first = tensor.layout().start_offset();
    let end = first.saturating_add(layout.span() / dtype.size());
    if end > limit {
        return Err(transship::Error::OutOfRange { what: "elements", start: first, end, limit }.into());
    }
    let address = start + (first * dtype.size()) as u64;
    Ok((device, RawMemory::new(address, layout.span(), kind), layout))
}

/// Where the elements of a storage begin, and how many they are.
fn elements_of(storage: &CpuStorage) -> Option<(u64, usize)> {
    with_element!(storage.dtype(), T => {
        let elements = <T as WithDType>::cpu_storage_as_slice(storage).ok()?;
        Some((elements.as_ptr().expose_provenance() as u64, elements.len()))
    }, else None)
}

/// The lock of a tensor's storage, which is the tensor's for as long as that lives: no operation exchanges it. Waits for who writes.
fn lock_of(tensor: &Tensor) -> &RwLock<Storage> {
    RwLockReadGuard::rwlock(&tensor.storage_and_layout().0)
}
