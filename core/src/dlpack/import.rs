//! Tensors of others as ours.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::host::foreign_memory::ForeignMemory;
use crate::backend::{Buffer, MemoryKind, RawMemory};
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::device_id::DeviceId;
use crate::dlpack::describe::Description;
use crate::dlpack::managed::Managed;
use crate::dlpack::words::Place;
use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::fork;
use crate::runtime::sync::OnceLock;
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Lent, Storage};
use crate::tensor::tensor::Tensor;

impl Tensor {
    /// A tensor of another library, in place, read-only. Memory of the host, page-locked or not, of CUDA and of ROCm, with any strides but
    /// negative ones. The struct's `deleter` is called once, when the last use of the memory is over (copies in flight, what was submitted to
    /// `behind`, and streams that it was [handed to](Self::record_stream) included), on any thread, and never under a lock of transship's.
    ///
    /// The tensor is used behind what was submitted to `behind` up to this call, on the device; on the host it is
    /// [`Error::NotReady`] until that is done. `None`: all is done that writes the memory.
    /// Memory of a device must belong to the device of `behind`; without, that device is [opened](Device::open) by its number.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use transship_core::Tensor;
    /// use transship_core::dlpack::DLManagedTensorVersioned;
    ///
    /// fn tensor_of(theirs: NonNull<DLManagedTensorVersioned>) -> transship_core::Result<Tensor> {
    ///     // SAFETY: the producer has waited for its device, keeps the struct's promises, and writes to the memory no more.
    ///     unsafe { Tensor::from_dlpack(theirs, None) }
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// `managed` is a valid struct of the version that it says: `shape` and `strides` have `ndim` numbers unless they are null, and the elements are valid for reads (and
    /// initialised where they are on the host) until `deleter` is called, which may happen on any thread. Nobody writes them before
    /// that, but what was submitted to `behind` up to this call; memory of a device, but in order of `behind`, or of a stream that the
    /// tensor was handed to. The struct is used by nobody else from now on,
    /// unless this fails.
    ///
    /// # Errors
    ///
    /// The caller keeps `managed` then, whose `deleter` was not called. [`Error::InvalidDlpack`] names what cannot be: another major
    /// version, a kind of device or of element that transship has not, lanes, negative sizes and strides, null where there are elements.
    /// [`Error::SizeOverflow`], [`Error::Misaligned`]; [`Error::InvalidMemory`] where the driver knows the address otherwise;
    /// [`Error::WrongStream`] if the memory is not of the device of `behind`; what [`Device::open`] or the driver says.
    pub unsafe fn from_dlpack<M: Managed>(managed: NonNull<M>, behind: Option<&Stream>) -> Result<Self> {
        // SAFETY: passed on.
        unsafe { import(managed, behind, Lent::ToRead) }
    }

    /// As [`from_dlpack`](Self::from_dlpack), for memory that may be written as well, as that of [`from_raw_mut`](Self::from_raw_mut).
    ///
    /// # Safety
    ///
    /// As [`from_dlpack`](Self::from_dlpack); the elements are valid for writes as well, and nobody else reads them before `deleter` is
    /// called, but in order of a stream as said there.
    ///
    /// # Errors
    ///
    /// As [`from_dlpack`](Self::from_dlpack); [`Error::NotWritable`] if the struct says that it is read-only, which
    /// [`DLManagedTensor`](crate::dlpack::DLManagedTensor) cannot say.
    pub unsafe fn from_dlpack_mut<M: Managed>(managed: NonNull<M>, behind: Option<&Stream>) -> Result<Self> {
        // SAFETY: passed on.
        unsafe { import(managed, behind, Lent::ToWrite) }
    }
}

/// # Safety
///
/// As [`Tensor::from_dlpack`], or [`Tensor::from_dlpack_mut`] if it may be written.
unsafe fn import<M: Managed>(managed: NonNull<M>, behind: Option<&Stream>, lent: Lent) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    let (tensor, read_only) = unsafe { M::read(managed) }?;
    if read_only && lent == Lent::ToWrite {
        let cure = "take it with from_dlpack, or have its producer copy it";
        return Err(Error::NotWritable { why: "lent read-only", cure });
    }
    // SAFETY: the caller's promise.
    let Description { layout, place, start } = unsafe { Description::read(&tensor) }?;
    let filled = behind.map(filled_behind).transpose()?;
    match place {
        Place::Host(kind) => {
            // SAFETY: the caller's promise; `start` is where the layout's elements are.
            let buffer = unsafe { host_buffer(managed, (start, layout.span(), kind), lent) };
            // They fit in there and are aligned: this does not fail.
            Tensor::from_storage(storage(lent, buffer, None, filled), 0, layout)
        }
        Place::On(id) => {
            let device = device(id, behind)?;
            // It is empty, and lets go of nothing, if the memory is refused.
            let owner = Arc::new(OnceLock::new());
            // SAFETY: as above.
            let buffer = unsafe { device_buffer(owner.clone(), &device, start, &layout) }?;
            let tensor = Tensor::from_storage(storage(lent, buffer, Some(device), filled), 0, layout)?;
            owner.get_or_init(|| Lease(managed));
            Ok(tensor)
        }
    }
}

/// The device of this name: that of the stream.
fn device(id: DeviceId, behind: Option<&Stream>) -> Result<Device> {
    match behind.map(Stream::device) {
        None => Device::open(id),
        Some(device) if device.id() == id => Ok(device.clone()),
        Some(device) => Err(Error::WrongStream { actual: device.id(), expected: id }),
    }
}

/// Where a stream is when all is done that it was given so far.
struct Filled {
    queue: Arc<SubmissionQueue>,
    position: u64,
}

fn filled_behind(stream: &Stream) -> Result<Filled> {
    fork::check()?;
    stream.queue().check()?;
    let position = stream.queue().stream().record()?;
    Ok(Filled { queue: stream.queue().clone(), position })
}

/// The memory, which is neither used nor let go of while its producer's stream may write it.
fn storage(lent: Lent, buffer: Box<dyn Buffer>, device: Option<Device>, filled: Option<Filled>) -> Storage {
    let Some(Filled { queue, position }) = filled else {
        return Storage::lent_to(lent, buffer, device, None);
    };
    let written = queue.ticket(position);
    let storage = Storage::lent_to(lent, buffer, device, Some(Completion::at(queue, position)));
    storage.record_use(written);
    storage
}

/// # Safety
///
/// The bytes are valid until the struct is let go of, for reads, and for writes if they are lent for that.
unsafe fn host_buffer<M: Managed>(
    managed: NonNull<M>,
    (start, bytes, kind): (*mut u8, usize, MemoryKind),
    lent: Lent,
) -> Box<dyn Buffer> {
    let start = NonNull::new(start).unwrap_or(NonNull::<u64>::dangling().cast());
    // SAFETY: the caller's promise.
    let memory = unsafe { ForeignMemory::new((start, bytes, kind), lent == Lent::ToWrite, Lease(managed)) };
    Box::new(memory)
}

/// # Safety
///
/// As [`host_buffer`], on the device, until `owner` is dropped.
unsafe fn device_buffer<M: Managed>(
    owner: Arc<OnceLock<Lease<M>>>,
    device: &Device,
    start: *mut u8,
    layout: &Layout,
) -> Result<Box<dyn Buffer>> {
    let (address, bytes) = (start.expose_provenance() as u64, layout.span());
    let granularity = device.limits().copy_granularity;
    if !granularity.divides(bytes) {
        let reason = format!("the device copies whole granules of {} bytes only", granularity.bytes());
        return Err(Error::InvalidMemory { address, bytes, reason });
    }
    let memory = RawMemory::new(address, bytes, MemoryKind::Device);
    // SAFETY: the caller's promise.
    unsafe { device.backend().wrap(memory, Box::new(owner)) }
}

/// A struct that is let go of when this is dropped.
struct Lease<M: Managed>(NonNull<M>);

// SAFETY: nothing is done with it but to let go of it once, which was promised to be right on any thread.
unsafe impl<M: Managed> Send for Lease<M> {}
// SAFETY: as above.
unsafe impl<M: Managed> Sync for Lease<M> {}

impl<M: Managed> Drop for Lease<M> {
    fn drop(&mut self) {
        // SAFETY: `from_dlpack` was promised a valid struct, has read it, and has made one lease of it.
        unsafe { M::delete(self.0) }
    }
}
