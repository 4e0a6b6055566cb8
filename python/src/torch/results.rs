//! Tensors out: parts of chunks.

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
    if typed[leaf.element()].is_none() {
        let bytes: usize = chunk.call_method0("numel")?.extract()?;
        let whole = chunk.call_method1("narrow", (0, 0, bytes - bytes % size))?;
        typed[leaf.element()] = Some(whole.call_method1("view", (torch.dtype(leaf.element())?,))?.unbind());
    }
    let (shape, strides) = (PyTuple::new(py, leaf.shape())?, PyTuple::new(py, leaf.strides())?);
    let whole = typed[leaf.element()].as_ref().map_or(py.None(), |whole| whole.clone_ref(py));
    Ok(whole.bind(py).call_method1("as_strided", (shape, strides, offset / size))?.unbind())
}

/// A share of a tensor, for functions of C.
pub struct Borrowed<'a> {
    pub handle: symbols::Handle,
    pub views: &'a symbols::Views,
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

    #[inline]
    fn part(&self, py: Python<'_>, part: Part<'_>) -> PyResult<Py<PyAny>> {
        match self.views.part_of {
            // SAFETY: the plan has placed the leaf within the chunk, at a multiple of its elements. A chunk begins where its storage does.
            Some(part_of) => unsafe { self.part_in_place(py, part_of, part) }.map(|(part, _)| part),
            None => self.part_by_handle(py, part),
        }
    }

    /// The part, and whether it was taken from where it came back.
    ///
    /// # Safety
    ///
    /// The part lies in the chunk, at a multiple of its elements, and the chunk begins where its storage does: else PyTorch throws.
    #[inline]
    unsafe fn part_in_place(
        &self,
        py: Python<'_>,
        part_of: symbols::PartOf,
        Part { leaf, offset }: Part<'_>,
    ) -> PyResult<(Py<PyAny>, bool)> {
        let numbers = |numbers: &[i64]| symbols::Numbers { first: numbers.as_ptr(), count: numbers.len() };
        // No number of these is larger than 44.
        let scalar_type = leaf.type_of_elements().scalar_type as i8;
        let (shape, strides) = (numbers(leaf.shape()), numbers(leaf.strides()));
        // SAFETY: the caller's promise; the first word is written.
        let made =
            unsafe { part_of(self.handle, offset as i64, scalar_type, shape, strides).tensor.assume_init() };
        let mut tensor = made;
        // SAFETY: an `at::Tensor` is one pointer. It is taken, and what is left has nothing to be let go of; where there is an error, which is where memory
        // is short, it stays and is leaked.
        let object =
            unsafe { Bound::from_owned_ptr_or_err(py, (self.views.wrap)((&raw mut tensor).cast())) }?;
        Ok((object.unbind(), tensor != made))
    }

    fn part_by_handle(&self, py: Python<'_>, Part { leaf, offset }: Part<'_>) -> PyResult<Py<PyAny>> {
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
        Self { handle, views: self.views }.object(py).map(Bound::unbind)
    }

    /// Its object.
    pub fn object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        // SAFETY: the handle is a tensor, which is taken or shared; a new reference comes back, or null with an error.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.views.wrap)(self.handle)) }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made for us, and is used no more. The GIL is held.
        unsafe { (self.views.delete)(self.handle) };
    }
}

/// The fast way to parts, without what does not do what it should, which is tried once.
pub fn tried(
    module: &Bound<'_, PyAny>,
    mut views: symbols::Views,
    handles: Py<PyAny>,
) -> PyResult<(symbols::Views, Py<PyAny>)> {
    if let Some(part_of) = views.part_of
        && !is_sound(module, &views, part_of, &handles)?
    {
        views.part_of = None;
    }
    Ok((views, handles))
}

fn is_sound(
    module: &Bound<'_, PyAny>,
    views: &symbols::Views,
    part_of: symbols::PartOf,
    handles: &Py<PyAny>,
) -> PyResult<bool> {
    let py = module.py();
    let named = PyDict::new(py);
    named.set_item("dtype", module.getattr("uint8")?)?;
    named.set_item("device", "cpu")?;
    let chunk = module.getattr("empty")?.call((64,), Some(&named))?;
    let address: u64 = chunk.call_method0("data_ptr")?.extract()?;
    let element = dtype::number_of_name("int16").unwrap_or_default();
    let numbers = smallvec::SmallVec::from_slice(&[2, 3, 1, 2]);
    let Some(leaf) = Leaf::new(address, Place::Host, element, numbers) else { return Ok(false) };
    let borrowed = Borrowed::of(&chunk, handles, views)?;
    // SAFETY: it is within the chunk, which is new.
    let (part, is_taken) = unsafe { borrowed.part_in_place(py, part_of, Part { leaf: &leaf, offset: 8 }) }?;
    let part = part.bind(py);
    Ok(is_taken && is_like(module, part, &leaf, address + 8)?)
}

/// Whether a tensor of `int16` lies at `address`, as `leaf` does.
pub fn is_like(
    module: &Bound<'_, PyAny>,
    tensor: &Bound<'_, PyAny>,
    leaf: &Leaf,
    address: u64,
) -> PyResult<bool> {
    let lies = tensor.call_method0("data_ptr")?.extract::<u64>()? == address;
    let shape: Vec<i64> = tensor.getattr("shape")?.extract()?;
    let strides: Vec<i64> = tensor.call_method0("stride")?.extract()?;
    let has_type = tensor.getattr("dtype")?.is(&module.getattr("int16")?);
    Ok(lies && has_type && shape == leaf.shape() && strides == leaf.strides())
}
