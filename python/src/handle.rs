//! The handle of a copy, as Python sees it.

use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors;
use crate::progress::Copies;
use crate::released;
use crate::start::Slot;
use crate::torch::{Part, Torch};
use crate::tree::Skeleton;

/// Signals, such as that of Ctrl-C, are looked for so often.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// A copy that was started.
#[pyclass(frozen, module = "transship")]
pub struct Handle {
    skeleton: Skeleton,
    slots: Vec<Slot>,
    chunks: Vec<Py<PyAny>>,
    copies: Copies,
    /// The leaves of the result.
    made: PyOnceLock<Vec<Py<PyAny>>>,
}

impl Handle {
    pub fn new(skeleton: Skeleton, slots: Vec<Slot>, chunks: Vec<Py<PyAny>>, copies: Copies) -> Self {
        Self { skeleton, slots, chunks, copies, made: PyOnceLock::new() }
    }
}

#[pymethods]
impl Handle {
    /// Whether the copy is done, or has failed. Does not block.
    fn ready(&self, py: Python<'_>) -> bool {
        released::drain(py);
        self.copies.are_ready()
    }

    /// The structure, with its tensors on the target. Blocks until the copy is done, without the GIL.
    #[pyo3(signature = (timeout = None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = match timeout {
            None => None,
            Some(seconds) => Some(Instant::now() + seconds_of(seconds)?),
        };
        // Made while the device copies.
        let leaves = self.made.get_or_try_init(py, || self.make(py))?;
        self.wait(py, deadline)?;
        released::drain(py);
        self.skeleton.build(py, leaves)
    }
}

impl Handle {
    fn make(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let torch = Torch::import(py)?;
        let mut parts: Vec<Vec<(usize, Part<'_>)>> = self.chunks.iter().map(|_| Vec::new()).collect();
        let mut made: Vec<Option<Py<PyAny>>> = Vec::with_capacity(self.slots.len());
        for (number, slot) in self.slots.iter().enumerate() {
            made.push(match slot {
                Slot::There(object) | Slot::Leaf(object, _) => Some(object.clone_ref(py)),
                Slot::Part { chunk, offset, leaf } => {
                    parts[*chunk].push((number, Part { leaf, offset: *offset }));
                    None
                }
            });
        }
        for (chunk, parts) in self.chunks.iter().zip(parts) {
            let mut numbers = parts.iter().map(|(number, _)| *number);
            torch.parts_of(chunk.bind(py), parts.iter().map(|(_, part)| *part), |tensor| {
                if let Some(number) = numbers.next() {
                    made[number] = Some(tensor);
                }
            })?;
        }
        made.into_iter()
            .map(|leaf| leaf.ok_or_else(|| PyRuntimeError::new_err("a leaf without a result")))
            .collect()
    }

    fn wait(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<()> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(LOOK_FOR_SIGNALS, |left| left.min(LOOK_FOR_SIGNALS));
            if py.detach(|| self.copies.wait(slice)).map_err(|error| errors::of(py, &error))? {
                return Ok(());
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err("the copy is not done yet; it goes on: ask again"));
            }
        }
    }
}

fn seconds_of(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds.min(1e9)).map_err(|_| {
        pyo3::exceptions::PyValueError::new_err(format!(
            "a timeout of {seconds} s; it must be a number of at least 0"
        ))
    })
}
