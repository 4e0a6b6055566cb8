//! A device.

use std::ffi::c_int;

use hip_sys::hiprt;
use transship_core::{DeviceId, Result};

use crate::calls::{Calls, Functions};
use crate::guard::DeviceGuard;

/// A HIP device.
pub struct Hip {
    ordinal: c_int,
    device: hiprt::hipDevice_t,
    calls: Calls,
}

impl Hip {
    /// The device `id`, which the runtime has.
    pub(crate) fn open(functions: &'static Functions, id: DeviceId) -> Result<Self> {
        let calls = Calls::new(functions, id);
        let (ordinal, mut device) = (c_int::try_from(id.ordinal()).unwrap_or(c_int::MAX), 0);
        // SAFETY: the result is written to a local.
        unsafe { calls.device_get(&mut device, ordinal)? };
        Ok(Self { ordinal, device, calls })
    }

    /// The number that the runtime has for the device, for calls of it.
    pub fn ordinal(&self) -> c_int {
        self.ordinal
    }

    pub(crate) fn device(&self) -> hiprt::hipDevice_t {
        self.device
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// An attribute of at most 64 bits.
    pub(crate) fn pointer_attribute(
        &self,
        attribute: hiprt::hipPointer_attribute,
        address: u64,
    ) -> Result<u64> {
        let mut value = 0_u64;
        // SAFETY: the attributes asked for are 64 bits, 32 bits or a bool, written to a local; any address may be asked
        // about.
        unsafe {
            self.calls.pointer_attribute((&raw mut value).cast(), attribute, pointer(address))?;
        }
        Ok(value)
    }

    /// A figure of a pool.
    ///
    /// # Safety
    ///
    /// The device is current, the pool is one of it, and the attribute a number of 64 bits.
    pub(crate) unsafe fn pool_figure(
        &self,
        pool: hiprt::hipMemPool_t,
        attribute: hiprt::hipMemPoolAttr,
    ) -> Result<u64> {
        let mut figure = 0_u64;
        // SAFETY: written to a local; the rest is the caller's promise.
        unsafe { self.calls.pool_attribute(pool, attribute, (&raw mut figure).cast())? };
        Ok(figure)
    }

    pub(crate) fn guard(&self) -> Result<DeviceGuard<'_>> {
        DeviceGuard::enter(&self.calls, self.ordinal)
    }
}

/// An address of the device as the runtime wants it.
pub(crate) fn pointer(address: u64) -> hiprt::hipDeviceptr_t {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
