//! Many pieces of memory that somebody else allocated, with one owner.

use std::any::Any;
use std::sync::Arc;

use crate::backend::RawMemory;
use crate::backend::host::foreign_memory::{ForeignMemory, host_range};
use crate::device::device::Device;
use crate::error::Result;
use crate::tensor::allocate;
use crate::tensor::layout::Layout;
use crate::tensor::memory::Owner;
use crate::tensor::storage::{Lent, Storage};
use crate::tensor::tensor::Tensor;

/// What keeps many pieces of memory alive, such as a batch of somebody else's tensors. It is dropped with this and the last tensor over one of them, once
/// nothing uses their memory any more, as the owner of [`Tensor::from_raw`] is. A tensor counts it, and needs no owner of its own.
///
/// ```
/// use std::sync::Arc;
/// use transship_core::{DType, Device, Layout, MemoryKind, RawMemory, SharedOwner, Tensor};
///
/// let batch = Arc::new([vec![1.0_f32, 2.0], vec![3.0]]);
/// let owner = SharedOwner::new(batch.clone(), &Device::host());
/// let lend = |values: &Vec<f32>| {
///     let address = values.as_ptr().expose_provenance() as u64;
///     let memory = RawMemory::new(address, size_of_val(&values[..]), MemoryKind::Pageable);
///     // SAFETY: `owner` keeps the vectors alive, and nobody writes to them.
///     unsafe { owner.tensor(memory, Layout::contiguous(DType::F32, &[values.len()])?) }
/// };
/// let tensors = batch.iter().map(lend).collect::<transship_core::Result<Vec<Tensor>>>()?;
/// drop(owner);
/// assert_eq!((tensors[0].as_slice::<f32>()?, Arc::strong_count(&batch)), (&[1.0, 2.0][..], 2));
/// drop(tensors);
/// assert_eq!(Arc::strong_count(&batch), 1);
/// # Ok::<(), transship_core::Error>(())
/// ```
pub struct SharedOwner {
    owner: Owner,
    device: Device,
}

impl SharedOwner {
    /// The owner of memory of `device`. It should hold no [`Device`], which would wait for its own end.
    pub fn new(owner: impl Any + Send + Sync, device: &Device) -> Self {
        Self { owner: Arc::new(Box::new(owner)), device: device.clone() }
    }

    /// A tensor over a piece of the memory, from its first byte on.
    ///
    /// # Safety
    ///
    /// As [`Tensor::from_raw`].
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_raw`].
    pub unsafe fn tensor(&self, memory: RawMemory, layout: Layout) -> Result<Tensor> {
        // SAFETY: passed on.
        let storage = unsafe { self.lend(memory, Lent::ToRead) }?;
        Tensor::from_storage(storage, 0, layout)
    }

    /// As [`tensor`](Self::tensor), for memory that may be written as well.
    ///
    /// # Safety
    ///
    /// As [`Tensor::from_raw_mut`].
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_raw`].
    pub unsafe fn tensor_mut(&self, memory: RawMemory, layout: Layout) -> Result<Tensor> {
        // SAFETY: passed on.
        let storage = unsafe { self.lend(memory, Lent::ToWrite) }?;
        Tensor::from_storage(storage, 0, layout)
    }

    /// # Safety
    ///
    /// As [`Tensor::from_raw`], or [`Tensor::from_raw_mut`] if it may be written.
    unsafe fn lend(&self, memory: RawMemory, lent: Lent) -> Result<Storage> {
        if !self.device.is_host() {
            // SAFETY: passed on; this share of the owner keeps the memory.
            return unsafe { allocate::wrap(memory, Box::new(self.owner.clone()), &self.device, lent) };
        }
        let range = (host_range(memory)?, memory.bytes, memory.kind);
        // SAFETY: the caller's promise; this share of the owner keeps the memory.
        let part = unsafe { ForeignMemory::new(range, lent == Lent::ToWrite, self.owner.clone()) };
        Ok(Storage::lent_part(lent, part))
    }
}
