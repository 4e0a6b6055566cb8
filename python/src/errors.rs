//! Errors of the library as exceptions of Python.

use std::iter;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use transship::ErrorKind;
use transship::safetensors::LoadError;

pyo3::create_exception!(
    transship,
    Error,
    PyRuntimeError,
    "What made a copy fail. Its text says what can be done; `kind` names what is wrong, such as \"OutOfMemory\"."
);

/// The exception for an error of the library.
pub fn of(py: Python<'_>, error: &transship::Error) -> PyErr {
    with_text(py, error.kind(), error.to_string())
}

/// The exception for files that cannot be loaded.
pub fn of_files(py: Python<'_>, error: &LoadError) -> PyErr {
    let own: &dyn std::error::Error = error;
    let all = iter::successors(Some(own), |error| error.source());
    let of_library = all.filter_map(|error| error.downcast_ref::<transship::Error>()).next();
    with_text(py, of_library.map_or(KIND_OF_OTHERS, transship::Error::kind), error.to_string())
}

/// Of errors that name none, by the class.
pub const KIND_OF_OTHERS: ErrorKind = ErrorKind::InvalidInput;

/// What the library's errors advise, and what that is called here.
const CALLED: [(&str, &str); 8] = [
    ("say Cast::saturating", "say saturating=True (transship.Cast)"),
    ("say saturating()", "say saturating=True (transship.Cast)"),
    ("leave pinned_staging on", "leave pinned=True"),
    ("(CopyPolicy::Always)", "(copy=True)"),
    ("(LoadOptions::filter)", "(names=)"),
    ("(CopyOptions::background)", "(background=True)"),
    ("CopyOptions::packing(false)", "packing=False"),
    ("leave CopyOptions::pinned_staging on", "leave pinned=True"),
];

/// A text of the library's, for who writes Python.
pub fn in_python(text: &str) -> String {
    CALLED.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
}

/// Says more of an exception: in a note, or, before Python 3.11, behind its text, if it has one.
pub fn note(py: Python<'_>, error: &PyErr, text: &str) {
    let value = error.value(py);
    if value.call_method1("add_note", (text,)).is_ok() {
        return;
    }
    let noted = || -> PyResult<()> {
        let arguments = value.getattr("args")?.cast_into::<PyTuple>()?;
        let said: String = arguments.get_item(0)?.extract()?;
        let said = PyTuple::new(py, [format!("{said}; {text}")])?;
        value.setattr("args", said.add(arguments.get_slice(1, arguments.len()))?)
    };
    // An exception without a text says what is wrong, and not where.
    let _ = noted();
}

fn with_text(py: Python<'_>, kind: ErrorKind, text: String) -> PyErr {
    let exception = Error::new_err(in_python(&text));
    match exception.value(py).setattr("kind", format!("{kind:?}")) {
        Ok(()) => exception,
        Err(failed) => failed,
    }
}

/// As [`of`], for an error of a list of leaves, which calls them by their numbers there; `path_of` says where each is in its structure.
pub fn of_leaf(
    py: Python<'_>,
    error: &transship::Error,
    path_of: impl FnOnce(usize) -> Option<String>,
) -> PyErr {
    let text = error.to_string();
    let named = text.strip_prefix('[').and_then(|rest| {
        let (number, rest) = rest.split_once(']')?;
        let path = path_of(number.parse().ok()?)?;
        Some(if path.is_empty() { format!("the leaf{rest}") } else { format!("{path}{rest}") })
    });
    with_text(py, error.kind(), named.unwrap_or(text))
}
