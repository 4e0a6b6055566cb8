//! The drivers, those that this program was built without included.

use serde::Serialize;

/// A driver, and what is missing if it cannot be used.
#[derive(Serialize)]
pub(crate) struct DriverState {
    pub(crate) name: &'static str,
    pub(crate) compiled_in: bool,
    pub(crate) devices: usize,
    /// Why it cannot be used.
    pub(crate) missing: Option<String>,
}

/// All of them, the preferred ones first.
pub(crate) fn all() -> Vec<DriverState> {
    let compiled_in = transship::drivers().into_iter().map(|driver| DriverState {
        name: driver.name,
        compiled_in: true,
        devices: driver.devices,
        missing: driver.unavailable.map(|error| error.to_string()),
    });
    let left_out =
        [("cuda", cfg!(feature = "cuda")), ("hip", cfg!(feature = "hip")), ("wgpu", cfg!(feature = "wgpu"))];
    let left_out =
        left_out.into_iter().filter(|(_, compiled_in)| !compiled_in).map(|(name, _)| DriverState {
            name,
            compiled_in: false,
            devices: 0,
            missing: Some(format!("this program was built without it; build it with --features {name}")),
        });
    compiled_in.chain(left_out).collect()
}
