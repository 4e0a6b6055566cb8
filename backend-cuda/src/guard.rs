//! Making a context current for a while.

use cudarc::driver::sys;
use transship_core::Result;

use crate::calls::Calls;

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// The context is current for this thread, in the relaxed capture mode; when the guard goes, the caller's is again.
pub struct ContextGuard<'a> {
    calls: &'a Calls,
    mode: sys::CUstreamCaptureMode,
}

impl<'a> ContextGuard<'a> {
    /// `context` is retained.
    pub(crate) fn enter(calls: &'a Calls, context: sys::CUcontext) -> Result<Self> {
        // SAFETY: the context is retained.
        unsafe { calls.context_push(context)? };
        let mut mode = RELAXED;
        // SAFETY: the mode is exchanged in a local.
        let exchanged = unsafe { calls.exchange_capture_mode(&mut mode) };
        let guard = Self { calls, mode };
        // With an error the guard goes here and gives back what it has.
        exchanged.map(|()| guard)
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        // The driver reports failures of earlier work in any call, and has exchanged the mode all the same. A mode that is the
        // same was the caller's already, or was not exchanged.
        if self.mode != RELAXED {
            // SAFETY: the mode that `enter` was given back.
            let _ = unsafe { self.calls.exchange_capture_mode(&mut self.mode) };
        }
        pop(self.calls);
    }
}

fn pop(calls: &Calls) {
    let mut popped = std::ptr::null_mut();
    // SAFETY: the caller has pushed one; it is written to a local.
    let _ = unsafe { calls.context_pop(&mut popped) };
}
