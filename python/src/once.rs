//! What is made when it is first asked for, by code that may ask for it itself.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What `cell` has; made first, where it has nothing. No lock is held while it is made: PyTorch's functions and imports run code of the program (modes, finalizers, signal handlers), which may copy. What a
/// second one has made meanwhile is used, and this is dropped.
pub fn get_or_make<'a, T>(
    cell: &'a PyOnceLock<T>,
    py: Python<'_>,
    make: impl FnOnce() -> PyResult<T>,
) -> PyResult<&'a T> {
    match cell.get(py) {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(py, || made))
        }
    }
}
