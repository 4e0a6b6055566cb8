//! Devices that are named in arguments.

use transship::{Device, DeviceId};

use crate::drivers;

/// The device of that name, whether it is there or not. An error says what is wrong with the name, and what there is.
pub(crate) fn device(text: &str) -> Result<DeviceId, String> {
    let id: DeviceId = text.parse().map_err(|_| {
        let form = "a device is a driver and a number, such as cuda:1; cuda is cuda:0";
        format!("{form}; {}", all_that_are_there())
    })?;
    let known = drivers::all();
    if known.iter().any(|driver| driver.name == id.driver()) {
        return Ok(id);
    }
    let names: Vec<_> = known.iter().map(|driver| driver.name).collect();
    Err(format!("there is no driver `{}`, but {}; {}", id.driver(), names.join(", "), all_that_are_there()))
}

/// Those that are there, in words.
pub(crate) fn all_that_are_there() -> String {
    let names: Vec<_> = Device::list().iter().map(ToString::to_string).collect();
    format!("devices that are there: {}", names.join(", "))
}
