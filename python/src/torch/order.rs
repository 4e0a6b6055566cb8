//! The order of what PyTorch copies itself, and of streams that use its memory.

use std::cell::Cell;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use transship::Event;

use super::Torch;
use crate::errors;
use crate::place::Place;

thread_local! {
    /// Whether PyTorch has copied anything in the call that this thread makes.
    static HAS_COPIED: Cell<bool> = const { Cell::new(false) };
}

pub fn note_copy() {
    HAS_COPIED.set(true);
}

impl Torch {
    /// Behind what PyTorch has copied to `place` itself, on this thread, since this was asked last: on its current stream. `None` if there is nothing, and for
    /// the host, where that is done.
    pub fn behind_copies(&self, py: Python<'_>, place: Option<Place>) -> PyResult<Option<Event>> {
        let has_copied = HAS_COPIED.take();
        let Some(place) = place.filter(|place| has_copied && *place != Place::Host) else { return Ok(None) };
        if !self.has_begun(py)? {
            // Noted by a call that has failed.
            return Ok(None);
        }
        let handle = self.current_stream(py, place)?;
        // SAFETY: PyTorch destroys no stream of its pools. Who gives it one of somebody else's keeps that while he copies.
        let stream = unsafe { place.stream(handle) };
        let event = stream.and_then(|stream| stream.record());
        event.map(Some).map_err(|error| errors::of(py, &error))
    }

    /// A stream of the driver's as one of PyTorch's.
    pub fn stream_of_handle<'py>(
        &self,
        py: Python<'py>,
        place: Place,
        handle: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (cuda, number) = (self.module.bind(py).getattr("cuda")?, place.dl_device().device_id);
        if handle == 0 {
            // As a handle of another library's, PyTorch takes 0 for none.
            return cuda.call_method1("default_stream", (number,));
        }
        let named = PyDict::new(py);
        named.set_item("device", number)?;
        cuda.getattr("ExternalStream")?.call((handle,), Some(&named))
    }

    /// Lets the memory of a tensor, of whatever layout, not be used again before `stream` has come by.
    pub fn record_stream(&self, tensor: &Bound<'_, PyAny>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let layout = tensor.getattr("layout")?.str()?.to_string();
        let parts: &[&str] = match layout.as_str() {
            "torch.sparse_coo" => &["_indices", "_values"],
            "torch.sparse_csr" | "torch.sparse_bsr" => &["crow_indices", "col_indices", "values"],
            "torch.sparse_csc" | "torch.sparse_bsc" => &["ccol_indices", "row_indices", "values"],
            "torch.jagged" => &["values", "offsets"],
            _ => &[],
        };
        if parts.is_empty() {
            return self.record_strided(tensor, stream);
        }
        for part in parts {
            let part = tensor.call_method0(part)?;
            if part.getattr("is_cuda")?.is_truthy()? {
                self.record_strided(&part.call_method0("detach")?, stream)?;
            }
        }
        Ok(())
    }

    /// Quantised and nested tensors have no function of their own for it, but a storage.
    fn record_strided(&self, tensor: &Bound<'_, PyAny>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let refused = match tensor.call_method1("record_stream", (stream,)) {
            Ok(_) => return Ok(()),
            Err(refused) => refused,
        };
        let by_storage = || {
            let py = tensor.py();
            let named = PyDict::new(py);
            named.set_item("dtype", self.module.bind(py).getattr("uint8")?)?;
            named.set_item("device", tensor.getattr("device")?)?;
            let bytes = self.empty.bind(py).call((0,), Some(&named))?;
            let bytes = bytes.call_method1("set_", (tensor.call_method0("untyped_storage")?,))?;
            bytes.call_method1("record_stream", (stream,))
        };
        by_storage().map(drop).map_err(|_: PyErr| refused)
    }
}
