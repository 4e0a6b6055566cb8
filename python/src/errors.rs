//! Errors of the library as exceptions of Python.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(
    transship,
    Error,
    PyRuntimeError,
    "What made a copy fail. Its text says what can be done; `kind` names what is wrong, such as \"OutOfMemory\"."
);

/// The exception for an error of the library.
pub fn of(py: Python<'_>, error: &transship::Error) -> PyErr {
    let exception = Error::new_err(error.to_string());
    match exception.value(py).setattr("kind", format!("{:?}", error.kind())) {
        Ok(()) => exception,
        Err(failed) => failed,
    }
}
