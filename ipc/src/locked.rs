//! Shared memory that a device copies from where it lies.

use std::any::Any;
use std::sync::Arc;

use transship_core::{Device, Error, Registered};

use crate::error::IpcError;
use crate::mapping::Mapping;

/// Page-locks all of `mapping`, which `owner` keeps, for copies to `device`. `None` on devices that reach no memory but their own: these stage what lies there.
/// Takes milliseconds for each 100 MiB.
pub(crate) fn lock_for<T: Any + Send + Sync>(
    device: &Device,
    mapping: &Mapping,
    owner: Arc<T>,
) -> Result<Option<Registered>, IpcError> {
    let Some(start) = mapping.at(0, mapping.bytes()) else { return Ok(None) };
    // SAFETY: the memory is mapped, and was made of zeros, until `owner` is dropped; no tensor is ever made of what this gives.
    match unsafe { device.register_raw(start.as_ptr(), mapping.bytes(), Box::new(owner)) } {
        Ok(registered) => Ok(Some(registered)),
        Err(refused) => match refused.into_error() {
            Error::Unsupported { .. } => Ok(None),
            error => Err(error.into()),
        },
    }
}
