//! What `multi_tensor_copier` takes for a container, and what for a leaf.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::leaf::{Leaf, Order, is_aligned};
use crate::leaf_slots::{self, At, Slot};
use crate::misaligned;
use crate::modules;
use crate::place::Place;
use crate::torch::Torch;
use crate::tree::{Entries, Found, Opened, Rules};

/// Lists, tuples, dicts, and what is derived of them; tensors of PyTorch, arrays of numpy.
pub struct Forebear<'py> {
    torch: &'py Torch,
    /// `torch.device`.
    device: Bound<'py, PyAny>,
    /// `None` for devices that the library does not know.
    target: Option<Place>,
    /// Whether tensors that are there already are copied as well.
    always: bool,
    /// If the program has imported numpy.
    array: Option<Bound<'py, PyAny>>,
    pub slots: Vec<Slot>,
}

impl<'py> Forebear<'py> {
    pub fn new(torch: &'py Torch, device: Bound<'py, PyAny>, target: Option<Place>, always: bool) -> Self {
        let numpy = modules::imported(intern!(device.py(), "numpy"));
        let array = numpy.and_then(|numpy| numpy.getattr("ndarray").ok());
        Self { torch, device, target, always, array, slots: leaf_slots::ROOM.list() }
    }

    fn add(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<()> {
        self.slots.push(slot(self.torch, tensor, &self.device, self.target, self.always)?);
        Ok(())
    }

    fn is_array(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.array.as_ref().map_or(Ok(false), |array| object.is_instance(array))
    }
}

impl<'py> Rules<'py> for Forebear<'py> {
    #[inline]
    fn take_plain(&mut self, object: Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        take_plain(self.torch, object, self.target, self.always, &mut self.slots)
    }

    #[inline]
    fn expect(&self, list: &Bound<'py, PyList>, index: usize) {
        self.torch.expect(list, index);
    }

    #[inline]
    fn expect_values(&self, entries: &Entries<'py>) {
        self.torch.expect_values(entries);
    }

    fn take(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Found<'py>> {
        if is_value(object) {
            return Ok(Found::Same);
        }
        if self.torch.is_tensor(object) {
            self.add(object)?;
            return Ok(Found::Leaf);
        }
        Ok(if object.is_instance_of::<PyList>() {
            Found::Container(Opened::List)
        } else if object.is_instance_of::<PyTuple>() {
            Found::Container(Opened::Tuple)
        } else if object.is_instance_of::<PyDict>() {
            Found::Container(Opened::Dict)
        } else if self.is_array(object)? {
            self.add(&self.torch.tensor_of_numpy(object).map_err(|error| refused(object.py(), error))?)?;
            Found::Leaf
        } else {
            Found::Same
        })
    }
}

/// Whether it is a value of Python's own, as most of what goes through is: no more has to be asked.
#[inline]
fn is_value(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyString>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_none()
}

/// Takes an object that is a tensor of PyTorch's which is on the target already, or lies row by row and is copied as it is: most of what large structures
/// hold. What it does not take is given back, and looked at by [`slot`].
#[inline]
pub fn take_plain<'py>(
    torch: &Torch,
    object: Bound<'py, PyAny>,
    target: Option<Place>,
    always: bool,
    slots: &mut Vec<Slot>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !torch.is_exact(&object) || target.is_none() {
        return Ok(Some(object));
    }
    // SAFETY: its class was looked at. It is pushed at once, and is kept where it is pushed to.
    let Some(found) = (unsafe { torch.look_row_by_row(&object) })? else { return Ok(Some(object)) };
    if Some(found.place) == target && !always {
        slots.push(Slot::There(object.unbind()));
        return Ok(None);
    }
    if found.place == Place::Host && !is_aligned(found.address, found.element) {
        return Ok(Some(object));
    }
    let py = object.py();
    Ok(found.push(object.unbind(), slots).map(|object| object.into_bound(py)))
}

/// What becomes of a tensor of PyTorch's on the way to a device.
pub fn slot<'py>(
    torch: &Torch,
    tensor: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    target: Option<Place>,
    always: bool,
) -> PyResult<Slot> {
    let leaf = match target {
        Some(_) => torch.read(tensor)?,
        None => None,
    };
    let Some(leaf) = leaf else {
        return Ok(Slot::There(torch.copy_by_torch(tensor, device, always)?.unbind()));
    };
    if Some(leaf.place) == target && !always {
        return Ok(Slot::There(tensor.clone().unbind()));
    }
    let is_misaligned = leaf.place == Place::Host && !leaf.is_aligned();
    if is_misaligned || leaf.order == Order::Strided && is_for_pytorch_to_gather(&leaf, target) {
        let tensor = match is_misaligned {
            true => misaligned::aligned(tensor.py(), torch, &leaf)?,
            false => tensor.call_method0("detach")?.call_method0("contiguous")?,
        };
        let leaf =
            torch.read(&tensor)?.ok_or_else(|| PyTypeError::new_err("a tensor without plain memory"))?;
        return Ok(Slot::Leaf(At::Source(tensor.unbind()), leaf));
    }
    Ok(Slot::Leaf(At::Source(tensor.clone().unbind()), leaf))
}

/// Whether PyTorch puts the elements in order first: those of a device that lie across the boundaries of their size, that have more dimensions than
/// kernels have, or that go to another device: the library gathers into memory of the host, and of the device that they are on.
fn is_for_pytorch_to_gather(leaf: &Leaf, target: Option<Place>) -> bool {
    let size = leaf.type_of_elements().bytes() as u64;
    !leaf.address.is_multiple_of(size)
        || leaf.rank() > 8
        || target.is_some_and(|target| is_gathered_between(leaf, target))
}

/// Whether it has gaps and goes from one device to another.
pub fn is_gathered_between(leaf: &Leaf, target: Place) -> bool {
    let changes_device = leaf.place != Place::Host && target != Place::Host && target != leaf.place;
    changes_device && leaf.order == Order::Strided
}

/// Arrays of types that PyTorch does not have are a `TypeError`, whatever it says of them.
fn refused(py: Python<'_>, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyValueError>(py) {
        let refused = PyTypeError::new_err(error.value(py).to_string());
        refused.set_cause(py, Some(error));
        return refused;
    }
    error
}
