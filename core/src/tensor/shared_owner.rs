//! Many pieces of memory that somebody else allocated, with one owner.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::alignment::Alignment;
use crate::backend::host::foreign_memory::{ForeignMemory, host_range};
use crate::backend::{Buffer, RawMemory, Ticket};
use crate::device::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::tensor::allocate;
use crate::tensor::device_list::DeviceList;
use crate::tensor::gather_list::GatherList;
use crate::tensor::layout::Layout;
use crate::tensor::lent_together::{Together, lent_across, lent_together};
use crate::tensor::memory::Owner;
use crate::tensor::storage::{Lent, Storage};
use crate::tensor::tensor::{Tensor, check_range};

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
    filled: Option<Arc<Completion>>,
}

impl SharedOwner {
    /// The owner of memory of `device`. It should hold no [`Device`], which would wait for its own end.
    pub fn new(owner: impl Any + Send + Sync, device: &Device) -> Self {
        Self { owner: Arc::new(Box::new(owner)), device: device.clone(), filled: None }
    }

    /// For memory that is filled once `ticket` is reached: whoever uses a tensor over it waits until then, on the device.
    #[must_use]
    pub fn filled_at(self, ticket: Ticket) -> Self {
        let filled = Completion::at(self.device.queue_of(ticket.stream), ticket.position);
        Self { filled: Some(filled), ..self }
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

    /// A tensor over each of many pieces of the memory, in their order. Pieces that lie in one allocation of a device cost its driver as many questions
    /// as one of them does; they [share their memory](Tensor::shares_memory_with).
    ///
    /// # Safety
    ///
    /// As [`tensor`](Self::tensor), for each piece. What lies between them is neither read nor written, and may be anybody's.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor), if one of them cannot be lent.
    pub unsafe fn tensors(
        &self,
        pieces: impl IntoIterator<Item = (RawMemory, Layout)>,
    ) -> Result<Vec<Tensor>> {
        let pieces = pieces.into_iter();
        if self.device.is_host() || self.device.limits().copy_granularity != Alignment::ONE {
            // SAFETY: passed on.
            return pieces.map(|(memory, layout)| unsafe { self.tensor(memory, layout) }).collect();
        }
        let (memory, layouts): (Vec<RawMemory>, Vec<Layout>) = pieces.unzip();
        let together = lent_together(&memory, |address| self.device.backend().allocation_of(address));
        // SAFETY: passed on.
        unsafe { self.lend_ranges(together, &memory, &layouts) }
    }

    /// As [`tensors`](Self::tensors), for pieces of allocations that the caller knows: each comes with the addresses of its own. The driver is
    /// asked about the first and the last byte of all that lie apart, and not about each allocation.
    ///
    /// # Safety
    ///
    /// As [`tensors`](Self::tensors); and each piece of a device's memory is of this device.
    ///
    /// # Errors
    ///
    /// As [`tensors`](Self::tensors).
    pub unsafe fn tensors_of_allocations(
        &self,
        pieces: impl IntoIterator<Item = (Range<u64>, RawMemory, Layout)>,
    ) -> Result<Vec<Tensor>> {
        let pieces = pieces.into_iter();
        if self.device.is_host() || self.device.limits().copy_granularity != Alignment::ONE {
            // SAFETY: passed on.
            return pieces.map(|(_, memory, layout)| unsafe { self.tensor(memory, layout) }).collect();
        }
        let (mut allocations, mut memory, mut layouts) = (Vec::new(), Vec::new(), Vec::new());
        for (allocation, piece, layout) in pieces {
            allocations.push(allocation);
            memory.push(piece);
            layouts.push(layout);
        }
        // SAFETY: passed on.
        match unsafe { self.lend_ranges(lent_across(&memory, &allocations), &memory, &layouts) } {
            // Not every backend takes a range that goes beyond one allocation.
            // SAFETY: passed on.
            Err(Error::InvalidMemory { .. }) => unsafe { self.tensors(memory.into_iter().zip(layouts)) },
            lent => lent,
        }
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

    /// As [`tensor`](Self::tensor), for memory that others may write at any time, such as another process that maps it too. Only
    /// copies read it, and each gives whatever bytes it finds: a copy to the device that it lies on, or to the host, too, is one. All that would read it in place is
    /// [`Error::SharedMemory`]: slices, casts, DLPack, views for kernels.
    ///
    /// # Safety
    ///
    /// `memory` must be mapped and valid for reads by the host, or by the device, until the owner is dropped, and initialised where it is of the host; if its kind is
    /// [`MemoryKind::Pinned`](crate::MemoryKind::Pinned), page-locked for every driver whose devices it is copied to. No reference of this process
    /// points there.
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_raw`].
    pub unsafe fn tensor_over_shared(&self, memory: RawMemory, layout: Layout) -> Result<Tensor> {
        // SAFETY: passed on.
        unsafe { self.shared_memory(memory) }?.tensor(0, layout)
    }

    /// Such memory, for many tensors: they [share it](Tensor::shares_memory_with), and each costs a count.
    ///
    /// # Safety
    ///
    /// As [`tensor_over_shared`](Self::tensor_over_shared), for all of it.
    ///
    /// # Errors
    ///
    /// As [`tensor_over_shared`](Self::tensor_over_shared).
    pub unsafe fn shared_memory(&self, memory: RawMemory) -> Result<SharedMemory> {
        // SAFETY: passed on; nothing but copies reads it (`Storage::check_unshared`).
        Ok(SharedMemory(unsafe { self.lend(memory, Lent::ToCopy) }?))
    }

    /// Memory to be read, for many tensors over parts of it that are made one by one: they [share it](Tensor::shares_memory_with), and each costs a count. What lies between
    /// them is not read.
    ///
    /// # Safety
    ///
    /// As [`Tensor::from_raw`], for each part that a tensor is made over.
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_raw`].
    pub unsafe fn memory(&self, memory: RawMemory) -> Result<SharedMemory> {
        if self.device.is_host() || self.device.limits().copy_granularity != Alignment::ONE {
            // SAFETY: passed on.
            return Ok(SharedMemory(unsafe { self.lend(memory, Lent::ToRead) }?));
        }
        // SAFETY: passed on; there may be any number of pieces.
        Ok(SharedMemory(unsafe { self.lend_together(memory, usize::MAX) }?))
    }

    /// A tensor of bytes out of many pieces of memory, each with its offset there, in rising order: copies put them side by side, and it costs
    /// less than a tensor for each. Only copies read it: all that would read it in place, and casts, are [`Error::SharedMemory`]. Reports count
    /// it as one tensor.
    ///
    /// Of the host, a copy has zeros between two pieces. Of a device, what lies between them is not copied: a tensor with such gaps goes into memory that
    /// is there ([`start_copy_into`](crate::start_copy_into)), whose bytes there stay what they were. Pieces of a device are read as
    /// tensors are: small ones together by a kernel, where it has one, and the others by a copy each. Those of one allocation cost its driver as
    /// many questions as one of them does.
    ///
    /// # Safety
    ///
    /// Of the host, as [`tensor_over_shared`](Self::tensor_over_shared), for each piece; their kind does not matter. Others may write them. Of a
    /// device, as [`Tensor::from_raw`], for each piece.
    ///
    /// # Errors
    ///
    /// Of the host, as [`tensor_over_shared`](Self::tensor_over_shared); of a device, as [`Tensor::from_raw`], for pieces of other memory than the device's
    /// own as well, and [`Error::Unsupported`] where memory has no addresses, or copies consist of granules.
    /// [`Error::InvalidMemory`] for a piece that begins before the end of the one before it.
    pub unsafe fn gathered(&self, pieces: impl IntoIterator<Item = (RawMemory, usize)>) -> Result<Tensor> {
        let device = Some(&self.device).filter(|device| !device.is_host());
        let buffer: Box<dyn Buffer> = match device {
            // SAFETY: passed on; nothing but copies reads it (`Storage::check_unshared`).
            None => Box::new(unsafe { GatherList::new(pieces, self.owner.clone()) }?),
            Some(device)
                if device.limits().copy_granularity == Alignment::ONE
                    && device.backend().takes_addresses() =>
            {
                // SAFETY: as above.
                Box::new(unsafe { DeviceList::new(pieces, device, &self.owner) }?)
            }
            Some(device) => {
                let what = "gather pieces of its memory into one tensor; take tensors";
                return Err(Error::Unsupported { device: device.id(), what });
            }
        };
        let layout = Layout::contiguous(DType::U8, &[buffer.bytes()])?;
        let storage = Storage::lent_to(Lent::ToCopy, buffer, device.cloned(), self.filled.clone());
        Tensor::from_storage(storage, 0, layout)
    }

    /// A tensor over each piece, in their order.
    ///
    /// # Safety
    ///
    /// As [`tensors`](Self::tensors).
    unsafe fn lend_ranges(
        &self,
        together: Vec<Together>,
        memory: &[RawMemory],
        layouts: &[Layout],
    ) -> Result<Vec<Tensor>> {
        let mut numbered = Vec::with_capacity(memory.len());
        for Together { memory: range, pieces } in together {
            // SAFETY: the caller's promise; what lies between several pieces is not read (`Gaps::Unread`).
            let storage = unsafe { self.lend_together(range, pieces.len()) }?;
            for (storage, number) in storage.shares(pieces.len()).zip(pieces) {
                let (Some(piece), Some(layout)) = (memory.get(number), layouts.get(number)) else { continue };
                check_range(0, layout.span(), piece.bytes)?;
                let offset = usize::try_from(piece.address - range.address).unwrap_or(usize::MAX);
                numbered.push((number, Tensor::from_storage(storage, offset, layout.clone())?));
            }
        }
        numbered.sort_unstable_by_key(|(number, _)| *number);
        Ok(numbered.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// Memory of a device of which so many pieces are read.
    ///
    /// # Safety
    ///
    /// As [`Tensor::from_raw`], for these pieces.
    unsafe fn lend_together(&self, memory: RawMemory, pieces: usize) -> Result<Storage> {
        if pieces == 1 {
            // SAFETY: passed on.
            return unsafe { self.lend(memory, Lent::ToRead) };
        }
        // SAFETY: passed on; bytes that no tensor is over promise nothing. This share of the owner keeps the memory.
        let buffer = unsafe { self.device.backend().wrap(memory, Box::new(self.owner.clone())) }?;
        Ok(Storage::lent_in_pieces(buffer, &self.device, self.filled.clone()))
    }

    /// Tensors over parts of one piece of memory that may be written, each said by its offset there in bytes and its layout. They
    /// [share it](Tensor::shares_memory_with): one [`start_copy_into`](crate::start_copy_into) fills all of them, and refuses those that overlap.
    ///
    /// # Safety
    ///
    /// As [`Tensor::from_raw_mut`], for the bytes of the elements. What lies between them is neither read nor written.
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_raw`].
    pub unsafe fn parts_mut(
        &self,
        memory: RawMemory,
        parts: impl IntoIterator<Item = (usize, Layout)>,
    ) -> Result<Vec<Tensor>> {
        // SAFETY: passed on.
        let storage = unsafe { self.lend(memory, Lent::ToWrite) }?;
        let parts = parts.into_iter();
        let mut tensors = Vec::with_capacity(parts.size_hint().0);
        for (offset, layout) in parts {
            tensors.push(Tensor::from_storage(storage.clone(), offset, layout)?);
        }
        Ok(tensors)
    }

    /// # Safety
    ///
    /// As [`Tensor::from_raw`], [`Tensor::from_raw_mut`] if it may be written, [`tensor_over_shared`](Self::tensor_over_shared) if it is to be copied only.
    unsafe fn lend(&self, memory: RawMemory, lent: Lent) -> Result<Storage> {
        if !self.device.is_host() {
            let owner = Box::new(self.owner.clone());
            // SAFETY: passed on; this share of the owner keeps the memory.
            return unsafe { allocate::wrap(memory, owner, &self.device, lent, self.filled.clone()) };
        }
        let range = (host_range(memory)?, memory.bytes, memory.kind);
        // SAFETY: the caller's promise; this share of the owner keeps the memory.
        let part = unsafe { ForeignMemory::new(range, lent == Lent::ToWrite, self.owner.clone()) };
        Ok(Storage::lent_part(lent, part, self.filled.clone()))
    }
}

/// Memory for many tensors: see [`SharedOwner::shared_memory`] and [`SharedOwner::memory`].
pub struct SharedMemory(Storage);

impl SharedMemory {
    /// A tensor over a part of it, which begins at `offset` bytes. If others may write it, only copies read it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it does not lie there; [`Error::Misaligned`] if its type cannot.
    pub fn tensor(&self, offset: usize, layout: Layout) -> Result<Tensor> {
        Tensor::from_storage(self.0.clone(), offset, layout)
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory").field("bytes", &self.0.bytes()).finish()
    }
}
