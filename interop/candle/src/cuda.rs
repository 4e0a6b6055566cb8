//! candle's CUDA devices: their memory, and the order of their streams.
//!
//! A copy runs on the stream that candle works on. It has to come behind candle's allocation there, and what candle does with the
//! result behind the copy; another stream would have to wait for this one twice and gain nothing.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::cuda::{CudaDType, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Device, Storage, Tensor};
use transship::{MemoryKind, RawMemory, Stream};

use crate::device::{Order, Target};
use crate::element::with_element;
use crate::error::{Error, Result};
use crate::landing::Memory;

/// The handle of the per-thread default stream: another stream on each thread.
const PER_THREAD: usize = 2;

/// Devices that were copied to or from.
static OPEN: Mutex<Vec<transship::Device>> = Mutex::new(Vec::new());

/// Lets go of the devices that were opened. Those that are in use stay.
pub(crate) fn close() {
    // Closed while nothing is locked.
    let open = mem::take(&mut *devices());
    drop(open);
}

/// The same for devices whose driver answers no more, and one of them.
pub(crate) fn close_lost() -> Option<transship::DeviceId> {
    // Asked while nothing is locked.
    let mut lost = devices().clone();
    lost.retain(|device| matches!(device.memory(), Err(error) if !matches!(error, transship::Error::Forked)));
    let is_lost = |open: &transship::Device| lost.iter().any(|lost| lost.id() == open.id());
    let gone: Vec<_> = devices().extract_if(.., |open| is_lost(open)).collect();
    drop(gone);
    lost.first().map(transship::Device::id)
}

pub(crate) fn open(device: &CudaDevice) -> Result<transship::Device> {
    let ordinal = device.cuda_stream().context().ordinal();
    let known = devices().iter().find(|known| known.id().ordinal() == ordinal).cloned();
    if let Some(device) = known {
        return Ok(device);
    }
    let id = transship::DeviceId::new("cuda", ordinal).map_err(transship::Error::from)?;
    let opened = transship::Device::open(id)?;
    devices().push(opened.clone());
    Ok(opened)
}

fn devices() -> MutexGuard<'static, Vec<transship::Device>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream that candle works on, unless that is another one on each thread.
pub(crate) fn own_stream(device: &CudaDevice, opened: &transship::Device) -> Result<Option<Stream>> {
    let stream = device.cuda_stream();
    if is_per_thread(&stream) {
        Ok(None)
    } else {
        Ok(Some(transship::cuda::stream_from_cudarc(opened, &stream)?))
    }
}

/// Where the elements of a storage begin, and how many they are. candle's stream waits for those of other streams that write them and that
/// cudarc knows of.
pub(crate) fn elements_of(storage: &CudaStorage) -> Result<(u64, usize)> {
    let dtype = storage.dtype();
    let stream = storage.device().cuda_stream();
    with_element!(dtype, T => {
        let slice = storage.as_cuda_slice::<T>()?;
        // candle makes a storage of any slice and any device (`CudaStorage::wrap_cuda_slice`).
        if slice.context() != stream.context() {
            return Err(Error::OtherContext {
                path: String::new(),
                expected: stream.context().ordinal(),
                actual: slice.ordinal(),
            });
        }
        let (start, reading) = slice.device_ptr(&stream);
        // Its drop tells cudarc of a read that was submitted, which this is not yet: the copy itself keeps the slice until then.
        mem::forget(reading);
        Ok((start, slice.len()))
    }, else Err(Error::NotCopied { path: String::new(), dtype }))
}

/// Puts a copy of `sources` to `target` behind what fills them: by its stream, or by waiting for theirs.
pub(crate) fn behind(sources: &[Tensor], target: &Target) -> Result<Order> {
    let devices = devices_of(sources);
    let stream = match (&target.stream, &devices[..]) {
        (Some(stream), _) => Some(stream.clone()),
        (None, [only]) if target.candle.is_cpu() => own_stream(only, &open(only)?)?,
        (None, _) => None,
    };
    let copies_on = stream.as_ref().map(transship::cuda::cu_stream).transpose()?;
    let mut waits_here = false;
    for device in devices {
        let theirs = device.cuda_stream();
        if is_per_thread(&theirs) {
            // Tensors may have been filled by any thread, each on its own stream. cudarc frees a slice on the stream of the thread
            // that drops it: that must be one that may have used it.
            theirs.context().synchronize().w()?;
            waits_here = true;
        } else if Some(theirs.cu_stream()) != copies_on {
            waits_here = true;
            theirs.synchronize().w()?;
        }
    }
    Ok(Order { stream, waits_here })
}

/// The devices of `sources`, each once.
fn devices_of(sources: &[Tensor]) -> Vec<CudaDevice> {
    let mut devices = Vec::<CudaDevice>::new();
    for source in sources {
        if let Device::Cuda(device) = source.device()
            && !devices.iter().any(|known| known.id() == device.id())
        {
            devices.push(device.clone());
        }
    }
    devices
}

fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// Waits until memory that was allocated can be written on another stream: it belongs to candle's until that has come by.
pub(crate) fn settle_allocations(target: &Target) -> Result<()> {
    if let (Device::Cuda(device), None) = (&target.candle, &target.stream) {
        device.cuda_stream().synchronize().w()?;
    }
    Ok(())
}

/// Memory of `elements`, of which there is one at least: candle's kind of allocation, on its stream.
pub(crate) fn allocate<T: Element>(elements: usize, device: &CudaDevice) -> Result<Box<dyn Memory>> {
    // SAFETY: nobody reads it before a copy has filled it.
    let slice = unsafe { device.alloc::<T>(elements.max(1)) }?;
    let bound = Bound(device.cuda_stream());
    let (address, writing) = slice.device_ptr(&bound.0);
    // As in `elements_of`: nothing reads it yet.
    mem::forget(writing);
    let raw = RawMemory::new(address, elements * size_of::<T>(), MemoryKind::Device);
    Ok(Box::new(Allocated { bound, slice, raw, device: device.clone() }))
}

/// What candle stores elements of on a device.
pub(crate) trait Element: CudaDType + DeviceRepr + Send + 'static {}

impl<T: CudaDType + DeviceRepr + Send + 'static> Element for T {}

struct Allocated<T> {
    /// Dropped first.
    bound: Bound,
    slice: CudaSlice<T>,
    raw: RawMemory,
    device: CudaDevice,
}

/// When it goes, the context of the stream is current: cudarc frees what goes next, on whichever thread.
struct Bound(Arc<CudaStream>);

impl Drop for Bound {
    fn drop(&mut self) {
        bind(&self.0);
    }
}

/// To be called before a tensor of `device` may be freed, on a thread that candle does not know: each time, since what is freed may make
/// another context current.
pub(crate) fn bind_for(device: &Device) {
    if let Device::Cuda(device) = device {
        bind(&device.cuda_stream());
    }
}

fn bind(stream: &CudaStream) {
    let context = stream.context();
    // As cudarc does with the errors of its own destructors: the next call says so.
    context.record_err(context.bind_to_thread());
}

impl<T: Element> Memory for Allocated<T> {
    fn raw(&mut self) -> RawMemory {
        self.raw
    }

    fn into_storage(self: Box<Self>) -> Storage {
        let Self { bound, mut slice, device, .. } = *self;
        // Other streams that use it wait for what this one was given so far: the copy.
        drop(slice.device_ptr_mut(&bound.0).1);
        Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device))
    }
}
