//! Opening devices by name, and the table of those that are open.

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::device::device::{Device, WeakDevice};
use crate::device::drivers;
use crate::device::drivers::find_driver;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::fork;
use crate::runtime::sync::{Mutex, statics};

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
        pollster::block_on(Self::open_async(id))
    }

    /// Opens the device that `id` names.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_async(id: DeviceId) -> Result<Self> {
        fork::check()?;
        open(id).await
    }

    /// The most capable device there is: the first of the driver with the highest
    /// [preference](crate::backend::Driver::preference) that can be used, the host where there is no other.
    ///
    /// # Errors
    ///
    /// What the driver says while it initialises the device.
    pub fn best() -> Result<Self> {
        fork::check()?;
        Self::open(drivers::best())
    }

    /// As [`best`](Self::best), without blocking while the driver initialises the device.
    ///
    /// ```
    /// use transship_core::Device;
    ///
    /// async fn first() -> transship_core::Result<Device> {
    ///     Device::best_async().await
    /// }
    /// assert_eq!(pollster::block_on(first())?.id(), Device::best()?.id());
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`best`](Self::best).
    pub async fn best_async() -> Result<Self> {
        fork::check()?;
        Self::open_async(drivers::best()).await
    }

    /// All devices of all drivers in this program that can be used here, without initialising them; the best first.
    pub fn list() -> Vec<DeviceId> {
        drivers::list()
    }
}

pub(crate) async fn open(id: DeviceId) -> Result<Device> {
    if id.is_host() {
        return Ok(Device::host());
    }
    if let Some(device) = find_open(id) {
        return Ok(device);
    }
    let driver = find_driver(id.driver())?;
    driver.is_available()?;
    let count = driver.device_count();
    if id.ordinal() >= count {
        return Err(Error::NoSuchDevice { device: id, count });
    }
    let device = Device::from_backend(driver.open(id.ordinal()).await?)?;
    Ok(keep(device))
}

fn find_open(id: DeviceId) -> Option<Device> {
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
