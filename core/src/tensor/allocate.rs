//! Tensors in new memory, on any device, and over memory that somebody else allocated.

use std::any::Any;
use std::sync::Arc;

use smallvec::smallvec;

use crate::backend::host::foreign_memory::WritableMemory;
use crate::backend::host::memory::HostMemory;
use crate::backend::{Buffer, CopyOp, Direction, MemoryKind, RawMemory};
use crate::device::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::runtime::fork;
use crate::staging::block::Block;
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Lent, Storage};
use crate::tensor::tensor::Tensor;

impl Tensor {
    /// A tensor of `shape` on `device`. On the host its elements are zeros, elsewhere they are what the memory held.
    ///
    /// # Errors
    ///
    /// [`Error::SizeOverflow`], [`Error::OutOfMemory`], [`Error::TooLarge`], [`Error::OverBudget`], or what the driver says.
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        if device.is_host() {
            return Self::in_host_memory(layout);
        }
        fork::check()?;
        let queue = device.up()?;
        let memory = device.allocate(layout.nbytes(), &queue)?;
        if memory.buffer.host_pointer().is_some() {
            // The host could read what was never written. The budget need not have room for both.
            drop(memory);
            return Self::zeros(shape, dtype, device);
        }
        // The memory belongs to the stream that it was allocated on until that has come by.
        let position = queue.stream().record()?;
        let allocated = Completion::at(queue, position);
        Self::from_storage(Storage::new(memory, Some(device.clone()), Some(allocated)), 0, layout)
    }

    /// A tensor of zeros of `shape` on `device`. Does not block: on a device the tensor is filled in stream order.
    ///
    /// # Errors
    ///
    /// As [`empty`](Self::empty).
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        if device.is_host() {
            return Self::in_host_memory(layout);
        }
        fork::check()?;
        let (queue, cleared) = (device.up()?, Completion::new());
        let memory = device.allocate(layout.nbytes(), &queue)?;
        let storage = Storage::new(memory, Some(device.clone()), Some(cleared.clone()));
        // SAFETY: the range is the whole buffer, which the storage holds.
        let submission = unsafe {
            queue.submit(storage.clone(), |storage| {
                let (to, bytes) = (storage.buffer(), storage.bytes());
                smallvec![CopyOp::Clear { to, to_offset: 0, bytes }]
            })
        }?;
        cleared.reach(&queue, submission.position);
        cleared.submitted();
        // Nobody waits for it, but somebody must let go of what it uses.
        cleared.leave_to_reactor()?;
        Self::from_storage(storage, 0, layout)
    }

    /// A tensor of zeros of `shape` in pinned host memory of `device`, which that device copies from and to
    /// asynchronously, without staging. Page-locking takes about 0.4 ms for each MB where the pool has no idle block.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] where the budget for pinned results is used up, [`Error::TooLarge`] above it, [`Error::Unsupported`] where the device's API has no
    /// page-locked memory beside its own buffers (wgpu); as [`empty`](Self::empty) otherwise.
    pub fn empty_pinned(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::pinned(Layout::contiguous(dtype, shape)?, device, clear)
    }

    /// A tensor over memory that somebody else allocated, without a copy. `owner` is dropped when nothing uses the memory
    /// any more; it should hold no [`Device`], which would wait for its own end.
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads by `device` (by the host, for kinds of host memory) until `owner` is dropped,
    /// initialised where it is host memory, and nobody may write to it while a tensor over it exists; to memory of a device, in
    /// order of a stream that the tensor was [handed to](Self::record_stream). Host memory is read at any time. Other devices that
    /// memory of a device is open to read it as well: it stays open to them.
    ///
    /// # Errors
    ///
    /// The owner is dropped with each: [`Error::InvalidMemory`] (also where the bytes of device memory are no multiple of
    /// [`Limits::copy_granularity`](crate::backend::Limits::copy_granularity)), [`Error::Misaligned`],
    /// [`Error::OutOfRange`] where `shape` needs more bytes.
    pub unsafe fn from_raw(
        memory: RawMemory,
        owner: Box<dyn Any + Send + Sync>,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        // SAFETY: passed on.
        let storage = unsafe { wrap(memory, owner, device, Lent::ToRead, None) }?;
        Self::from_storage(storage, 0, layout)
    }

    /// As [`from_raw`](Self::from_raw), for memory that may be written as well: [`start_copy_into`](crate::start_copy_into) fills it, and on
    /// the host [`as_mut_slice`](Self::as_mut_slice) changes it, under the rules for memory that transship has allocated. Page-locked memory
    /// ([`MemoryKind::Pinned`]) may be given with the GPU whose driver has locked it: copies down from that one then write there, without staging, where its kernels reach it.
    ///
    /// ```
    /// use transship_core::{CopyOptions, DType, Device, MemoryKind, RawMemory, Tensor, start_copy_into};
    ///
    /// let mut pixels = [0_u8; 4];
    /// let address = pixels.as_mut_ptr().expose_provenance() as u64;
    /// let memory = RawMemory::new(address, 4, MemoryKind::Pageable);
    /// // SAFETY: nobody else touches `pixels` before the tensor has gone.
    /// let held = unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[4], DType::U8, &Device::host())? };
    /// let filled = start_copy_into(Tensor::from(vec![7_u8; 4]), held, CopyOptions::default())?.wait()?;
    /// drop(filled);
    /// assert_eq!(pixels, [7; 4]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw); `memory` must be valid for writes as well, and nobody else may read it while a tensor over it
    /// exists: memory of a device, but in order of a stream that the tensor was [handed to](Self::record_stream). That holds for page-locked memory that is given with a GPU,
    /// too: copies and kernels of that one write there.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Self::from_raw).
    pub unsafe fn from_raw_mut(
        memory: RawMemory,
        owner: Box<dyn Any + Send + Sync>,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        // SAFETY: passed on.
        let storage = unsafe { wrap(memory, owner, device, Lent::ToWrite, None) }?;
        Self::from_storage(storage.seen_up_to(layout.span()), 0, layout)
    }

    fn pinned(layout: Layout, device: &Device, prepare: fn(&Block, usize)) -> Result<Self> {
        if device.is_host() {
            return Self::in_host_memory(layout);
        }
        fork::check()?;
        if device.limits().mapped_staging {
            return Err(Error::Unsupported {
                device: device.id(),
                what: "lend page-locked memory to tensors; use Tensor::zeros of the host",
            });
        }
        let (bytes, limit) = (layout.nbytes(), device.results().budget());
        if bytes > limit {
            return Err(Error::TooLarge { device: device.id(), kind: "pinned", requested: bytes, limit });
        }
        let busy = || Error::Busy {
            device: device.id(),
            requested: bytes,
            reason: "the budget for pinned results is used up",
            cure: "drop tensors in pinned memory, or raise the budget (Device::set_result_budget)",
        };
        let block = device.results().take_or_grow(bytes, Direction::Upload)?.ok_or_else(busy)?;
        prepare(&block, bytes);
        Self::from_storage(Storage::new(block.into_buffer(bytes), None, None), 0, layout)
    }

    fn in_host_memory(layout: Layout) -> Result<Self> {
        let memory = HostMemory::zeroed(layout.nbytes())?;
        Self::from_storage(Storage::new(Box::new(memory), None, None), 0, layout)
    }
}

/// Memory of somebody else, who lets that be done with it.
///
/// # Safety
///
/// As [`Tensor::from_raw`], or [`Tensor::from_raw_mut`] if it may be written.
pub(crate) unsafe fn wrap(
    memory: RawMemory,
    owner: Box<dyn Any + Send + Sync>,
    device: &Device,
    lent: Lent,
    filled_by: Option<Arc<Completion>>,
) -> Result<Storage> {
    let on_device = matches!(memory.kind, MemoryKind::Device | MemoryKind::Managed);
    let granularity = device.limits().copy_granularity;
    if on_device && !granularity.divides(memory.bytes) {
        let reason = format!("the device copies whole granules of {} bytes only", granularity.bytes());
        return Err(Error::InvalidMemory { address: memory.address, bytes: memory.bytes, reason });
    }
    let buffer = match lent {
        // SAFETY: the caller's promise.
        Lent::ToWrite => unsafe { wrap_writable(memory, owner, device) }?,
        // SAFETY: the caller's promise is that of `wrap`.
        _ => unsafe { device.backend().wrap(memory, owner) }?,
    };
    Ok(Storage::lent_to(lent, buffer, on_device.then(|| device.clone()), filled_by))
}

/// Memory of somebody else, who lets it be written.
///
/// # Safety
///
/// As [`Tensor::from_raw_mut`].
pub(crate) unsafe fn wrap_writable(
    memory: RawMemory,
    owner: Box<dyn Any + Send + Sync>,
    device: &Device,
) -> Result<Box<dyn Buffer>> {
    // SAFETY: the caller's promise is that of `wrap`.
    let buffer = unsafe { device.backend().wrap(memory, owner) }?;
    if matches!(memory.kind, MemoryKind::Device | MemoryKind::Managed) {
        return Ok(buffer);
    }
    let written_by = device.backend().kernels_reach(&*buffer).then(|| device.id());
    // SAFETY: the caller's promise; the device has said that it reaches the memory.
    Ok(Box::new(unsafe { WritableMemory::new(buffer, written_by) }))
}

/// Zeros, so that no bytes of an earlier result show.
fn clear(block: &Block, bytes: usize) {
    if let Some(start) = block.staging().window().and_then(|window| window.at(0, bytes)) {
        // SAFETY: `at` has checked the range; the block is ours alone.
        unsafe { start.write_bytes(0, bytes) };
    }
}
