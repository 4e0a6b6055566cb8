//! Memory for results, out of PyTorch's allocators: that of a device on its current stream, or that for pinned memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::Torch;
use super::results::{Borrowed, is_like};
use super::symbols::{self, Ask, Empty, EmptyStrided, Views};
use crate::dtype;
use crate::leaf::Leaf;
use crate::once::get_or_make;
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
        if let Some(maker) = self.maker(py, place, pinned)? {
            let like = Like { shape: &[bytes as i64], strides: &[1], element: dtype::BYTE };
            // PyTorch's allocator may wait for the driver, or for another thread.
            if let Some(Unwrapped(tensor, address)) = py.detach(|| maker.make(like)) {
                return Ok((tensor.object(py)?, address));
            }
        }
        let named = self.named(py, dtype::BYTE, place, pinned)?;
        let tensor = self.empty.bind(py).call((bytes,), Some(&named))?;
        let address = self.address_of(&tensor)?;
        self.prepared.note(place, pinned);
        Ok((tensor, address))
    }

    /// What makes tensors without the interpreter. `None` where PyTorch has none, and before the interpreter has made the first one, which has PyTorch
    /// prepare the device.
    fn maker(&self, py: Python<'_>, place: Place, pinned: bool) -> PyResult<Option<Maker<'_>>> {
        let Some((views, _)) = &self.views else { return Ok(None) };
        let Some(empty) = views.empty.filter(|_| self.prepared.is_noted(place, pinned)) else {
            return Ok(None);
        };
        if !pinned {
            return Ok(Some(Maker { empty_strided: empty.empty_strided, data: empty.data, place, views }));
        }
        let Some(empty_strided) = empty.pinned else { return Ok(None) };
        let maker = Maker { empty_strided, data: empty.data, place: Place::Host, views };
        let is_sound = get_or_make(&self.prepared.pinned_is_sound, py, || maker.makes_pinned(py))?;
        Ok(is_sound.then_some(maker))
    }

    /// A tensor of the sizes, strides and type of `leaf`.
    pub fn allocate_like<'py>(
        &self,
        py: Python<'py>,
        leaf: &Leaf,
        place: Place,
        pinned: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = self.named(py, leaf.element(), place, pinned)?;
        let (shape, strides) = (PyTuple::new(py, leaf.shape())?, PyTuple::new(py, leaf.strides())?);
        self.empty_strided.bind(py).call((shape, strides), Some(&named))
    }

    /// The same for each of `leaves`, and the address of each. Of many tensors the interpreter makes those alone for which there is no memory, for PyTorch's
    /// error.
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
        if let Some(first) = leaves.first().filter(|_| !self.prepared.is_noted(place, pinned)) {
            made.push(by_name(first)?);
            self.prepared.note(place, pinned);
        }
        if let Some(maker) = self.maker(py, place, pinned)? {
            let rest = leaves.get(made.len()..).unwrap_or_default();
            // PyTorch's allocator may wait for the driver, or for another thread.
            let unwrapped = py
                .detach(|| -> Vec<_> { rest.iter().map_while(|leaf| maker.make(Like::of(leaf))).collect() });
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
        Self { shape: leaf.shape(), strides: leaf.strides(), element: leaf.element() }
    }
}

/// Makes tensors in memory of a kind.
#[derive(Clone, Copy)]
struct Maker<'a> {
    empty_strided: EmptyStrided,
    data: Ask<*mut c_void>,
    place: Place,
    views: &'a Views,
}

impl<'a> Maker<'a> {
    /// `None` where PyTorch cannot make it, which it writes to the standard error.
    fn make(&self, Like { shape, strides, element }: Like<'_>) -> Option<Unwrapped<'a>> {
        let (kind, number) = match self.place {
            Place::Host => (symbols::CPU, 0),
            Place::Cuda(number) | Place::Hip(number) => (symbols::CUDA, number),
        };
        let (rank, scalar_type) = (shape.len() as i64, dtype::ALL[element].scalar_type);
        let (shape, strides) = (shape.as_ptr(), strides.as_ptr());
        let mut handle = ptr::null_mut();
        // SAFETY: the numbers are `rank` sizes and strides, none of which is negative.
        let status =
            unsafe { (self.empty_strided)(rank, shape, strides, scalar_type, kind, number, &mut handle) };
        let tensor = (status == 0).then_some(handle).map(|handle| Borrowed { handle, views: self.views })?;
        let mut data = ptr::null_mut();
        // SAFETY: the handle is a tensor.
        let status = unsafe { (self.data)(tensor.handle, &mut data) };
        (status == 0).then(|| Unwrapped(tensor, data.expose_provenance() as u64))
    }

    /// Whether what it makes is page-locked.
    fn makes_pinned(&self, py: Python<'_>) -> PyResult<bool> {
        let made = py.detach(|| self.make(Like { shape: &[2, 3], strides: &[1, 2], element: dtype::BYTE }));
        let Some(Unwrapped(tensor, address)) = made else { return Ok(false) };
        let tensor = tensor.object(py)?;
        let lies: u64 = tensor.call_method0("data_ptr")?.extract()?;
        let strides: (i64, i64) = tensor.call_method0("stride")?.extract()?;
        Ok(tensor.call_method0("is_pinned")?.is_truthy()? && (lies, strides) == (address, (1, 2)))
    }
}

/// What PyTorch is prepared for: the interpreter has made a tensor there.
#[derive(Default)]
pub struct Prepared {
    /// A bit for each device.
    devices: AtomicU64,
    pinned: AtomicBool,
    /// Whether PyTorch's function for pinned memory makes it. Tried once.
    pinned_is_sound: PyOnceLock<bool>,
}

impl Prepared {
    fn note(&self, place: Place, pinned: bool) {
        match pinned {
            true => self.pinned.store(true, Ordering::Relaxed),
            false => drop(self.devices.fetch_or(bit_of(place), Ordering::Relaxed)),
        }
    }

    fn is_noted(&self, place: Place, pinned: bool) -> bool {
        match pinned {
            true => self.pinned.load(Ordering::Relaxed),
            false => place == Place::Host || self.devices.load(Ordering::Relaxed) & bit_of(place) != 0,
        }
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
    let maker = Maker { empty_strided: empty.empty_strided, data: empty.data, place: Place::Host, views };
    let Some(Unwrapped(tensor, address)) = maker.make(Like::of(&leaf)) else {
        return Ok(false);
    };
    let tensor = tensor.object(module.py())?;
    Ok(tensor.getattr("is_cpu")?.is_truthy()? && is_like(module, &tensor, &leaf, address)?)
}
