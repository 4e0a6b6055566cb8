//! The HIP runtime, found at run time.

use std::sync::Arc;

use transship_core::backend::stream_ordered::{OrderedBackend, is_code};
use transship_core::backend::{Backend, BuiltinDriver, Driver};
use transship_core::{DeviceId, DeviceProperties, Error, Result};

use crate::calls::{Calls, Functions, INVALID_DEVICE, NO_DEVICE};
use crate::device::Hip;
use crate::library::{self, NAME};
use crate::properties;

/// The driver of AMD's devices, used through libamdhip64, which is loaded when it is asked for the first time.
pub struct HipDriver;

inventory::submit! {
    BuiltinDriver(|| Arc::new(HipDriver))
}

impl Driver for HipDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn preference(&self) -> u32 {
        90
    }

    fn is_available(&self) -> Result<()> {
        count(library::require()?).map(drop)
    }

    fn device_count(&self) -> usize {
        library::require().and_then(count).unwrap_or(0)
    }

    fn properties(&self, ordinal: usize) -> Result<DeviceProperties> {
        let device = find(ordinal)?;
        properties::read(device.calls(), device.ordinal(), device.device())
    }

    fn reaches(&self, ordinal: usize, other: usize) -> Result<bool> {
        let (device, other) = (find(ordinal)?, find(other)?);
        properties::can_access(device.calls(), device.ordinal(), other.ordinal())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(OrderedBackend::new(find(ordinal)?)?))
    }
}

/// `5.2.21153` for 50221153.
pub(crate) fn version_text(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

/// A device that is there. It is not touched: the runtime initialises it with the first call that needs it.
fn find(ordinal: usize) -> Result<Hip> {
    let device = DeviceId::new(NAME, ordinal)?;
    let functions = library::require()?;
    match count(functions)? {
        count if ordinal >= count => Err(Error::NoSuchDevice { device, count }),
        _ => Hip::open(functions, device),
    }
}

/// How many devices there are, at least one. The runtime initialises itself with the first call, and no device.
fn count(functions: &'static Functions) -> Result<usize> {
    let calls = Calls::new(functions, DeviceId::new(NAME, 0)?);
    let mut count = 0;
    // SAFETY: may be called at any time; the count is written to a local.
    let answer = unsafe { calls.device_count(&mut count) };
    match (answer, usize::try_from(count).unwrap_or(0)) {
        (Ok(()), 0) => Err(no_device()),
        (Ok(()), count) => Ok(count),
        (Err(error), _)
            if [NO_DEVICE, INVALID_DEVICE].iter().any(|code| is_code(&error, i64::from(*code))) =>
        {
            Err(no_device())
        }
        (Err(error), _) => Err(library::unavailable(error.to_string())),
    }
}

fn no_device() -> Error {
    let reason = "the HIP runtime is there and finds no device; check the kernel driver amdgpu and HIP_VISIBLE_DEVICES";
    library::unavailable(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_amd_writes_them() {
        assert_eq!(version_text(50_221_153), "5.2.21153");
        assert_eq!(version_text(70_051_831), "7.0.51831");
    }
}
