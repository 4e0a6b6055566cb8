//! What `TRANSSHIP_REQUIRE` demands: a list of devices with commas, `cuda,cuda:1`. A name with `-sim` behind the driver,
//! `cuda-sim:1`, demands a stand-in for the driver; one without it demands that it is none.

use transship_core::{Device, DeviceId};

/// Behind the name of a driver: a stand-in for it.
const STAND_IN: &str = "-sim";
/// Part of what every stand-in calls its devices.
const STAND_IN_NAME: &str = "driver-sim";

/// A device that must be there.
pub(crate) struct Required {
    pub(crate) id: DeviceId,
    stand_in: bool,
}

/// The devices that must be there.
pub(crate) fn required() -> Vec<Required> {
    let list = std::env::var("TRANSSHIP_REQUIRE").unwrap_or_default();
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| parse(name).unwrap_or_else(|error| panic!("TRANSSHIP_REQUIRE: {error}"))).collect()
}

impl Required {
    /// Fails if the device is a stand-in and must not be one, or the other way round. A device that cannot be opened
    /// fails its cases, and not here.
    pub(crate) fn check_kind(&self) -> Result<(), String> {
        let Ok(device) = Device::open(self.id) else { return Ok(()) };
        let description = device.description();
        match (self.stand_in, description.contains(STAND_IN_NAME)) {
            (true, false) => Err(format!("{} must be a stand-in and is a device: {description}", self.id)),
            (false, true) => Err(format!("{} must be a device and is a stand-in: {description}", self.id)),
            _ => Ok(()),
        }
    }
}

fn parse(name: &str) -> transship_core::Result<Required> {
    let id: DeviceId = name.parse()?;
    let driver = id.driver().strip_suffix(STAND_IN);
    let (stand_in, driver) = (driver.is_some(), driver.unwrap_or(id.driver()).to_owned());
    Ok(Required { id: format!("{driver}:{}", id.ordinal()).parse()?, stand_in })
}
