//! Streams and memory of `cudarc` and of the bare driver, in both directions.

use std::sync::{Arc, Weak};

use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, sys};
use parking_lot::Mutex;
use transship_core::backend::stream_ordered::refuse_per_thread;
use transship_core::backend::{Backend, BackendStream, MemoryKind, RawMemory, Ticket};
use transship_core::{Device, DeviceId, Element, Error, Layout, Result, Stream, Tensor};

use crate::{CudaBackend, CudaStream, library};

/// A stream of cudarc's as a stream to copy on, or to wait on for a copy. The stream lives as long as the result.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use transship_core::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("cuda:0".parse()?)?;
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let copies = transship_cuda::stream_from_cudarc(&device, &stream)?;
/// assert_eq!(transship_cuda::cu_stream(&copies)?, stream.cu_stream());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::WrongStream`] if it belongs to another device, [`Error::Unsupported`] if `device` is none of CUDA's or the
/// stream's context is not the primary one.
pub fn stream_from_cudarc(device: &Device, stream: &Arc<cudarc::driver::CudaStream>) -> Result<Stream> {
    let stream = adopt(backend(device)?, stream)?;
    Ok(Stream::from_backend(device, stream))
}

/// A stream of the driver as a stream to copy on, or to wait on for a copy.
///
/// The legacy default stream (null) is a stream as any other here. A stream can be captured into a graph; a copy on it is
/// refused meanwhile.
///
/// ```no_run
/// use transship_core::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("cuda:0".parse()?)?;
/// // SAFETY: the legacy default stream is never destroyed.
/// let stream = unsafe { transship_cuda::stream_from_raw(&device, std::ptr::null_mut())? };
/// assert!(transship_cuda::cu_stream(&stream)?.is_null());
/// # Ok(())
/// # }
/// ```
///
/// # Safety
///
/// `stream` is a stream of the driver, and it is not destroyed before the result and every tensor copied or used on it are
/// gone; and, if such a tensor went while the stream was being captured, not before [`Stream::synchronize`] was called on the
/// result behind that.
///
/// # Errors
///
/// [`Error::Unsupported`] if `device` is none of CUDA's, the stream is not one of its primary context, or it is the
/// per-thread default stream, which is another one on each thread.
pub unsafe fn stream_from_raw(device: &Device, stream: sys::CUstream) -> Result<Stream> {
    let context = backend(device)?.context();
    refuse_per_thread(device.id(), stream)?;
    let mut actual = std::ptr::null_mut();
    {
        let driver = context.enter()?;
        // SAFETY: the caller's promise; the context of the stream is written to a local.
        unsafe { driver.calls().stream_context(stream, &mut actual)? };
    }
    if actual != context.api().cu_context() {
        let what = "use a stream of a context other than its primary one";
        return Err(Error::Unsupported { device: device.id(), what });
    }
    // SAFETY: the caller's promise; the stream is of this context and not another one on each thread.
    let stream = unsafe { CudaStream::lent(context, stream) };
    Ok(Stream::from_backend(device, Arc::new(stream)))
}

/// The driver's handle of a stream, for kernels and libraries. It is valid for as long as `stream`. Capture no stream of
/// the device's own through it: wrap one of the driver's for that.
///
/// # Errors
///
/// [`Error::Unsupported`] if it is no stream of a CUDA device.
pub fn cu_stream(stream: &Stream) -> Result<sys::CUstream> {
    let device = stream.device().id();
    let stream = CudaStream::of(&**stream.backend_stream());
    let stream = stream.ok_or(Error::Unsupported { device, what: "give a stream of CUDA" })?;
    Ok(stream.handle())
}

/// Where the elements of a tensor start on its device; 0 if it has none.
///
/// Nothing is ordered by this: whoever reads there first makes his stream wait for the copy that fills the tensor
/// (the handle's `wait_on`), and keeps the tensor, or records his stream on it, until he is done. [`cuda_view`](crate::cuda_view)
/// does both.
///
/// # Errors
///
/// [`Error::Unsupported`] if the tensor does not lie on a CUDA device; the error of the copy if that failed.
pub fn device_ptr(tensor: &Tensor) -> Result<sys::CUdeviceptr> {
    backend(&tensor.device()?)?;
    Ok(tensor.address()?.unwrap_or(0))
}

/// A tensor over memory of cudarc's, without a copy. It can be used behind what was submitted to the slice's stream up
/// to this call; cudarc frees the memory with the last tensor over it, once every use recorded on it is done.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use transship_core::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("cuda:0".parse()?)?;
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let slice = stream.clone_htod(&[1.0_f32; 6])?;
/// let tensor = transship_cuda::tensor_from_cuda_slice(&device, slice, &[2, 3])?;
/// assert_eq!(tensor.shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::ShapeMismatch`] if the slice has another number of elements than the shape; [`Error::WrongStream`] or
/// [`Error::Unsupported`] if it is of another device or context; what the driver says. The slice is freed then.
pub fn tensor_from_cuda_slice<T: Element + DeviceRepr>(
    device: &Device,
    slice: CudaSlice<T>,
    shape: &[usize],
) -> Result<Tensor> {
    let backend = backend(device)?;
    let stream = adopt(backend, slice.stream())?;
    let layout = layout_of(&slice, shape)?;
    let address = {
        let _current = backend.context().enter()?;
        // The slice's stream waits for writes of other streams that cudarc knows of.
        slice.device_ptr(slice.stream()).0
    };
    let position = stream.record()?;
    let memory = RawMemory::new(address, slice.num_bytes(), MemoryKind::Device);
    // SAFETY: the slice owns these bytes until it is dropped, and nobody else can reach it to write.
    let buffer = unsafe { backend.wrap(memory, Box::new(slice))? };
    // SAFETY: the buffer is one of the device, and it has no host pointer.
    unsafe { Tensor::from_buffer(device, buffer, Some(Ticket { stream, position }), layout) }
}

/// The layout of a tensor of this shape; fails unless it needs the whole slice.
fn layout_of<T: Element>(slice: &CudaSlice<T>, shape: &[usize]) -> Result<Layout> {
    let layout = Layout::contiguous(T::DTYPE, shape)?;
    let (expected, actual) = (layout.nbytes(), slice.num_bytes());
    match expected == actual {
        true => Ok(layout),
        false => Err(Error::ShapeMismatch { shape: shape.to_vec(), dtype: T::DTYPE, expected, actual }),
    }
}

pub(crate) fn backend(device: &Device) -> Result<&CudaBackend> {
    let unsupported =
        || Error::Unsupported { device: device.id(), what: "work with CUDA; use a device of it" };
    CudaBackend::of(&**device.backend()).ok_or_else(unsupported)
}

/// The objects that count the positions of cudarc's streams.
#[derive(Default)]
pub struct Adopted(Mutex<Vec<Adoption>>);

struct Adoption {
    theirs: Weak<cudarc::driver::CudaStream>,
    ours: Arc<CudaStream>,
}

/// The object that counts the positions of a stream of cudarc's; always the same one for as long as somebody else holds
/// the stream.
///
/// # Errors
///
/// [`Error::WrongStream`] if the stream is of another device, [`Error::Unsupported`] if of another context, or if it
/// is the per-thread default stream.
pub(crate) fn adopt(
    backend: &CudaBackend,
    stream: &Arc<cudarc::driver::CudaStream>,
) -> Result<Arc<CudaStream>> {
    check_context(backend, stream.context())?;
    refuse_per_thread(backend.device(), stream.cu_stream())?;
    let mut adopted = backend.attached().0.lock();
    if let Some(known) = adopted.iter().find(|known| known.ours.handle() == stream.cu_stream()) {
        return Ok(known.ours.clone());
    }
    adopted.retain(|known| !known.is_orphan());
    // SAFETY: the stream is of this context, is not another one on each thread, and lives as long as its owner.
    let ours = unsafe { CudaStream::kept(backend.context(), stream.cu_stream(), Box::new(stream.clone())) };
    let ours = Arc::new(ours);
    adopted.push(Adoption { theirs: Arc::downgrade(stream), ours: ours.clone() });
    Ok(ours)
}

impl Adoption {
    /// Whether nobody but us holds cudarc's stream any more. For the default stream cudarc makes a new object each time.
    fn is_orphan(&self) -> bool {
        !self.ours.handle().is_null() && self.theirs.strong_count() == 1
    }
}

fn check_context(backend: &CudaBackend, context: &cudarc::driver::CudaContext) -> Result<()> {
    let expected = backend.device();
    let actual = DeviceId::new(library::NAME, context.ordinal())?;
    match (actual == expected, context.cu_ctx() == backend.context().api().cu_context()) {
        (true, true) => Ok(()),
        (true, false) => {
            let what = "use a context other than its primary one; make it with CudaContext::new";
            Err(Error::Unsupported { device: expected, what })
        }
        (false, _) => Err(Error::WrongStream { actual, expected }),
    }
}
