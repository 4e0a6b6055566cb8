//! Devices that are named in arguments.

use std::time::Duration;

use transship::DeviceId;

use crate::drivers::{self, DriverState};

/// Nobody waits longer to be told of a slip of the pen.
const SOON: Duration = Duration::from_secs(10);

/// The device of that name, whether it is there or not. An error says what is wrong with the name, and what there is.
pub(crate) fn device(text: &str) -> Result<DeviceId, String> {
    let id: DeviceId = text.parse().map_err(|_| {
        let form = "a device is a driver and a number, such as cuda:1; cuda is cuda:0";
        format!("{form}; {}", all_that_are_there())
    })?;
    let names = drivers::ALL.map(|(name, _)| name);
    if names.contains(&id.driver()) {
        return Ok(id);
    }
    Err(format!("there is no driver `{}`, but {}; {}", id.driver(), names.join(", "), all_that_are_there()))
}

/// Those that are there, in words, as far as their drivers say it soon.
fn all_that_are_there() -> String {
    let ids: Vec<_> = drivers::all_within(SOON).iter().flat_map(DriverState::ids).collect();
    are_there(&ids)
}

pub(crate) fn are_there(ids: &[DeviceId]) -> String {
    let names: Vec<_> = ids.iter().map(ToString::to_string).collect();
    format!("devices that are there: {}", names.join(", "))
}
