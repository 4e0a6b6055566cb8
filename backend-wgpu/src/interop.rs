//! Devices and buffers of the program's own.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::{DType, Device, DeviceId, Error, Layout, Result, Tensor};
use wgpu::BufferUsages;

use crate::adapters::NAME;
use crate::device::WgpuBackend;
use crate::memory::WgpuBuffer;
use crate::source::{BufferSource, OwnedBuffer};

/// The number of the first device that a program hands in. Below it are those of the adapters.
const FIRST_FOREIGN: usize = 1 << 16;

/// A device of the program's own: copies go into it, in one order with the program's submissions to `queue`.
///
/// It is called `wgpu:65536` and up, in the order of the calls, and cannot be opened by that name. Its
/// uncaptured-error handler and its device-lost callback are left alone. Callbacks of the program may run on threads of
/// transship, which poll the device; one that panics there counts as the loss of the device.
///
/// # Safety
///
/// Nobody [destroys](wgpu::Device::destroy) the device while copies to tensors on it are being staged, or copies from them land: from
/// their start until their handles have been waited for (to the device: handed to a stream), or
/// [`Cancelled::in_flight`](transship_core::Cancelled) has. wgpu frees the memory of mapped buffers when a destroyed device is polled
/// or submitted to, by whomever, whoever holds a view of it; threads of transship write to such memory. Dropping all handles of
/// the device is no matter.
///
/// ```no_run
/// # fn copy(device: wgpu::Device, queue: wgpu::Queue) -> transship_core::Result<()> {
/// use transship_core::{CopyOptions, Tensor, start_copy};
///
/// // SAFETY: this program never destroys the device.
/// let gpu = unsafe { transship_wgpu::from_device(device.clone(), queue.clone()) }?;
/// let tensor = start_copy(Tensor::from(vec![1.0_f32, 2.0]), &gpu, CopyOptions::default())?.wait()?;
/// assert_eq!(tensor.device_id()?, gpu.id());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// What wgpu says.
///
/// ```compile_fail,E0133
/// # fn copy(device: wgpu::Device, queue: wgpu::Queue) {
/// let _ = transship_wgpu::from_device(device, queue); // without a promise
/// # }
/// ```
pub unsafe fn from_device(device: wgpu::Device, queue: wgpu::Queue) -> Result<Device> {
    Device::from_backend(Arc::new(WgpuBackend::new(next_id()?, device, queue, true)))
}

/// As [`from_device`], with the memory of tensors from `source`: from the allocator of a library that works on the same device and
/// queue, so that what it makes of such memory are tensors of its own, without a copy. [`WgpuBuffer::owner`] has what `source` gave.
///
/// Starting a copy asks `source` for memory, and blocks as long as that does.
///
/// # Safety
///
/// As [`from_device`].
///
/// # Errors
///
/// [`Error::InvalidLimit`] if the alignment or the largest size of `source` is out of range; what wgpu says.
pub unsafe fn from_device_with(
    device: wgpu::Device,
    queue: wgpu::Queue,
    source: Box<dyn BufferSource>,
) -> Result<Device> {
    let backend = WgpuBackend::new(next_id()?, device, queue, true).with_source(source);
    Device::from_backend(Arc::new(backend))
}

fn next_id() -> Result<DeviceId> {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST_FOREIGN);
    Ok(DeviceId::new(NAME, NEXT.fetch_add(1, Ordering::Relaxed))?)
}

/// The device and the queue below a device of this driver, for pipelines and submissions of the program's own.
///
/// # Safety
///
/// As [`from_device`]: nobody destroys it while copies are on their way.
///
/// # Errors
///
/// [`Error::Unsupported`] if it is none of wgpu's.
///
/// ```compile_fail,E0133
/// # fn show(device: &transship_core::Device) {
/// let _ = transship_wgpu::wgpu_device(device); // without a promise
/// # }
/// ```
pub unsafe fn wgpu_device(device: &Device) -> Result<(wgpu::Device, wgpu::Queue)> {
    let backend = backend(device)?;
    // SAFETY: the caller's promise.
    let device = unsafe { backend.device() };
    Ok((device.clone(), backend.queue().clone()))
}

/// A tensor over the start of a buffer of the program's own, without a copy.
///
/// The program may go on using the buffer; what it submits before a copy starts comes before that copy. It must not be
/// mapped while a copy uses it. One with the usage `COPY_DST` can be copied into as well, with
/// [`start_copy_into`](transship_core::start_copy_into), and [split](Tensor::split). wgpu copies multiples of 4 bytes: a copy into a tensor whose size is none
/// writes up to 3 bytes behind it as well. So put nothing there. Views of it that end within such 4 bytes are refused.
///
/// ```no_run
/// # fn wrap(gpu: &transship_core::Device, buffer: wgpu::Buffer) -> transship_core::Result<()> {
/// use transship_core::DType;
///
/// let tensor = transship_wgpu::wrap_buffer(gpu, buffer, 0, &[256, 4], DType::F32)?;
/// assert_eq!(tensor.nbytes(), 4096);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::Unsupported`] if `device` is none of wgpu's; [`Error::InvalidMemory`] if the buffer lacks `COPY_SRC`, without
/// which nothing can be copied out of it, or its size or the offset is not a multiple of 4;
/// [`Error::OutOfRange`] if it is too small; [`Error::Misaligned`] if the offset does not suit the elements.
pub fn wrap_buffer(
    device: &Device,
    buffer: wgpu::Buffer,
    offset: u64,
    shape: &[usize],
    dtype: DType,
) -> Result<Tensor> {
    let backend = backend(device)?;
    let layout = Layout::contiguous(dtype, shape)?;
    let (start, bytes) = check(&buffer, offset, dtype)?;
    let is_writable = buffer.usage().contains(BufferUsages::COPY_DST);
    let buffer = Box::new(WgpuBuffer::wrap(backend.context(), buffer, start, bytes));
    // SAFETY: the buffer is used on this device alone, since wgpu refuses it elsewhere; it has no host pointer, and the one queue
    // orders what else writes or reads it.
    unsafe {
        match is_writable {
            true => Tensor::from_buffer_mut(device, buffer, None, layout),
            false => Tensor::from_buffer(device, buffer, None, layout),
        }
    }
}

/// A tensor over a part of a buffer that somebody keeps for as long as `owned.owner` is there: memory of a library that uses
/// the rest of the buffer for something else. Copies read it, and none writes it.
///
/// What was submitted to the queue before a copy starts comes before that copy. The owner is dropped when the last tensor and the last
/// copy are done with the memory, on a thread for owners.
///
/// ```no_run
/// # fn lend(gpu: &transship_core::Device, buffer: wgpu::Buffer, page: std::sync::Arc<[u8]>) -> transship_core::Result<()> {
/// use transship_core::DType;
/// use transship_wgpu::OwnedBuffer;
///
/// let owned = OwnedBuffer { buffer, offset: 256, owner: Box::new(page) };
/// let tensor = transship_wgpu::lend_buffer(gpu, owned, &[256, 4], DType::F32)?;
/// assert_eq!(tensor.nbytes(), 4096);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`wrap_buffer`]. The owner is dropped with each, here.
pub fn lend_buffer(device: &Device, owned: OwnedBuffer, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let backend = backend(device)?;
    let layout = Layout::contiguous(dtype, shape)?;
    let (_, bytes) = check(&owned.buffer, owned.offset as u64, dtype)?;
    let needed = layout.span().next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT as usize);
    if needed > bytes {
        return Err(Error::OutOfRange { what: "bytes", start: 0, end: needed, limit: bytes });
    }
    // No more than its own: the rest is somebody else's.
    let buffer = Box::new(WgpuBuffer::owned(backend.context(), owned, needed));
    // SAFETY: as in `wrap_buffer`; the owner keeps the memory.
    unsafe { Tensor::from_buffer(device, buffer, None, layout) }
}

/// Where the memory starts and how much there is, for elements of `dtype`.
fn check(buffer: &wgpu::Buffer, offset: u64, dtype: DType) -> Result<(usize, usize)> {
    let alignment = dtype.alignment().bytes();
    if !offset.is_multiple_of(alignment as u64) {
        let cure = "put the elements at such an offset";
        return Err(Error::Misaligned { what: "offset", value: offset, alignment, cure });
    }
    let size = usize::try_from(buffer.size()).unwrap_or(usize::MAX);
    let wrong = |reason: String| Err(Error::InvalidMemory { address: offset, bytes: size, reason });
    if !buffer.usage().contains(BufferUsages::COPY_SRC) {
        return wrong(format!("the buffer has the usages {:?}; add COPY_SRC", buffer.usage()));
    }
    let granularity = wgpu::COPY_BUFFER_ALIGNMENT;
    if !buffer.size().is_multiple_of(granularity) || !offset.is_multiple_of(granularity) {
        return wrong(format!("copies need multiples of {granularity}; change the size or the offset"));
    }
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    match size.checked_sub(start) {
        Some(bytes) => Ok((start, bytes)),
        None => Err(Error::OutOfRange { what: "bytes", start, end: start, limit: size }),
    }
}

pub(crate) fn backend(device: &Device) -> Result<&WgpuBackend> {
    let backend: &dyn Any = &**device.backend();
    let unsupported =
        || Error::Unsupported { device: device.id(), what: "work with wgpu; use a device of it" };
    backend.downcast_ref().ok_or_else(unsupported)
}
