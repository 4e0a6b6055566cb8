//! Memory for results, out of PyTorch's allocators: that of a device on its current stream, or that for pinned memory.

use std::ptr;
use std::sync::atomic::Ordering;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::Torch;
use super::results::{Borrowed, is_like};
use super::symbols::{self, Empty, Views};
use crate::dtype;
use crate::leaf::Leaf;
use crate::place::Place;

impl Torch {
    /// Memory of so many bytes, and its address.
    pub fn allocate<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        place: Place,
        pinned: bool,
    ) -> PyResult<(Bound<'py, PyAny>, u64)> {
        if let Some((views, _)) = &self.views
            && let Some(empty) = views.empty.filter(|_| !pinned && self.is_prepared(place))
        {
            let like = Like { shape: &[bytes as i64], strides: &[1], element: dtype::BYTE };
            if let Some(Unwrapped(tensor, address)) = py.detach(|| like.make(place, empty, views)) {
                return Ok((tensor.object(py)?, address));
            }
        }
        let named = self.named(py, dtype::BYTE, place, pinned)?;
        let tensor = self.empty.bind(py).call((bytes,), Some(&named))?;
        let address = self.address_of(&tensor)?;
        self.prepared.fetch_or(bit_of(place), Ordering::Relaxed);
        Ok((tensor, address))
    }

    /// Whether PyTorch has prepared a device: the interpreter has made a tensor there.
    fn is_prepared(&self, place: Place) -> bool {
        place == Place::Host || self.prepared.load(Ordering::Relaxed) & bit_of(place) != 0
    }

    /// A tensor of the sizes, strides and type of `leaf`.
    pub fn allocate_like<'py>(
        &self,
        py: Python<'py>,
        leaf: &Leaf,
        place: Place,
        pinned: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = self.named(py, leaf.element, place, pinned)?;
        let (shape, strides) = (PyTuple::new(py, leaf.shape())?, PyTuple::new(py, leaf.strides())?);
        self.empty_strided.bind(py).call((shape, strides), Some(&named))
    }

    /// The same for each of `leaves`, and the address of each. Of many tensors the interpreter makes the first alone, which has PyTorch prepare the
    /// device, and those for which there is no memory, for PyTorch's error.
    pub fn allocate_like_each<'py>(
        &self,
        py: Python<'py>,
        leaves: &[Leaf],
        place: Place,
        pinned: bool,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, u64)>> {
        let mut made = Vec::with_capacity(leaves.len());
        let by_name = |leaf: &Leaf| {
            let tensor = self.allocate_like(py, leaf, place, pinned)?;
            let address = self.address_of(&tensor)?;
            Ok::<_, PyErr>((tensor, address))
        };
        if let Some(first) = leaves.first() {
            made.push(by_name(first)?);
        }
        if let Some((views, _)) = &self.views
            && let Some(empty) = views.empty.filter(|_| !pinned)
        {
            let rest = leaves.get(1..).unwrap_or_default();
            // PyTorch's allocator may wait for the driver, or for another thread.
            let unwrapped = py.detach(|| -> Vec<_> {
                rest.iter().map_while(|leaf| Like::of(leaf).make(place, empty, views)).collect()
            });
            for Unwrapped(tensor, address) in unwrapped {
                made.push((tensor.object(py)?, address));
            }
        }
        for leaf in leaves.get(made.len()..).unwrap_or_default() {
            made.push(by_name(leaf)?);
        }
        Ok(made)
    }

    fn named<'py>(
        &self,
        py: Python<'py>,
        element: usize,
        place: Place,
        pinned: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let named = PyDict::new(py);
        named.set_item("dtype", self.dtype(element)?)?;
        named.set_item("device", self.name_of(place))?;
        if pinned {
            named.set_item("pin_memory", true)?;
        }
        Ok(named)
    }

    pub fn dtype(&self, element: usize) -> PyResult<&Py<PyAny>> {
        let known = self.dtypes.get(element).and_then(Option::as_ref);
        known.ok_or_else(|| {
            PyRuntimeError::new_err(format!("this PyTorch has no {}", dtype::ALL[element].name))
        })
    }

    /// The address of a tensor's first element; 0 if it has none.
    pub fn address_of(&self, tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
        match self.read(tensor)? {
            Some(leaf) => Ok(leaf.address),
            None => tensor.call_method0("data_ptr")?.extract(),
        }
    }
}

/// A tensor of PyTorch's that has no object of Python yet, and its address.
struct Unwrapped<'a>(Borrowed<'a>, u64);

// SAFETY: it is an `at::Tensor` on the heap that nobody else knows; tensors count their uses atomically.
unsafe impl Send for Unwrapped<'_> {}

/// What a tensor is like.
struct Like<'a> {
    shape: &'a [i64],
    strides: &'a [i64],
    element: usize,
}

impl<'a> Like<'a> {
    fn of(leaf: &'a Leaf) -> Self {
        Self { shape: leaf.shape(), strides: leaf.strides(), element: leaf.element }
    }

    /// `None` where PyTorch cannot make it, which it writes to the standard error.
    fn make(self, place: Place, empty: Empty, views: &Views) -> Option<Unwrapped<'_>> {
        let (kind, number) = match place {
            Place::Host => (symbols::CPU, 0),
            Place::Cuda(number) | Place::Hip(number) => (symbols::CUDA, number),
        };
        let scalar_type = dtype::ALL[self.element].scalar_type;
        let (rank, shape, strides) = (self.shape.len() as i64, self.shape.as_ptr(), self.strides.as_ptr());
        let mut handle = ptr::null_mut();
        // SAFETY: the numbers are `rank` sizes and strides, none of which is negative.
        let status =
            unsafe { (empty.empty_strided)(rank, shape, strides, scalar_type, kind, number, &mut handle) };
        let tensor = (status == 0).then_some(handle).map(|handle| Borrowed { handle, views })?;
        let mut data = ptr::null_mut();
        // SAFETY: the handle is a tensor.
        let status = unsafe { (empty.data)(tensor.handle, &mut data) };
        (status == 0).then(|| Unwrapped(tensor, data.expose_provenance() as u64))
    }
}

/// None for devices of greater numbers.
fn bit_of(place: Place) -> u64 {
    match place {
        Place::Host => 0,
        Place::Cuda(number) | Place::Hip(number) => {
            u32::try_from(number).ok().and_then(|number| 1_u64.checked_shl(number)).unwrap_or(0)
        }
    }
}

/// The fast way to memory, if it does what it should, which is tried once.
pub fn tried(module: &Bound<'_, PyAny>, views: &Views) -> PyResult<Option<Empty>> {
    match views.empty {
        Some(empty) if is_sound(module, empty, views)? => Ok(Some(empty)),
        _ => Ok(None),
    }
}

fn is_sound(module: &Bound<'_, PyAny>, empty: Empty, views: &Views) -> PyResult<bool> {
    let element = dtype::number_of_name("int16").unwrap_or_default();
    let numbers = smallvec::SmallVec::from_slice(&[2, 3, 1, 2]);
    let Some(leaf) = Leaf::new(1 << 12, Place::Host, element, numbers) else { return Ok(false) };
    let Some(Unwrapped(tensor, address)) = Like::of(&leaf).make(Place::Host, empty, views) else {
        return Ok(false);
    };
    let tensor = tensor.object(module.py())?;
    Ok(tensor.getattr("is_cpu")?.is_truthy()? && is_like(module, &tensor, &leaf, address)?)
}
