//! A device, its primary context retained.

use std::ffi::c_void;

use cudarc::driver::sys;
use transship_core::{DeviceId, Error, Result};

use crate::calls::Calls;
use crate::guard::ContextGuard;

/// A CUDA device, its primary context retained.
pub struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    calls: Calls,
}

// SAFETY: a context handle may be used by any thread; which one it is current for is the guard's business.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Retains the primary context of the device `id`. The driver is initialised and has this device.
    pub(crate) fn open(id: DeviceId) -> Result<Self> {
        let calls = Calls::new(id);
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the results are written to locals; the driver is initialised.
        unsafe {
            calls.device_get(&mut device, ordinal(id))?;
            calls.primary_context_retain(&mut context, device)?;
        }
        Ok(Self { device, context, calls })
    }

    /// The primary context, for calls of the driver. It is retained for as long as this object lives.
    pub fn cu_context(&self) -> sys::CUcontext {
        self.context
    }

    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Attributes of at most 32 bits each.
    pub(crate) fn pointer_attributes<const N: usize>(
        &self,
        mut attributes: [sys::CUpointer_attribute; N],
        address: u64,
    ) -> Result<[u32; N]> {
        let mut values = [0_u32; N];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let (attributes, count) = (attributes.as_mut_ptr(), N as u32);
        // SAFETY: the context is retained. The attributes asked for are 32 bits or a bool, each written to a local; any address may be asked about.
        unsafe { self.calls.pointer_attributes(count, attributes, places.as_mut_ptr(), address)? };
        Ok(values)
    }

    /// An attribute that is a handle of the driver's.
    pub(crate) fn handle_of(&self, attribute: sys::CUpointer_attribute, address: u64) -> Result<usize> {
        let mut value = 0_usize;
        // SAFETY: the context is retained. The attributes asked for are pointers, written to a local; any address may be asked about.
        unsafe { self.calls.pointer_attribute((&raw mut value).cast(), attribute, address)? };
        Ok(value)
    }

    /// A figure of a pool.
    ///
    /// # Safety
    ///
    /// The context is current, the pool is one of it, and the attribute a number of 64 bits.
    pub(crate) unsafe fn pool_figure(
        &self,
        pool: sys::CUmemoryPool,
        attribute: sys::CUmemPool_attribute,
    ) -> Result<u64> {
        let mut figure = 0_u64;
        // SAFETY: written to a local; the rest is the caller's promise.
        unsafe { self.calls.pool_attribute(pool, attribute, (&raw mut figure).cast())? };
        Ok(figure)
    }

    /// The error of a call that somebody else made.
    pub(crate) fn error(&self, call: &'static str, result: sys::CUresult) -> Error {
        self.calls.error(call, result)
    }

    pub(crate) fn guard(&self) -> Result<ContextGuard<'_>> {
        ContextGuard::enter(&self.calls, self.context)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: retained by `open`, and everything that uses the context holds it.
        let _ = unsafe { self.calls.primary_context_release(self.device) };
    }
}

pub(crate) fn ordinal(id: DeviceId) -> i32 {
    i32::try_from(id.ordinal()).unwrap_or(i32::MAX)
}
