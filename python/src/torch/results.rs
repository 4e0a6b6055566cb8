//! Tensors out: chunks, and parts of them.

use std::ffi::c_void;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::{Torch, symbols};
use crate::dtype;
use crate::leaf::Leaf;
use crate::place::Place;

/// A tensor that is a part of a chunk.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub leaf: &'a Leaf,
    /// In bytes.
    pub offset: usize,
}

impl Torch {
    /// Memory of so many bytes, out of PyTorch's allocators: that of the device on its current stream, or that for pinned memory.
    pub fn allocate<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        place: Place,
        pinned: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = self.named(py, dtype::BYTE, place, pinned)?;
        self.empty.bind(py).call((bytes,), Some(&named))
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

    fn dtype(&self, element: usize) -> PyResult<&Py<PyAny>> {
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

    /// What makes tensors of the parts of a chunk of bytes. They share its storage.
    pub fn parts_of<'a, 'py>(&'a self, chunk: &Bound<'py, PyAny>) -> PyResult<Parts<'a, 'py>> {
        let by = match &self.views {
            Some((views, handles)) => By::Pool(Borrowed::of(chunk, handles, views)?),
            None => By::Strides(dtype::ALL.iter().map(|_| None).collect()),
        };
        Ok(Parts { torch: self, chunk: chunk.clone(), by })
    }
}

/// Makes tensors of the parts of a chunk.
pub struct Parts<'a, 'py> {
    torch: &'a Torch,
    chunk: Bound<'py, PyAny>,
    by: By<'a>,
}

enum By<'a> {
    Pool(Borrowed<'a>),
    /// The whole chunk as elements of each type that was asked for.
    Strides(Vec<Option<Py<PyAny>>>),
}

impl Parts<'_, '_> {
    pub fn make(&mut self, part: Part<'_>) -> PyResult<Py<PyAny>> {
        match &mut self.by {
            By::Pool(handle) => handle.part(self.chunk.py(), part),
            By::Strides(typed) => by_strides(self.torch, &self.chunk, part, typed),
        }
    }
}

fn by_strides(
    torch: &Torch,
    chunk: &Bound<'_, PyAny>,
    Part { leaf, offset }: Part<'_>,
    typed: &mut [Option<Py<PyAny>>],
) -> PyResult<Py<PyAny>> {
    let py = chunk.py();
    let size = leaf.type_of_elements().bytes();
    if typed[leaf.element].is_none() {
        let bytes: usize = chunk.call_method0("numel")?.extract()?;
        let whole = chunk.call_method1("narrow", (0, 0, bytes - bytes % size))?;
        typed[leaf.element] = Some(whole.call_method1("view", (torch.dtype(leaf.element)?,))?.unbind());
    }
    let (shape, strides) = (PyTuple::new(py, leaf.shape())?, PyTuple::new(py, leaf.strides())?);
    let whole = typed[leaf.element].as_ref().map_or(py.None(), |whole| whole.clone_ref(py));
    Ok(whole.bind(py).call_method1("as_strided", (shape, strides, offset / size))?.unbind())
}

/// A share of a tensor, for functions of C.
struct Borrowed<'a> {
    handle: symbols::Handle,
    views: &'a symbols::Views,
}

impl<'a> Borrowed<'a> {
    fn of(chunk: &Bound<'_, PyAny>, handles: &Py<PyAny>, views: &'a symbols::Views) -> PyResult<Self> {
        let list = PyList::new(chunk.py(), [chunk])?;
        let capsule = handles.bind(chunk.py()).call1((list,))?.get_item(0)?;
        // SAFETY: it is a capsule without a name.
        let handle = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if handle.is_null() {
            return Err(PyErr::fetch(chunk.py()));
        }
        Ok(Self { handle, views })
    }

    fn part(&self, py: Python<'_>, Part { leaf, offset }: Part<'_>) -> PyResult<Py<PyAny>> {
        let mut handle: *mut c_void = std::ptr::null_mut();
        let (rank, scalar_type) = (leaf.rank() as i64, leaf.type_of_elements().scalar_type);
        // SAFETY: the numbers are `rank` sizes and strides; the plan has placed the leaf within the chunk, at a multiple of its elements.
        let status = unsafe {
            let (shape, strides) = (leaf.shape().as_ptr(), leaf.strides().as_ptr());
            (self.views.alloc_from_pool)(
                self.handle,
                offset as i64,
                scalar_type,
                rank,
                shape,
                strides,
                &mut handle,
            )
        };
        if status != 0 {
            return Err(PyRuntimeError::new_err(
                "PyTorch has made no tensor out of a chunk (aoti_torch__alloc_from_pool)",
            ));
        }
        let part = Self { handle, views: self.views };
        // SAFETY: the handle is a tensor; a new reference comes back, or null with an error.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.views.wrap)(part.handle)) }.map(Bound::unbind)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made for us, and is used no more. The GIL is held.
        unsafe { (self.views.delete)(self.handle) };
    }
}
