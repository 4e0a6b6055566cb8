//! Memory that the program has already, page-locked where it lies.

use std::any::Any;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use crate::backend::host::foreign_memory::{ForeignMemory, host_range};
use crate::backend::host::lent_bytes::LentBytes;
use crate::backend::host::memory::HostMemory;
use crate::backend::{Buffer, HostAccess, MemoryKind, RawMemory};
use crate::device::device::Device;
use crate::dtype::DType;
use crate::element::Element;
use crate::error::{Error, Refused, Result};
use crate::runtime::fork;
use crate::staging::page_locked::{Lock, PageLocked};
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::Tensor;

/// Memory of the program that is page-locked where it lies, until this, its clones and all tensors over it are gone.
///
/// Tensors over it are of [`MemoryKind::Pinned`], and large ones are copied by the devices of the driver as they lie, without
/// staging. They are read-only.
///
/// Dropped, it is unlocked a moment after its last use is over. [`unregister`](Self::unregister) waits until it is.
#[derive(Clone)]
pub struct Registered(Storage);

impl Registered {
    /// A tensor of `shape`, `offset` bytes behind the start, which shares the memory. Whether the bytes are values of `dtype` (a bool is
    /// 0 or 1) shows when they are read.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it ends behind the memory; [`Error::Misaligned`] if
    /// elements of `dtype` cannot lie there; [`Error::SizeOverflow`].
    pub fn tensor(&self, dtype: DType, shape: &[usize], offset: usize) -> Result<Tensor> {
        Tensor::from_storage(self.0.clone(), offset, Layout::contiguous(dtype, shape)?)
    }

    /// Unlocks the memory, and drops its owner on this thread. May block for milliseconds. Afterwards the memory is as it was before it was
    /// registered; it can be registered again.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use transship_core::{DType, Device};
    ///
    /// let weights: Arc<[u8]> = vec![7; 1 << 20].into();
    /// let registered = Device::host().register(weights.clone())?; // or a GPU
    /// let tensor = registered.tensor(DType::U8, &[100], 0)?;
    /// let refused = registered.unregister().unwrap_err(); // `tensor` lies there
    /// drop(tensor);
    /// refused.into_value().unregister()?;
    /// assert_eq!(Arc::strong_count(&weights), 1);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// It comes back, still registered, with each: [`Error::NotWritable`] while anything else shares the memory: a clone, a tensor, a copy or
    /// a stream; [`Error::Forked`]; what the driver says.
    ///
    /// # Panics
    ///
    /// If the destructor of the owner does.
    pub fn unregister(mut self) -> Result<(), Refused<Self>> {
        self.unlock().map_err(|error| Refused::new(error, self))
    }

    fn unlock(&mut self) -> Result<()> {
        let buffer: Option<&mut dyn Any> = self.0.buffer_mut()?.map(|buffer| &mut **buffer as _);
        if let Some(locked) = buffer.and_then(|buffer| buffer.downcast_mut::<PageLocked>()) {
            fork::check()?;
            // SAFETY: `Storage::buffer_mut` has shown that no tensor, no copy and no stream holds the memory.
            unsafe { locked.unlock() }?;
        }
        Ok(())
    }

    /// The size of the memory in bytes.
    pub fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// [`MemoryKind::Pinned`]; [`MemoryKind::Pageable`] where nothing had to be locked: for the host as a device, and for no bytes.
    pub fn memory_kind(&self) -> MemoryKind {
        self.0.kind()
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered")
            .field("nbytes", &self.nbytes())
            .field("kind", &self.memory_kind())
            .finish()
    }
}

/// Memory that the program has, page-locked where it lies, so that copies from there need no staging: 256 MiB that were touched before
/// take 9.5 ms, and allocating as much page-locked memory takes 101 (H200). All devices of the same driver read it.
///
/// Whole pages are locked, and a page belongs to one registration: small vectors, which share theirs with others, are better packed
/// than registered. Page-locking blocks the caller; so would the driver's end of it, which is left to a thread of transship's own. The
/// host as a device locks nothing: there it is memory like any other. Where the process forks, a page that is written to afterwards may
/// be copied by older systems, away from where the device looks.
impl Device {
    /// Page-locks the bytes of an owner, such as a memory map or an `Arc` of a vector. It is asked for them once. When the memory is not
    /// used any more it is unlocked, and then the owner is dropped, by a thread of transship's own on which nobody waits; where nothing had
    /// to be locked (the host, no bytes), it goes as that of [`Tensor::from_owner`]. [`Registered::unregister`] does both at once, on the
    /// thread that calls it. Memory that is just being unlocked is waited for, a second at most.
    ///
    /// ```
    /// use transship_core::{CopyOptions, DType, Device, start_copy};
    ///
    /// let weights = vec![7_u8; 1 << 20];
    /// let weights = Device::host().register(weights)?; // or a GPU
    /// let first = weights.tensor(DType::F32, &[64, 64], 0)?;
    /// let second = weights.tensor(DType::U8, &[1000], 64 * 64 * 4)?;
    /// let there = start_copy((first, second), &Device::host(), CopyOptions::default())?.wait()?;
    /// assert_eq!(there.1.to_vec::<u8>()?, [7; 1000]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The owner comes back with each: [`Error::NotLockable`] if some of it is page-locked already, or the system
    /// cannot lock it; [`Error::Busy`] if some of it is still being unlocked after a second; [`Error::OutOfMemory`] if the system locks no more;
    /// [`Error::Unsupported`] where the device's API reaches no memory but its own buffers (wgpu);
    /// [`Error::Forked`]; what else the driver says.
    pub fn register<O>(&self, owner: O) -> Result<Registered, Refused<O>>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        let lent = LentBytes::of(owner);
        // SAFETY: the bytes are those of the owner, which goes with its memory.
        match unsafe { self.lock(lent.start(), lent.bytes(), HostAccess::Read) } {
            Ok(lock) => Ok(Registered(self.lent(Box::new(HostMemory::lent(lent)), lock))),
            Err(error) => Err(Refused::new(error, lent.into_owner())),
        }
    }

    /// Page-locks a vector, which becomes a tensor of `shape`: to copy from, and to copy into with
    /// [`start_copy_into`](crate::start_copy_into), which the same device does without staging. [`Tensor::into_vec`] gives the vector back.
    ///
    /// ```
    /// use transship_core::{CopyOptions, Device, Tensor, start_copy_into};
    ///
    /// let gpu = Device::host(); // or a GPU
    /// let held = gpu.register_vec(vec![0.0_f32; 1000], &[10, 100])?;
    /// let results = Tensor::from_vec(vec![1.5_f32; 1000], &[10, 100])?;
    /// let held = start_copy_into(results, held, CopyOptions::default())?.wait()?;
    /// assert_eq!(held.into_vec::<f32>()?, [1.5; 1000]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The vector comes back with each: those of [`register`](Self::register), and of [`Tensor::from_vec`].
    pub fn register_vec<T: Element>(&self, data: Vec<T>, shape: &[usize]) -> Result<Tensor, Refused<Vec<T>>> {
        let layout = match Layout::contiguous(T::DTYPE, shape) {
            Ok(layout) if layout.nbytes() == size_of_val(data.as_slice()) => layout,
            Ok(layout) => {
                return Err(Refused::new(layout.shape_mismatch(size_of_val(data.as_slice())), data));
            }
            Err(error) => return Err(Refused::new(error, data)),
        };
        // SAFETY: the elements are those of the vector, which goes with its memory.
        match unsafe {
            self.lock(NonNull::from(data.as_slice()).cast(), layout.nbytes(), HostAccess::ReadWrite)
        } {
            Ok(lock) => {
                let memory = self.held(Box::new(HostMemory::from_vec(data)), lock, false);
                Ok(Tensor::over_whole(Storage::new(memory, None, None), layout))
            }
            Err(error) => Err(Refused::new(error, data)),
        }
    }

    /// Page-locks memory that others write as well, such as memory shared with other processes. Otherwise as
    /// [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `start` on are memory of the process, initialised and valid for reads, until `owner` is dropped. While there
    /// is a tensor over a part of it, or a copy of one in flight, nobody writes to that part.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); [`Error::InvalidMemory`] if no memory can lie there.
    pub unsafe fn register_raw(
        &self,
        start: *const u8,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Registered, Refused<Box<dyn Any + Send + Sync>>> {
        let described = RawMemory::new(start.expose_provenance() as u64, bytes, MemoryKind::Pageable);
        let locked = host_range(described).and_then(|start| {
            // SAFETY: the caller's promise.
            let lock = |access| unsafe { self.lock(start, bytes, access) };
            let lock = lock(HostAccess::ReadWrite).or_else(|error| match error {
                // It may be mapped read-only.
                Error::NotLockable { .. } => lock(HostAccess::Read),
                error => Err(error),
            });
            Ok((start, lock?))
        });
        match locked {
            Ok((start, lock)) => {
                // SAFETY: the caller's promise; the owner keeps the memory.
                let memory =
                    unsafe { ForeignMemory::new((start, bytes, MemoryKind::Pageable), false, owner) };
                Ok(Registered(self.lent(Box::new(memory), lock)))
            }
            Err(error) => Err(Refused::new(error, owner)),
        }
    }

    /// Locks a range; nothing is locked of no bytes, and for the host.
    ///
    /// # Safety
    ///
    /// The range is memory of the process that stays where it is until it is unlocked.
    unsafe fn lock(&self, start: NonNull<u8>, bytes: usize, access: HostAccess) -> Result<Option<Lock>> {
        match NonZeroUsize::new(bytes) {
            Some(bytes) if !self.is_host() => {
                fork::check()?;
                // SAFETY: the caller's promise.
                unsafe { Lock::new(&**self.backend(), start, bytes, access) }.map(Some)
            }
            _ => Ok(None),
        }
    }

    fn lent(&self, memory: Box<dyn Buffer>, lock: Option<Lock>) -> Storage {
        Storage::lent(self.held(memory, lock, true), None, None)
    }

    fn held(&self, memory: Box<dyn Buffer>, lock: Option<Lock>, is_lent: bool) -> Box<dyn Buffer> {
        match lock {
            Some(lock) => Box::new(PageLocked::new(memory, lock, self.id(), is_lent)),
            None => memory,
        }
    }
}
