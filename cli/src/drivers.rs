//! The drivers, those that this program was built without included.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde::Serialize;
use transship::{Device, DeviceId, Error};

use crate::within;

/// Their names, and whether they are a part of this program. Those of GPUs come first.
pub(crate) const ALL: [(&str, bool); 4] = [
    ("cuda", cfg!(feature = "cuda")),
    ("hip", cfg!(feature = "hip")),
    ("wgpu", cfg!(feature = "wgpu")),
    ("host", true),
];

/// A driver, and what is missing if it cannot be used.
#[derive(Clone, Serialize)]
pub(crate) struct DriverState {
    pub(crate) name: &'static str,
    pub(crate) compiled_in: bool,
    /// Whether it has said in time how many devices it has. What is not compiled in is not asked.
    pub(crate) answers: bool,
    pub(crate) devices: usize,
    /// Why it cannot be used.
    pub(crate) missing: Option<String>,
}

impl DriverState {
    /// What it says itself. It may never answer.
    pub(crate) fn asked(name: &'static str) -> Self {
        // A device that no driver has: there is no other question that goes to one driver alone.
        let (devices, missing) = match DeviceId::new(name, u32::MAX as usize).map(Device::properties_of) {
            Ok(Err(Error::NoSuchDevice { count, .. })) => (count, None),
            Ok(Err(error)) => (0, Some(error.to_string())),
            // The host is one device, whose name has no number.
            Ok(Ok(_)) | Err(_) => (1, None),
        };
        Self { name, compiled_in: true, answers: true, devices, missing }
    }

    /// Of one that has said nothing in time, or is no part of this program.
    pub(crate) fn silent(name: &'static str, compiled_in: bool) -> Self {
        let missing = match compiled_in {
            true => "it does not answer".to_owned(),
            false => format!("this program was built without it; build it with --features {name}"),
        };
        Self { name, compiled_in, answers: !compiled_in, devices: 0, missing: Some(missing) }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let name = self.name;
        (0..self.devices).filter_map(move |ordinal| DeviceId::new(name, ordinal).ok())
    }
}

/// The names of those that are a part of this program.
pub(crate) fn compiled_in() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().filter(|(_, compiled_in)| *compiled_in).map(|(name, _)| name)
}

/// All of them, with what they say within `limit`.
pub(crate) fn all_within(limit: Duration) -> Vec<DriverState> {
    let ask = |name, says: &Sender<_>| drop(says.send(DriverState::asked(name)));
    all_of(within::each(compiled_in(), Instant::now() + limit, ask))
}

/// All of them, with what those of `answered` have said.
pub(crate) fn all_of(answered: Vec<DriverState>) -> Vec<DriverState> {
    let find = |name| answered.iter().find(|driver| driver.name == name).cloned();
    ALL.map(|(name, compiled_in)| find(name).unwrap_or_else(|| DriverState::silent(name, compiled_in))).into()
}
