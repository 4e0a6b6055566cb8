//! Making a device current for a while.

use std::ffi::c_int;

use hip_sys::hiprt::hipStreamCaptureMode;
use transship_core::Result;

use crate::calls::Calls;

const RELAXED: u32 = hipStreamCaptureMode::hipStreamCaptureModeRelaxed as u32;

/// The device is current for this thread, in the relaxed capture mode; when the guard goes, the caller's is again.
pub struct DeviceGuard<'a> {
    calls: &'a Calls,
    /// What was current, if it was another device.
    previous: Option<c_int>,
    mode: u32,
}

impl<'a> DeviceGuard<'a> {
    pub(crate) fn enter(calls: &'a Calls, ordinal: c_int) -> Result<Self> {
        let mut current = 0;
        // SAFETY: the result is written to a local.
        unsafe { calls.current_device(&mut current)? };
        let previous = (current != ordinal).then_some(current);
        if previous.is_some() {
            // SAFETY: the runtime has this device (`Hip::open`).
            unsafe { calls.set_device(ordinal)? };
        }
        let mut mode = RELAXED;
        // SAFETY: the mode is exchanged in a local.
        let exchanged = unsafe { calls.exchange_capture_mode(&mut mode) };
        let guard = Self { calls, previous, mode };
        // With an error the guard goes here and gives back what it has.
        exchanged.map(|()| guard)
    }
}

impl Drop for DeviceGuard<'_> {
    fn drop(&mut self) {
        // The runtime reports failures of earlier work in any call, and has exchanged the mode all the same. A mode that is the
        // same was the caller's already, or was not exchanged.
        if self.mode != RELAXED {
            // SAFETY: the mode that `enter` was given back.
            let _ = unsafe { self.calls.exchange_capture_mode(&mut self.mode) };
        }
        restore(self.calls, self.previous);
    }
}

fn restore(calls: &Calls, previous: Option<c_int>) {
    if let Some(previous) = previous {
        // SAFETY: the device was current before.
        let _ = unsafe { calls.set_device(previous) };
    }
}
