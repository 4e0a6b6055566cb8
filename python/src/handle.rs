//! The handle of a copy, as Python sees it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use transship::Event;

use crate::errors;
use crate::leaf::Leaf;
use crate::leaf_slots::{At, Slot};
use crate::paused::PausedCollector;
use crate::place::Place;
use crate::progress::{Copies, LOOK_FOR_SIGNALS};
use crate::released;
use crate::start::Started;
use crate::tensor::Tensor;
use crate::torch::{Part, Parts, Torch};
use crate::tree::Skeleton;

/// A copy that was started.
#[pyclass(frozen, module = "transship")]
pub struct Handle {
    /// `None` once the garbage collector has taken it. Locked for no longer than a clone takes.
    content: Mutex<Option<Arc<Content>>>,
    copies: Copies,
    phases: [(&'static str, Duration); 3],
    target: Option<Place>,
    /// The point of PyTorch's stream behind what PyTorch has copied itself, if it has.
    by_torch: Option<Event>,
}

/// All objects of Python that a handle keeps: each reference is visited by the garbage collector. Copies in flight have references of their
/// own, which it does not see, so that it takes nothing from them.
struct Content {
    skeleton: Skeleton,
    slots: Vec<Slot>,
    chunks: Vec<Py<PyAny>>,
    /// The leaves of the result.
    made: OnceLock<Vec<Py<PyAny>>>,
    /// Makes what the caller asked for out of a tensor in memory of the library.
    convert: Option<Py<PyAny>>,
}

impl Handle {
    /// `read` is how long it took to read the leaves. `convert` makes what the caller asked for out of tensors in memory of the library.
    pub fn new(
        (skeleton, slots): (Skeleton, Vec<Slot>),
        started: Started,
        read: Duration,
        target: Option<Place>,
        convert: Option<Py<PyAny>>,
    ) -> Self {
        let Started { chunks, running, before, plan, launch, fills, by_torch } = started;
        let phases = [("read", read), ("plan", plan), ("launch", launch)];
        let keeps_tensors = slots.iter().any(Slot::is_own);
        let copies = Copies::new(running, before, keeps_tensors, fills);
        let content = Content { skeleton, slots, chunks, made: OnceLock::new(), convert };
        Self { content: Mutex::new(Some(Arc::new(content))), copies, phases, target, by_torch }
    }

    fn content(&self) -> PyResult<Arc<Content>> {
        let content = self.content.lock().clone();
        content
            .ok_or_else(|| PyRuntimeError::new_err("the garbage collector has taken what this handle held"))
    }
}

#[pymethods]
impl Handle {
    /// Whether the copy is done, or has failed. Does not block.
    fn ready(&self, py: Python<'_>) -> bool {
        released::drain(py);
        self.copies.are_ready()
    }

    /// What the call that started the copy took its time for, in microseconds: reading the leaves, planning and allocating, launching.
    fn phases(&self) -> HashMap<&'static str, f64> {
        self.phases.iter().map(|(name, took)| (*name, took.as_secs_f64() * 1e6)).collect()
    }

    /// The structure, with its tensors on the target. Blocks until the copy is done, without the GIL.
    #[pyo3(signature = (timeout = None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = match timeout {
            None => None,
            Some(seconds) => Some(Instant::now() + seconds_of(seconds)?),
        };
        let content = self.content()?;
        let leaves = self.leaves(py, &content, deadline)?;
        released::drain(py);
        content.skeleton.build(py, leaves)
    }

    /// Whether the copy is done. If not, a byte is written to the socket of number `socket` when it is worth to ask again. Before the
    /// socket is closed, `leave` is called.
    #[cfg(unix)]
    fn poll(&self, py: Python<'_>, socket: i32) -> PyResult<bool> {
        let waker = crate::socket::waker(socket)?;
        let is_done = py.detach(|| self.copies.poll(socket, waker));
        released::drain(py);
        is_done.map_err(|error| errors::of(py, &error))
    }

    /// Nothing is written to the socket of this number any more, but what is on its way.
    #[cfg(unix)]
    fn leave(&self, py: Python<'_>, socket: i32) {
        py.detach(|| self.copies.leave(socket));
    }

    /// The structure, without waiting: a stream of the target waits for it, and not the host; `stream` is PyTorch's, if it is one, and `handle` the
    /// driver's.
    #[pyo3(signature = (handle, stream = None))]
    fn wait_on(
        &self,
        py: Python<'_>,
        handle: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let target = self.target.filter(|target| *target != Place::Host);
        let target =
            target.ok_or_else(|| PyValueError::new_err("results on the host are waited for with get()"))?;
        if let Some(stream) = stream {
            check_device(stream, target)?;
        }
        let content = self.content()?;
        // SAFETY: the caller's stream is alive, and stays so until the results are gone, as `wait_on` asks for; PyTorch destroys none of its own.
        let waiting = unsafe { target.stream(handle) }.map_err(|error| errors::of(py, &error))?;
        while !py.detach(|| self.copies.wait_on(&waiting)).map_err(|error| errors::of(py, &error))? {
            py.detach(|| self.copies.wait(LOOK_FOR_SIGNALS)).map_err(|error| errors::of(py, &error))?;
            py.check_signals()?;
        }
        if let Some(event) = &self.by_torch {
            waiting.wait_event(event).map_err(|error| errors::of(py, &error))?;
        }
        record(py, &content, target, handle, stream)?;
        let leaves = self.made(py, &content)?;
        released::drain(py);
        content.skeleton.build(py, leaves)
    }

    /// Gives up what is not submitted yet. What is in flight stays owned until the device is done with it. `False` if there is nothing
    /// to give up: a copy that is done stays so.
    fn cancel(&self, py: Python<'_>) -> bool {
        let is_cancelled = py.detach(|| !self.copies.are_ready() && self.copies.cancel());
        released::drain(py);
        is_cancelled
    }

    /// `(arrived, total)` in bytes; `None` once the copy is over, and while another thread waits for it.
    fn progress(&self) -> Option<(u64, u64)> {
        self.copies.progress()
    }

    /// What each copy that runs did so far, a text for each; `None` as for `progress`.
    fn report(&self) -> Option<Vec<String>> {
        Some(self.copies.reports()?.iter().map(|report| format!("{report:?}")).collect())
    }

    /// While a thread uses the content it is not visited: it looks as if somebody else had it, and stays.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.content.try_lock().as_deref() {
            Some(Some(content)) if Arc::strong_count(content) == 1 => content.traverse(&visit),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        // Let go of without the lock: finalizers may ask this handle.
        let content = self.content.try_lock().and_then(|mut content| content.take());
        drop(content);
    }
}

impl Content {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.skeleton.traverse(visit)?;
        self.slots.iter().try_for_each(|slot| slot.traverse(visit))?;
        let made = self.made.get().into_iter().flatten();
        self.chunks.iter().chain(made).chain(&self.convert).try_for_each(|object| visit.call(object))
    }
}

impl Handle {
    /// The leaves of the result, once the copy is done. Tensors of PyTorch are made while the device copies.
    fn leaves<'a>(
        &self,
        py: Python<'_>,
        content: &'a Content,
        deadline: Option<Instant>,
    ) -> PyResult<&'a [Py<PyAny>]> {
        let needs_results = content.slots.iter().any(Slot::is_own);
        if needs_results {
            self.wait(py, deadline)?;
        }
        self.made(py, content)?;
        self.wait(py, deadline)?;
        content.made.get().map(Vec::as_slice).ok_or_else(no_result)
    }

    /// The leaves, of which those in memory of the library are filled, or handed to a stream.
    fn made<'a>(&self, py: Python<'_>, content: &'a Content) -> PyResult<&'a [Py<PyAny>]> {
        if content.made.get().is_none() {
            let paused = content.convert.is_none().then(|| PausedCollector::new(py));
            let made = self.make(py, content)?;
            drop(paused);
            // Two threads may have made them: the first one's are the result.
            drop(content.made.set(made));
        }
        content.made.get().map(Vec::as_slice).ok_or_else(no_result)
    }

    fn make(&self, py: Python<'_>, content: &Content) -> PyResult<Vec<Py<PyAny>>> {
        let mut made = Vec::with_capacity(content.slots.len());
        let mut chunks: Vec<Option<Parts<'_, '_>>> = content.chunks.iter().map(|_| None).collect();
        for slot in &content.slots {
            made.push(match slot {
                Slot::There(object) | Slot::Leaf(At::Source(object), _) => object.clone_ref(py),
                Slot::Leaf(At::Own { copy, tensor, offset }, leaf) => {
                    self.own(py, content, (*copy as usize, *tensor as usize), *offset, leaf)?
                }
                Slot::Leaf(At::Part { chunk, offset }, leaf) => {
                    let (parts, whole) = (chunks.get_mut(*chunk), content.chunks.get(*chunk));
                    let (parts, whole) = parts.zip(whole).ok_or_else(no_result)?;
                    let parts = match parts {
                        Some(parts) => parts,
                        None => parts.insert(Torch::import(py)?.parts_of(whole.bind(py))?),
                    };
                    parts.make(Part { leaf, offset: *offset })?
                }
            });
        }
        Ok(made)
    }

    /// A result in memory of the library, as the caller asked for it.
    fn own(
        &self,
        py: Python<'_>,
        content: &Content,
        (copy, number): (usize, usize),
        offset: usize,
        leaf: &Leaf,
    ) -> PyResult<Py<PyAny>> {
        let (memory, place) = self.copies.tensor(copy, number).zip(self.target).ok_or_else(no_result)?;
        // Leaves that were gathered are parts of one tensor of bytes.
        let is_whole = memory.nbytes() == leaf.bytes;
        let memory = if is_whole { Ok(memory) } else { memory.narrow(0, offset, leaf.bytes) };
        let tensor = memory.and_then(|memory| Tensor::new(leaf, place, memory));
        let tensor = tensor.map_err(|error| errors::of(py, &error))?;
        let tensor = Py::new(py, tensor)?.into_any();
        match &content.convert {
            Some(convert) => convert.call1(py, (tensor,)),
            None => Ok(tensor),
        }
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

/// Lets memory of PyTorch not be used again before this stream of `place` has come by: PyTorch's own one, if it is one.
fn record(
    py: Python<'_>,
    content: &Content,
    place: Place,
    handle: usize,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(torch) = Torch::loaded(py)? else { return Ok(()) };
    let whole = content.slots.iter().filter_map(|slot| match slot {
        Slot::There(object) => Some(object),
        _ => None,
    });
    let mut stream = stream.cloned();
    for object in content.chunks.iter().chain(whole).map(|object| object.bind(py)) {
        if !torch.is_tensor(object) || !object.getattr("is_cuda")?.is_truthy()? {
            continue;
        }
        let known = match stream.take() {
            Some(known) => known,
            None => torch.stream_of_handle(py, place, handle)?,
        };
        torch.record_stream(object, &known)?;
        stream = Some(known);
    }
    Ok(())
}

/// Fails unless a stream of PyTorch's is one of `target`. The driver does not tell default streams of two devices apart.
fn check_device(stream: &Bound<'_, PyAny>, target: Place) -> PyResult<()> {
    let device = stream.getattr("device")?;
    let place = Torch::import(stream.py())?.place_of(&device)?;
    if place == Some(target) {
        return Ok(());
    }
    let there = Torch::import(stream.py())?.name_of(target);
    Err(PyValueError::new_err(format!(
        "a stream of {device}, but results on {there}: name one of that device"
    )))
}

fn no_result() -> PyErr {
    PyRuntimeError::new_err("a leaf without a result")
}

fn seconds_of(seconds: f64) -> PyResult<Duration> {
    // A year is as good as for ever.
    let bounded = if seconds > 3e7 { 3e7 } else { seconds };
    Duration::try_from_secs_f64(bounded).map_err(|_| {
        PyValueError::new_err(format!("a timeout of {seconds} s; it must be a number of at least 0"))
    })
}
