//! Opening devices by name, and the table of those that are open.

use std::path::Path;
use std::sync::Arc;

use futures::channel::oneshot;
use futures::executor::block_on;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::backend::Backend;
use crate::device::device::{Device, WeakDevice};
use crate::device::drivers;
use crate::device::drivers::find_device;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::sync::{Mutex, statics};
use crate::runtime::topology::Topology;
use crate::runtime::{foreign, fork};

statics! {
    static OPEN: Mutex<FxHashMap<DeviceId, WeakDevice>> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
}

impl Device {
    /// Opens the device that `id` names, blocking while the driver initialises it.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDriver`], [`Error::DriverUnavailable`], [`Error::NoSuchDevice`], [`Error::InvalidLimit`], or what the
    /// driver says.
    pub fn open(id: DeviceId) -> Result<Self> {
        block_on(Self::open_async(id))
    }

    /// As [`open`](Self::open), without blocking: a thread of its own waits for the driver.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_async(id: DeviceId) -> Result<Self> {
        fork::check()?;
        match find_open(id) {
            Some(device) => Ok(device),
            None => by_thread(move || open(id)).await,
        }
    }

    /// As [`from_backend`](Self::from_backend), on a machine whose NUMA nodes are described below `root`. For tests: what is read
    /// stays in memory.
    ///
    /// # Errors
    ///
    /// As [`from_backend`](Self::from_backend).
    #[doc(hidden)]
    pub fn from_backend_below(root: &Path, backend: Arc<dyn Backend>) -> Result<Self> {
        fork::check()?;
        Self::on(Box::leak(Box::new(Topology::read(root))), backend)
    }

    /// The most capable device there is: the first of the driver with the highest
    /// [preference](crate::backend::Driver::preference) that can be used, the host where there is no other.
    ///
    /// # Errors
    ///
    /// What the driver says while it initialises the device.
    pub fn best() -> Result<Self> {
        block_on(Self::best_async())
    }

    /// As [`best`](Self::best), without blocking: a thread of its own asks the drivers.
    ///
    /// ```
    /// use transship_core::Device;
    ///
    /// async fn first() -> transship_core::Result<Device> {
    ///     Device::best_async().await
    /// }
    /// assert_eq!(futures::executor::block_on(first())?.id(), Device::best()?.id());
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`best`](Self::best).
    pub async fn best_async() -> Result<Self> {
        fork::check()?;
        by_thread(|| open(drivers::best())).await
    }

    /// All devices of all drivers in this program that can be used here, without initialising them; the best first.
    pub fn list() -> Vec<DeviceId> {
        drivers::list()
    }
}

/// Drivers take their time: creating a context of CUDA takes some 100 ms.
async fn by_thread(open: impl FnOnce() -> Result<Device> + Send + 'static) -> Result<Device> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("transship-open".to_owned())
        .spawn(move || sender.send(foreign::checked(open)).map_err(drop))
        .map_err(|error| Error::NoThread { reason: error.to_string() })?;
    receiver
        .await
        .unwrap_or_else(|_| Err(Error::Panicked { message: "while a device was opened".to_owned() }))
}

fn open(id: DeviceId) -> Result<Device> {
    if let Some(device) = find_open(id) {
        return Ok(device);
    }
    let driver = find_device(id)?;
    let backend = driver.open(id.ordinal())?;
    if backend.device() != id {
        let (field, value, reason) =
            ("device", backend.device().to_string(), "it was opened by another name");
        return Err(Error::InvalidLimit { device: id, field, value, reason });
    }
    Ok(keep(Device::from_backend(backend)?))
}

fn find_open(id: DeviceId) -> Option<Device> {
    if id.is_host() {
        return Some(Device::host());
    }
    OPEN.lock().get(&id).and_then(WeakDevice::upgrade)
}

/// Two threads may have opened the same device at the same time: the first to come here wins.
fn keep(device: Device) -> Device {
    let mut open = OPEN.lock();
    open.retain(|_, device| device.upgrade().is_some());
    if let Some(first) = open.get(&device.id()).and_then(WeakDevice::upgrade) {
        return first;
    }
    open.insert(device.id(), device.downgrade());
    device
}
