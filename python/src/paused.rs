//! Python's garbage collector, while many objects are made.

use std::marker::PhantomData;

use pyo3::ffi;
use pyo3::prelude::*;

/// It stands still while this is there. Python looks for garbage whenever some hundred objects have come, and among all objects now and then: while a
/// hundred thousand tensors are made that takes longer than they do, and there is no garbage among them. Not for what may run code of the program, which
/// may turn it on or off itself: so without a GIL, where other threads run, it goes on.
pub struct PausedCollector<'py> {
    was_on: bool,
    _attached: PhantomData<Python<'py>>,
}

impl<'py> PausedCollector<'py> {
    pub fn new(_py: Python<'py>) -> Self {
        // SAFETY: the GIL is held.
        let was_on = cfg!(not(Py_GIL_DISABLED)) && unsafe { ffi::PyGC_Disable() } != 0;
        Self { was_on, _attached: PhantomData }
    }
}

impl Drop for PausedCollector<'_> {
    fn drop(&mut self) {
        if self.was_on {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
