//! Holding up a stream.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use transship_core::Device;

use crate::driver::{Current, Handle, check, launch_host_function};

/// A stream goes on after so long whatever happens: a call that wrongly waits for it shows as slow, not as stuck.
const LONGEST: Duration = Duration::from_secs(3);

/// Work submitted to the stream from now on starts only when this is released or dropped.
pub(crate) struct Stall {
    gate: Arc<Gate>,
    since: Instant,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    moved: Condvar,
}

impl Stall {
    /// Holds up `stream`, a stream of `device`.
    pub(crate) fn on(device: &Device, stream: Handle) -> Self {
        let gate = Arc::new(Gate::default());
        let lent = Arc::into_raw(gate.clone()).cast_mut().cast::<c_void>();
        let _current = Current::of(device);
        // SAFETY: the stream is alive and of the current context; the function takes over the gate that is lent to it and
        // calls nothing of the driver.
        let result = unsafe { launch_host_function(stream, hold, lent) };
        check("launch of a host function", result);
        Self { gate, since: Instant::now() }
    }

    /// Lets the stream go on, once it was held up for `least`.
    pub(crate) fn release_after(self, least: Duration) {
        let held = self.since.elapsed();
        assert!(held < LONGEST, "the stream went on by itself: something waited for it");
        std::thread::sleep(least.saturating_sub(held));
    }

    /// Lets the stream go on.
    pub(crate) fn release(self) {
        self.release_after(Duration::ZERO);
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        *self.gate.open.lock().unwrap() = true;
        self.gate.moved.notify_all();
    }
}

/// # Safety
///
/// `gate` comes from `Arc::<Gate>::into_raw`, and this is the only call with it.
unsafe extern "C" fn hold(gate: *mut c_void) {
    // SAFETY: the caller's promise.
    let gate = unsafe { Arc::from_raw(gate.cast_const().cast::<Gate>()) };
    let Ok(open) = gate.open.lock() else { return };
    drop(gate.moved.wait_timeout_while(open, LONGEST, |open| !*open));
}
