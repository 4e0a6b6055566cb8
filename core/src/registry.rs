//! The drivers of this program and the devices that are open.

use std::collections::HashMap;
use std::sync::Arc;

use crate::backend::{BuiltinDriver, Driver};
use crate::device::WeakDevice;
use crate::host::HostDriver;
use crate::sync::{Mutex, OnceLock, statics};
use crate::{Device, DeviceId, Error, Result};

/// What is known of a driver without initialising a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The word before the colon of the names of its devices.
    pub name: &'static str,
    /// How many devices it has here; 0 if it cannot be used.
    pub devices: usize,
    /// What is missing, where it cannot be used.
    pub unavailable: Option<Error>,
}

/// Adds a driver to this program: from now on [`Device::open`] knows its devices.
///
/// # Errors
///
/// [`Error::DriverExists`], and [`Error::InvalidDeviceId`] if the name cannot be part of a device's name.
pub fn register_driver(driver: Arc<dyn Driver>) -> Result<()> {
    let name = driver.name();
    DeviceId::new(name, 0)?;
    let mut drivers = registry().drivers.lock();
    if drivers.iter().any(|known| known.name() == name) {
        return Err(Error::DriverExists { name });
    }
    drivers.push(driver);
    Ok(())
}

/// The drivers of this program, compiled in or registered, the preferred ones first.
pub fn drivers() -> Vec<DriverInfo> {
    let describe = |driver: &Arc<dyn Driver>| DriverInfo {
        name: driver.name(),
        devices: driver.device_count(),
        unavailable: driver.is_available().err(),
    };
    by_preference().iter().map(describe).collect()
}

pub(crate) fn list() -> Vec<DeviceId> {
    let devices = |driver: &Arc<dyn Driver>| {
        let driver = driver.clone();
        (0..driver.device_count()).filter_map(move |ordinal| DeviceId::new(driver.name(), ordinal).ok())
    };
    by_preference().iter().flat_map(devices).collect()
}

pub(crate) fn best() -> DeviceId {
    list().first().copied().unwrap_or(DeviceId::HOST)
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

struct Registry {
    drivers: Mutex<Vec<Arc<dyn Driver>>>,
    open: Mutex<HashMap<DeviceId, WeakDevice>>,
}

fn registry() -> &'static Registry {
    statics! {
        static REGISTRY: OnceLock<Registry> = OnceLock::new();
    }
    REGISTRY.get_or_init(|| {
        let host: Arc<dyn Driver> = Arc::new(HostDriver);
        let builtin = inventory::iter::<BuiltinDriver>.into_iter().map(|make| (make.0)());
        // Among equals the host comes first.
        let drivers = [host].into_iter().chain(builtin).collect();
        Registry { drivers: Mutex::new(drivers), open: Mutex::new(HashMap::new()) }
    })
}

fn known_drivers() -> Vec<Arc<dyn Driver>> {
    registry().drivers.lock().clone()
}

/// A driver may have to look at its devices to say how good it is: only those who ask for an order pay for that.
fn by_preference() -> Vec<Arc<dyn Driver>> {
    let mut drivers = known_drivers();
    drivers.sort_by_cached_key(|driver| std::cmp::Reverse(driver.preference()));
    drivers
}

fn find_driver(name: &str) -> Result<Arc<dyn Driver>> {
    let drivers = known_drivers();
    drivers.iter().find(|driver| driver.name() == name).cloned().ok_or_else(|| Error::UnknownDriver {
        name: name.to_owned(),
        known: drivers.iter().map(|driver| driver.name()).collect::<Vec<_>>().join(", "),
    })
}

fn find_open(id: DeviceId) -> Option<Device> {
    registry().open.lock().get(&id).and_then(WeakDevice::upgrade)
}

/// Two threads may have opened the same device at the same time: the first to come here wins.
fn keep(device: Device) -> Device {
    let mut open = registry().open.lock();
    open.retain(|_, device| device.upgrade().is_some());
    if let Some(first) = open.get(&device.id()).and_then(WeakDevice::upgrade) {
        return first;
    }
    open.insert(device.id(), device.downgrade());
    device
}
