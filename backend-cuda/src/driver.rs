//! The CUDA driver, found at run time.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use transship_core::backend::stream_ordered::{OrderedBackend, is_code};
use transship_core::backend::{Backend, BuiltinDriver, Driver};
use transship_core::{DeviceId, DeviceProperties, Error, Result};

use crate::calls::Calls;
use crate::device::Cuda;
use crate::library::{self, NAME};
use crate::properties;

/// The oldest driver that has every function called here.
const OLDEST_VERSION: i32 = 12_000;

/// The driver of NVIDIA's devices, used through libcuda, which is loaded when it is asked for the first time.
pub struct CudaDriver;

inventory::submit! {
    BuiltinDriver(|| Arc::new(CudaDriver))
}

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn preference(&self) -> u32 {
        100
    }

    fn is_available(&self) -> Result<()> {
        initialise().map(drop)
    }

    fn device_count(&self) -> usize {
        initialise().and_then(|calls| count(&calls)).unwrap_or(0)
    }

    fn properties(&self, ordinal: usize) -> Result<DeviceProperties> {
        let (calls, device) = find(ordinal)?;
        properties::read(&calls, device)
    }

    fn reaches(&self, ordinal: usize, other: usize) -> Result<bool> {
        let ((calls, device), (_, peer)) = (find(ordinal)?, find(other)?);
        properties::can_access(&calls, device, peer)
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        open(ordinal)
    }
}

/// `13.0` for 13000.
pub(crate) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    let device = check(ordinal)?;
    Ok(Arc::new(OrderedBackend::new(Cuda::open(device)?)?))
}

/// The driver's handle of a device, for questions about it.
fn find(ordinal: usize) -> Result<(Calls, sys::CUdevice)> {
    let id = check(ordinal)?;
    let (calls, mut device) = (Calls::new(id), 0);
    // SAFETY: the result is written to a local; the driver is initialised.
    unsafe { calls.device_get(&mut device, crate::device::ordinal(id))? };
    Ok((calls, device))
}

/// Fails unless the driver is there and has this device.
fn check(ordinal: usize) -> Result<DeviceId> {
    let device = DeviceId::new(NAME, ordinal)?;
    match count(&initialise()?)? {
        count if ordinal >= count => Err(Error::NoSuchDevice { device, count }),
        _ => Ok(device),
    }
}

/// Loads libcuda and initialises it; no device is touched.
fn initialise() -> Result<Calls> {
    library::require()?;
    let calls = Calls::new(DeviceId::new(NAME, 0)?);
    let mut version = 0;
    // SAFETY: may be called at any time, any number of times; the version is written to a local.
    let answer = unsafe { calls.driver_version(&mut version).and_then(|()| calls.init(0)) };
    if version < OLDEST_VERSION && answer.is_ok() {
        let (has, needs) = (version_text(version), version_text(OLDEST_VERSION));
        return Err(library::unavailable(format!(
            "the driver is one of CUDA {has}; install one of {needs} or later"
        )));
    }
    match answer {
        Ok(()) => Ok(calls),
        Err(error) if is_code(&error, CUresult::CUDA_ERROR_NO_DEVICE as i64) => Err(library::unavailable(
            "the NVIDIA driver finds no device; check CUDA_VISIBLE_DEVICES".to_owned(),
        )),
        Err(error) => Err(library::unavailable(error.to_string())),
    }
}

fn count(calls: &Calls) -> Result<usize> {
    let mut count = 0;
    // SAFETY: the driver is initialised; the count is written to a local.
    unsafe { calls.device_count(&mut count)? };
    Ok(usize::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_nvidia_writes_them() {
        assert_eq!(version_text(13_000), "13.0");
        assert_eq!(version_text(12_080), "12.8");
    }

    /// Passes with and without a device; without libcuda, cudarc would panic at a call that is not guarded.
    #[test]
    fn what_is_missing_is_an_error_that_says_so() {
        let driver = CudaDriver;
        match driver.is_available() {
            Ok(()) => assert!(driver.device_count() > 0),
            Err(Error::DriverUnavailable { driver: name, reason }) => {
                assert_eq!((name, driver.device_count()), (NAME, 0));
                assert!(reason.contains("driver"), "{reason}");
                let opened = driver.open(0);
                assert!(matches!(opened, Err(Error::DriverUnavailable { .. })));
            }
            Err(other) => assert_eq!(other.to_string(), "DriverUnavailable"),
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_the_count() {
        let driver = CudaDriver;
        let count = driver.device_count();
        if let Err(Error::NoSuchDevice { device, count: known }) = driver.open(count) {
            assert_eq!((device.ordinal(), known), (count, count));
        } else {
            assert_eq!(count, 0);
        }
    }
}
