//! Where tensors are, and the devices and streams of the library for that.

use std::collections::HashMap;
use std::mem;

use parking_lot::{Mutex, MutexGuard};
use transship::dlpack::{DLDevice, device_type};
use transship::{Device, DeviceId, Error, Result, Stream, StreamPriority};

use crate::forked;

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Host,
    /// A device of CUDA.
    Cuda(i32),
    /// A device of ROCm.
    Hip(i32),
}

/// So many streams of others are remembered. PyTorch has 32 of each priority for each device.
const STREAMS: usize = 512;

static DEVICES: Mutex<Option<HashMap<Place, Device>>> = Mutex::new(None);
static OWN_STREAMS: Mutex<Option<HashMap<Place, Stream>>> = Mutex::new(None);
static STREAMS_OF_OTHERS: Mutex<Option<HashMap<(Place, usize), Stream>>> = Mutex::new(None);

impl Place {
    /// `None` for kinds of devices that the library does not know.
    #[inline]
    pub fn of(DLDevice { device_type, device_id }: DLDevice) -> Option<Self> {
        match device_type {
            device_type::CPU | device_type::CUDA_HOST | device_type::ROCM_HOST => Some(Self::Host),
            device_type::CUDA => Some(Self::Cuda(device_id)),
            device_type::ROCM => Some(Self::Hip(device_id)),
            _ => None,
        }
    }

    pub fn of_id(id: DeviceId) -> Option<Self> {
        let ordinal = i32::try_from(id.ordinal()).ok()?;
        match id.driver() {
            _ if id.is_host() => Some(Self::Host),
            "cuda" => Some(Self::Cuda(ordinal)),
            "hip" => Some(Self::Hip(ordinal)),
            _ => None,
        }
    }

    pub fn dl_device(self) -> DLDevice {
        let (device_type, device_id) = match self {
            Self::Host => (device_type::CPU, 0),
            Self::Cuda(number) => (device_type::CUDA, number),
            Self::Hip(number) => (device_type::ROCM, number),
        };
        DLDevice { device_type, device_id }
    }

    pub fn id(self) -> Result<DeviceId> {
        let (driver, number) = match self {
            Self::Host => return Ok(DeviceId::HOST),
            Self::Cuda(number) => ("cuda", number),
            Self::Hip(number) => ("hip", number),
        };
        Ok(DeviceId::new(driver, usize::try_from(number).unwrap_or(usize::MAX))?)
    }

    /// The device, opened once.
    pub fn device(self) -> Result<Device> {
        if self == Self::Host {
            return Ok(Device::host());
        }
        if let Some(device) = self.opened()? {
            return Ok(device);
        }
        let device = Device::open(self.id()?)?;
        Ok(lock(&DEVICES)?.get_or_insert_default().entry(self).or_insert(device).clone())
    }

    /// The device, if it was opened.
    pub fn opened(self) -> Result<Option<Device>> {
        Ok(lock(&DEVICES)?.as_ref().and_then(|devices| devices.get(&self).cloned()))
    }

    /// A stream of the library's own for copies from and to a device.
    pub fn own_stream(self) -> Result<Stream> {
        if let Some(stream) = lock(&OWN_STREAMS)?.as_ref().and_then(|streams| streams.get(&self).cloned()) {
            return Ok(stream);
        }
        let stream = self.device()?.create_stream(StreamPriority::Normal)?;
        Ok(lock(&OWN_STREAMS)?.get_or_insert_default().entry(self).or_insert(stream).clone())
    }

    /// A stream of the driver as one of the library.
    ///
    /// # Safety
    ///
    /// `handle` is a stream of this device. It is not destroyed while the library uses it, memory that was handed to it included: as PyTorch's own,
    /// which never are.
    pub unsafe fn stream(self, handle: usize) -> Result<Stream> {
        let key = (self, handle);
        if let Some(stream) =
            lock(&STREAMS_OF_OTHERS)?.as_ref().and_then(|streams| streams.get(&key).cloned())
        {
            return Ok(stream);
        }
        let device = self.device()?;
        // SAFETY: the caller's promise.
        let stream = unsafe { wrap_stream(&device, self, handle) }?;
        let mut known = lock(&STREAMS_OF_OTHERS)?;
        let streams = known.get_or_insert_default();
        let forgotten = if streams.len() >= STREAMS { mem::take(streams) } else { HashMap::new() };
        let stream = streams.entry(key).or_insert(stream).clone();
        // Not under the lock: what goes with a stream may ask for another one.
        drop(known);
        drop(forgotten);
        Ok(stream)
    }
}

/// The devices that were opened, and the host.
pub fn opened() -> Vec<Device> {
    let devices = forked::lock(&DEVICES);
    let devices = devices.iter().filter_map(|devices| devices.as_ref());
    devices.flat_map(HashMap::values).cloned().chain([Device::host()]).collect()
}

/// Closes what was opened, as far as nothing uses it any more. Called when the interpreter ends.
pub fn close() {
    // Taken out first: what goes with a device may take a while, and asks for no other one.
    let streams = (taken(&STREAMS_OF_OTHERS), taken(&OWN_STREAMS));
    drop(streams);
    drop(taken(&DEVICES));
}

fn taken<T>(known: &Mutex<Option<T>>) -> Option<T> {
    forked::lock(known)?.take()
}

fn lock<T>(known: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    forked::lock(known).ok_or(Error::Forked)
}

/// # Safety
///
/// As [`Place::stream`].
#[cfg_attr(not(any(feature = "cuda", feature = "hip")), expect(unused_variables))]
unsafe fn wrap_stream(device: &Device, place: Place, handle: usize) -> Result<Stream> {
    match place {
        #[cfg(feature = "cuda")]
        // SAFETY: the caller's promise.
        Place::Cuda(_) => unsafe {
            transship::cuda::stream_from_raw(device, std::ptr::with_exposed_provenance_mut(handle))
        },
        #[cfg(feature = "hip")]
        // SAFETY: the caller's promise.
        Place::Hip(_) => unsafe {
            transship::hip::stream_from_raw(device, std::ptr::with_exposed_provenance_mut(handle))
        },
        _ => Err(Error::Unsupported { device: device.id(), what: "use a stream of another library" }),
    }
}
