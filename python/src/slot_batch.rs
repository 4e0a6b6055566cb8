//! Batches in slots: a worker packs the leaves of one, and the trainer reads them there.

use std::ffi::CStr;
use std::mem;
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyCapsule, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use transship::ipc;

use crate::description::{Described, Description};
use crate::dlpack;
use crate::dtype;
use crate::leaf::{Leaf, Order};
use crate::misaligned;
use crate::modules;
use crate::place::Place;
use crate::plan::LARGEST_PACKED;
use crate::slots::SlotRange;
use crate::torch::{Part, Torch};

/// Where leaves begin in their slot: those that the copy packs as it packs chunks, so that what is packed there already goes as a whole.
const ALIGNMENT: usize = 16;
/// The same for larger ones.
const ALIGNMENT_OF_LARGE: usize = 64;

/// A slot while a worker writes a batch there. Its `reduce` is the `reducer_override` of the pickler of the batch.
#[pyclass(module = "transship")]
pub struct SlotPacker {
    memory: SlotRange,
    /// What the pickle says in the place of a leaf: this, called with its number.
    leaf: Py<PyAny>,
    /// The class of arrays, if the worker has imported numpy.
    array: Option<Py<PyType>>,
    end: usize,
    /// Bytes that all leaves would have taken.
    needed: usize,
    beside: usize,
    /// Whether there was nothing but leaves, and what pickle has bytecodes for.
    runs_no_code: bool,
    leaves: Description,
    /// Keeps the memory.
    _keeper: Py<PyAny>,
}

/// What a capsule of a leaf is called.
const LEAF: &CStr = c"transship.leaf";

/// A leaf in a slot that was leased, in a capsule: what `prefetch` copies. Objects of a class of ours would be ones that the garbage collector counts,
/// and it would go through all others for every few batches.
struct SlotLeaf {
    leaf: Leaf,
    _lease: Arc<ipc::SlotLease>,
}

#[pymethods]
impl SlotPacker {
    #[new]
    fn new(address: u64, size: usize, leaf: Py<PyAny>, keeper: Py<PyAny>, py: Python<'_>) -> PyResult<Self> {
        let numpy = modules::imported(intern!(py, "numpy"));
        let array = numpy.and_then(|numpy| numpy.getattr("ndarray").ok());
        Ok(Self {
            memory: SlotRange { address, size },
            leaf,
            array: array.map(|array| array.cast_into().map(Bound::unbind)).transpose()?,
            end: 0,
            needed: 0,
            beside: 0,
            runs_no_code: true,
            leaves: Description::default(),
            _keeper: keeper,
        })
    }

    /// The offset of room for so many bytes; `None` if there is none.
    fn reserve(&mut self, bytes: usize) -> Option<usize> {
        let begin = aligned(self.end, bytes)?;
        let end = begin.checked_add(bytes).filter(|end| *end <= self.memory.size)?;
        self.end = end;
        self.need(bytes);
        Some(begin)
    }

    /// Puts a tensor of PyTorch's or an array of numpy's into the slot, unless it is there, and says what makes the leaf anew. All else, and
    /// what finds no room, is left to the pickler.
    fn reduce<'py>(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let torch = Torch::import(py)?;
        let is_array = self.array.as_ref().is_some_and(|array| object.get_type().is(array));
        let placed = match (is_array, torch.is_exact(object)) {
            (true, _) => self.array(object)?,
            (_, true) => self.tensor(torch, object)?,
            _ => None,
        };
        if let Some(number) = placed {
            return Ok((self.leaf.bind(py), (number,)).into_pyobject(py)?.into_any());
        }
        if torch.is_tensor(object) || self.is_array(object)? {
            self.beside += 1;
        }
        // A class, or a function: what is called with leaves may look at them, and so may named tuples.
        self.runs_no_code &= object.is(&self.leaf);
        Ok(py.NotImplemented().into_bound(py))
    }

    /// The leaves as bytes, how large the slot should have been, how many leaves are beside it, and whether the batch holds nothing but leaves
    /// and what pickle itself knows.
    fn finish<'py>(&mut self, py: Python<'py>) -> (Bound<'py, PyBytes>, usize, usize, bool) {
        let leaves = mem::take(&mut self.leaves);
        (PyBytes::new(py, leaves.bytes()), self.needed, self.beside, self.runs_no_code)
    }
}

impl SlotPacker {
    fn tensor(&mut self, torch: &Torch, tensor: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        if !torch.is_bare(tensor)? {
            return Ok(None);
        }
        let py = tensor.py();
        match torch.read(tensor)?.filter(|leaf| leaf.place == Place::Host) {
            Some(leaf) if leaf.order == Order::Strided && self.offset_of(&leaf).is_none() => {
                let dense = match leaf.is_aligned() {
                    true => tensor.call_method0("contiguous")?,
                    false => misaligned::aligned(py, torch, &leaf)?,
                };
                let leaf = torch.read(&dense)?;
                leaf.map_or(Ok(None), |leaf| self.place(py, &leaf, false))
            }
            Some(leaf) => self.place(py, &leaf, false),
            None => Ok(None),
        }
    }

    /// Those of classes of their own as well.
    fn is_array(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.array.as_ref().map_or(Ok(false), |array| object.is_instance(array.bind(object.py())))
    }

    fn array(&mut self, array: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let py = array.py();
        // Objects, texts, dates and bytes in another order are pickled.
        let Ok((keeper, leaf)) = dlpack::read(array, None) else { return Ok(None) };
        if leaf.order == Order::Strided && self.offset_of(&leaf).is_none() {
            let dense = py.import("numpy")?.call_method1("ascontiguousarray", (array,))?;
            let (_keeper, leaf) = dlpack::read(&dense, None)?;
            return self.place(py, &leaf, true);
        }
        let placed = self.place(py, &leaf, true);
        drop(keeper);
        placed
    }

    /// The number of the leaf, which is alive and without gaps, or in the slot; `None` if it has no room.
    fn place(&mut self, py: Python<'_>, leaf: &Leaf, is_array: bool) -> PyResult<Option<usize>> {
        let offset = match self.offset_of(leaf) {
            Some(offset) => offset,
            None if leaf.order == Order::Strided => return Ok(None),
            None => {
                let Some(offset) = self.reserve(leaf.bytes) else {
                    self.need(leaf.bytes);
                    return Ok(None);
                };
                self.copy(py, leaf, offset);
                offset
            }
        };
        Ok(Some(self.leaves.add(&Described { leaf, offset, is_array })))
    }

    /// The offset of a leaf that lies in what was reserved.
    fn offset_of(&self, leaf: &Leaf) -> Option<usize> {
        let offset = self.memory.offset_of(leaf)?;
        (offset.saturating_add(leaf.span()) <= self.end).then_some(offset)
    }

    /// Counts bytes that the batch has room for, or would need.
    fn need(&mut self, bytes: usize) {
        let end = aligned(self.needed, bytes).and_then(|begin| begin.checked_add(bytes));
        self.needed = end.unwrap_or(usize::MAX);
    }

    /// Others of the worker go on while much is copied.
    fn copy(&self, py: Python<'_>, leaf: &Leaf, offset: usize) {
        let (from, to, bytes) = (leaf.address, self.memory.address + offset as u64, leaf.bytes);
        let copy = || {
            let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
            // SAFETY: the leaf has so many bytes without gaps, whose owner the caller keeps; `reserve` has found the room in the slot, which nobody
            // else writes. The program may have made a leaf of other bytes of the slot.
            unsafe { std::ptr::copy(from, to, bytes) };
        };
        match bytes {
            0 => {}
            1..=LARGEST_PACKED => copy(),
            _ => py.detach(copy),
        }
    }
}

/// The leaves that a worker has described, for copies alone.
pub fn for_copies<'py>(
    py: Python<'py>,
    lease: &Arc<ipc::SlotLease>,
    described: &[u8],
) -> PyResult<Vec<Bound<'py, PyCapsule>>> {
    let slot = SlotRange::of(lease);
    let make = |(_, offset, mut leaf): (bool, usize, Leaf)| {
        leaf.address = slot.address + offset as u64;
        PyCapsule::new_with_value(py, SlotLeaf { leaf, _lease: Arc::clone(lease) }, LEAF)
    };
    parts(slot, described)?.into_iter().map(make).collect()
}

/// What is in such a capsule; `None` for any other.
pub fn leaf_of<'a>(object: &'a Bound<'_, PyAny>) -> Option<&'a Leaf> {
    let leaf = object.cast::<PyCapsule>().ok()?.pointer_checked(Some(LEAF)).ok()?.cast::<SlotLeaf>();
    // SAFETY: only `for_copies` calls a capsule so. It holds such a value, which nobody changes, for as long as it lives.
    Some(unsafe { &leaf.as_ref().leaf })
}

/// Whether each leaf for copies in a batch is where a copy finds it: an item of a list or a tuple, or a value of a dict, and no member of a set and no key.
pub fn are_found(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    are_found_below(object, MOST_LEVELS)
}

/// Of nesting; a list may be in itself.
const MOST_LEVELS: usize = 64;

fn are_found_below(object: &Bound<'_, PyAny>, levels: usize) -> PyResult<bool> {
    let Some(below) = levels.checked_sub(1) else { return Ok(false) };
    if let Ok(list) = object.cast_exact::<PyList>() {
        for item in list.iter() {
            if !are_found_below(&item, below)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        for item in tuple.iter_borrowed() {
            if !are_found_below(&item, below)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let Ok(dict) = object.cast_exact::<PyDict>() {
        for (key, value) in dict.iter() {
            if !is_simple(&key) || !are_found_below(&value, below)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    Ok(object.is_exact_instance_of::<PyCapsule>() || is_simple(object))
}

/// Whether it holds nothing.
fn is_simple(object: &Bound<'_, PyAny>) -> bool {
    object.is_none()
        || object.is_exact_instance_of::<PyString>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyBytes>()
}

/// The leaves that a worker has described, as tensors and arrays over the slot: `whole` is a tensor of its bytes, and `buffer` an object whose
/// buffer they are.
pub fn leaves<'py>(
    slot: SlotRange,
    described: &[u8],
    whole: &Bound<'py, PyAny>,
    buffer: &Bound<'py, PyAny>,
) -> PyResult<Vec<Py<PyAny>>> {
    let py = whole.py();
    let parts = parts(slot, described)?;
    let has_all = |whole: Leaf| whole.address == slot.address && whole.bytes >= slot.size;
    if !Torch::import(py)?.read(whole)?.is_some_and(has_all) {
        return Err(PyTypeError::new_err("a tensor that is not one of all bytes of the slot"));
    }
    let (mut arrays, mut tensors) = (Arrays::new(buffer), Torch::import(py)?.parts_of(whole)?);
    let make = |(is_array, offset, leaf): &(bool, usize, Leaf)| match is_array {
        true => arrays.make(leaf, *offset),
        false => tensors.make(Part { leaf, offset: *offset }),
    };
    parts.iter().map(make).collect()
}

/// Whether each is an array, its offset and what it is. All lie in the slot, at multiples of their elements.
fn parts(slot: SlotRange, described: &[u8]) -> PyResult<Vec<(bool, usize, Leaf)>> {
    let fits = |offset: usize, leaf: &Leaf| {
        let end = offset.checked_add(leaf.span());
        end.is_some_and(|end| end <= slot.size) && offset.is_multiple_of(leaf.type_of_elements().bytes())
    };
    Description::read(described)
        .map(|part| part.filter(|(_, offset, leaf)| fits(*offset, leaf)).ok_or_else(spoilt))
        .collect()
}

#[cold]
fn spoilt() -> PyErr {
    PyRuntimeError::new_err("a worker has described a batch that is not in its slot")
}

/// Makes arrays of numpy's over a buffer.
struct Arrays<'a, 'py> {
    buffer: &'a Bound<'py, PyAny>,
    class: Option<Bound<'py, PyAny>>,
    dtypes: Vec<Option<Bound<'py, PyAny>>>,
}

impl<'a, 'py> Arrays<'a, 'py> {
    fn new(buffer: &'a Bound<'py, PyAny>) -> Self {
        Self { buffer, class: None, dtypes: vec![None; dtype::ALL.len()] }
    }

    fn make(&mut self, leaf: &Leaf, offset: usize) -> PyResult<Py<PyAny>> {
        let py = self.buffer.py();
        if self.class.is_none() {
            self.class = Some(py.import("numpy")?.getattr("ndarray")?);
        }
        if self.dtypes[leaf.element()].is_none() {
            let name = leaf.type_of_elements().name;
            self.dtypes[leaf.element()] = Some(py.import("numpy")?.call_method1("dtype", (name,))?);
        }
        let (Some(class), Some(dtype)) = (&self.class, &self.dtypes[leaf.element()]) else {
            return Err(PyTypeError::new_err("there is no numpy"));
        };
        let shape = PyTuple::new(py, leaf.shape())?;
        let array = match leaf.order {
            Order::Contiguous => class.call1((shape, dtype, self.buffer, offset)),
            Order::Dense | Order::Strided => {
                let size = leaf.type_of_elements().bytes() as i64;
                let strides = leaf.strides().iter().map(|stride| stride.saturating_mul(size));
                let strides = PyTuple::new(py, strides.collect::<Vec<_>>())?;
                class.call1((shape, dtype, self.buffer, offset, strides))
            }
        };
        array.map(Bound::unbind)
    }
}

fn aligned(offset: usize, bytes: usize) -> Option<usize> {
    let alignment = if bytes > LARGEST_PACKED { ALIGNMENT_OF_LARGE } else { ALIGNMENT };
    offset.checked_next_multiple_of(alignment)
}
