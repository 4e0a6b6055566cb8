//! The primary context of a device, and making it current for a while.

use std::marker::PhantomData;
use std::ops::Deref;

use cudarc::driver::sys;
use transship_core::{DeviceId, Error, Result};

use crate::calls::Calls;
use crate::counters::Counting;

/// The primary context of a device, retained. The calls that need it to be current go through [`Context::enter`].
pub(crate) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    calls: Calls,
    counting: Counting,
}

// SAFETY: a context handle may be used by any thread; which one it is current for is the guard's business.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of the device `id`. The driver is initialised and has this device.
    pub(crate) fn retain(id: DeviceId) -> Result<Self> {
        let calls = Calls::new(id);
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: the results are written to locals; the driver is initialised.
        unsafe {
            calls.device_get(&mut device, ordinal(id))?;
            calls.primary_context_retain(&mut handle, device)?;
        }
        Ok(Self { device, handle, calls, counting: Counting::default() })
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.calls.device()
    }

    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(crate) fn handle(&self) -> sys::CUcontext {
        self.handle
    }

    pub(crate) fn counting(&self) -> &Counting {
        &self.counting
    }

    /// The error of a call that somebody else made.
    pub(crate) fn error(&self, call: &'static str, result: sys::CUresult) -> Error {
        self.calls.error(call, result)
    }

    pub(crate) fn call_count(&self) -> u64 {
        self.calls.count()
    }

    /// Makes the context current for this thread, in the relaxed capture mode, until the guard goes.
    pub(crate) fn enter(&self) -> Result<ContextGuard<'_>> {
        // SAFETY: the context is retained.
        unsafe { self.calls.context_push(self.handle)? };
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is exchanged in a local.
        if let Err(error) = unsafe { self.calls.exchange_capture_mode(&mut mode) } {
            pop(&self.calls);
            return Err(error);
        }
        Ok(ContextGuard { calls: &self.calls, mode, thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `retain`, and everything that uses the context holds it.
        let _ = unsafe { self.calls.primary_context_release(self.device) };
    }
}

/// The context is current for this thread; when the guard goes, on a panic too, the caller's is again.
///
/// It is the way to the driver's functions: who can call one has the context.
pub(crate) struct ContextGuard<'a> {
    calls: &'a Calls,
    mode: sys::CUstreamCaptureMode,
    /// Contexts are current for a thread: the guard must not leave it.
    thread: PhantomData<*const ()>,
}

impl Deref for ContextGuard<'_> {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        self.calls
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the mode that `enter` was given back.
        let _ = unsafe { self.calls.exchange_capture_mode(&mut self.mode) };
        pop(self.calls);
    }
}

fn pop(calls: &Calls) {
    let mut popped = std::ptr::null_mut();
    // SAFETY: the caller has pushed one; it is written to a local.
    let _ = unsafe { calls.context_pop(&mut popped) };
}

pub(crate) fn ordinal(id: DeviceId) -> i32 {
    i32::try_from(id.ordinal()).unwrap_or(i32::MAX)
}
