//! Memory of PyTorch's for results that the library has planned.

use std::error;
use std::mem;

use parking_lot::Mutex;
use pyo3::prelude::*;
use transship::{Alignment, Allocate, AllocatedMemory, MemoryKind, RawMemory, Stream};

use crate::place::Place;
use crate::released::Held;
use crate::torch::Torch;

/// Asks PyTorch for memory while a copy is started, on the thread that does so, and keeps the objects.
pub struct TorchMemory {
    /// Where it lies; `None`: where the stream of the copy does.
    place: Option<Place>,
    is_pinned: bool,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// In the order in which they were asked for, with the offset of the memory in each, in bytes.
    chunks: Vec<(Py<PyAny>, usize)>,
    error: Option<PyErr>,
}

impl TorchMemory {
    pub fn new(place: Option<Place>, is_pinned: bool) -> Self {
        Self { place, is_pinned, given: Mutex::default() }
    }

    /// What was given so far.
    pub fn take_chunks(&self) -> Vec<(Py<PyAny>, usize)> {
        mem::take(&mut self.given.lock().chunks)
    }

    /// The error of PyTorch, if it had one.
    pub fn take_error(&self) -> Option<PyErr> {
        self.given.lock().error.take()
    }

    fn give(
        &self,
        py: Python<'_>,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> PyResult<AllocatedMemory> {
        let torch = Torch::import(py)?;
        let place = self.place.or_else(|| Place::of_id(stream.device().id())).unwrap_or(Place::Host);
        let allocate = |bytes| torch.allocate(py, bytes, place, self.is_pinned);
        let alignment = alignment.bytes();
        let (mut object, mut address) = allocate(bytes)?;
        if !address.is_multiple_of(alignment as u64) {
            (object, address) = allocate(bytes.saturating_add(alignment))?;
        }
        let start = address.next_multiple_of(alignment as u64);
        let kind = match place {
            Place::Host if self.is_pinned => MemoryKind::Pinned,
            Place::Host => MemoryKind::Pageable,
            _ => MemoryKind::Device,
        };
        let owner = Held::new(vec![object.clone().unbind()]);
        self.given.lock().chunks.push((object.unbind(), (start - address) as usize));
        Ok(AllocatedMemory::new(RawMemory::new(start, bytes, kind), Box::new(owner)))
    }
}

// SAFETY: PyTorch has made the memory for the copy; the owner keeps it, and nobody else has it before the copy is done. It is PyTorch's on
// the stream that the copy runs on.
unsafe impl Allocate for TorchMemory {
    fn allocate(
        &self,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> Result<AllocatedMemory, Box<dyn error::Error + Send + Sync>> {
        Python::attach(|py| {
            self.give(py, bytes, alignment, stream).map_err(|error| {
                let text = error.to_string();
                let before = self.given.lock().error.replace(error);
                drop(before);
                text.into()
            })
        })
    }
}
