//! Tensors in: address, sizes, strides, type and device.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyType};
use smallvec::SmallVec;
use transship::dlpack::{DLPackVersion, DLTensor};

use super::Torch;
use crate::dtype;
use crate::leaf::{Leaf, is_nowhere, may_be_nowhere};
use crate::row_by_row::RowByRow;
use crate::tree::Entries;

pub type FromPyObject = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int;

/// The table of DLPack's exchange interface, up to what is used of it.
#[repr(C)]
struct ExchangeApi {
    version: DLPackVersion,
    previous: *const c_void,
    managed_tensor_allocator: *const c_void,
    managed_tensor_from_py_object: *const c_void,
    managed_tensor_to_py_object: *const c_void,
    /// May be null.
    dltensor_from_py_object: Option<FromPyObject>,
}

/// The function that describes a tensor of this type, if the type has one. Nothing is ordered, and nothing is kept.
pub fn exchange(tensor: &Bound<'_, PyType>) -> PyResult<Option<FromPyObject>> {
    let Ok(capsule) = tensor.getattr("__dlpack_c_exchange_api__") else { return Ok(None) };
    let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
    let table = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?.cast::<ExchangeApi>();
    // SAFETY: a capsule of this name points to such a table, which lives as long as its type. Another major version is laid out otherwise.
    let table = unsafe { table.as_ref() };
    Ok(table.dltensor_from_py_object.filter(|_| table.version.major == 1))
}

impl Torch {
    /// Describes a tensor; `None` for those that PyTorch has to copy itself: without plain memory (sparse, quantised, meta, fake), with values
    /// that are not what the memory holds (conjugated, negated), or of types that this module does not know.
    #[inline]
    pub fn read(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Leaf>> {
        if !self.is_plain(tensor)? {
            return Ok(None);
        }
        let leaf = match self.read {
            // SAFETY: the object is a tensor of PyTorch's.
            Some(read) => unsafe { by_exchange(read, tensor) },
            None => self.by_attributes(tensor)?,
        };
        let Some(leaf) = leaf else { return Ok(None) };
        if leaf.type_of_elements().may_be_narrower() && !self.has_elements(tensor, leaf.element())? {
            return Ok(None);
        }
        let is_nowhere = leaf.bytes > 0
            && may_be_nowhere(leaf.address)
            && is_nowhere(leaf.address, leaf.element(), self.storage_offset(tensor)?);
        Ok(if is_nowhere || self.is_lazy(tensor)? { None } else { Some(leaf) })
    }

    /// Has the processor fetch tensors that come soon after item number `index` of a list.
    #[inline]
    pub fn expect(&self, list: &Bound<'_, PyList>, index: usize) {
        if let Some(direct) = &self.direct {
            direct.expect(list, index, self.tensor.as_ptr().cast());
        }
    }

    /// Has it fetch the values of these entries of a dict.
    #[inline]
    pub fn expect_values(&self, entries: &Entries<'_>) {
        if let Some(direct) = &self.direct {
            direct.expect_values(entries, self.tensor.as_ptr().cast());
        }
    }

    /// Reads a tensor whose class is `torch.Tensor`, if it may lie row by row and is read the fast way. `None` says nothing: [`read`](Self::read) looks
    /// at all others.
    ///
    /// # Safety
    ///
    /// That is its class. While what comes back is there, so is the tensor, and nothing else runs.
    #[inline(always)]
    pub unsafe fn look_row_by_row<'a>(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<RowByRow<'a>>> {
        // SAFETY: the caller has looked at its class.
        let known = self.direct.as_ref().and_then(|direct| unsafe { direct.known_place(tensor) });
        let is_fast = self.direct.is_some() || self.read.is_some();
        // Asked first: code of the program may run for it.
        if !is_fast || known.is_none() && self.is_lazy(tensor)? {
            return Ok(None);
        }
        match (&self.direct, self.read) {
            // SAFETY: the caller's promise.
            (Some(direct), _) => Ok(unsafe { direct.read(tensor, known) }),
            (None, Some(read)) => {
                // SAFETY: the same; it has its numbers as long as nothing else runs.
                let found = unsafe { described(read, tensor).and_then(|tensor| RowByRow::read(&tensor)) };
                let is_certain = |found: &RowByRow<'_>| {
                    !may_be_nowhere(found.address) && !dtype::ALL[found.element].may_be_narrower()
                };
                Ok(found.filter(is_certain))
            }
            (None, None) => Ok(None),
        }
    }

    /// Whether its elements are of this type.
    fn has_elements(&self, tensor: &Bound<'_, PyAny>, element: usize) -> PyResult<bool> {
        let dtype = match self.is_exact(tensor) {
            true => tensor.getattr(pyo3::intern!(tensor.py(), "dtype"))?,
            false => self.unasked(tensor.py(), || self.own(tensor, "dtype"))?,
        };
        Ok(dtype.is(self.dtype(element)?))
    }

    /// Whether the values of a tensor are not what its memory holds.
    #[inline(always)]
    fn is_lazy(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        // SAFETY: the caller has looked at its class.
        match self.direct.as_ref().and_then(|direct| unsafe { direct.is_lazy(tensor) }) {
            Some(is_lazy) => Ok(is_lazy),
            None => self.says_that_it_is_lazy(tensor),
        }
    }

    /// Whether no subclass of the program's stands between the tensor and its memory.
    fn is_plain(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let kind = tensor.get_type_ptr().cast();
        if kind == self.tensor.as_ptr() || kind == self.parameter.as_ptr() {
            return Ok(true);
        }
        Ok(tensor.get_type().getattr("__torch_dispatch__")?.is(&self.tensor_dispatch))
    }

    /// What a class of the program's says of itself is not asked for.
    fn by_attributes(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Leaf>> {
        let py = tensor.py();
        if self.is_exact(tensor) {
            return self.by_own_attributes(py, |name| tensor.getattr(name));
        }
        self.unasked(py, || self.by_own_attributes(py, |name| self.own(tensor, name)))
    }

    /// How many elements of its storage lie in front of the first one.
    pub fn storage_offset(&self, tensor: &Bound<'_, PyAny>) -> PyResult<i64> {
        if self.is_exact(tensor) {
            return tensor.call_method0(pyo3::intern!(tensor.py(), "storage_offset"))?.extract();
        }
        self.unasked(tensor.py(), || self.own(tensor, "storage_offset")?.call0()?.extract())
    }

    /// Whether PyTorch conjugates or negates what it reads.
    #[cold]
    fn says_that_it_is_lazy(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.is_exact(tensor) {
            let says = |name| tensor.call_method0(name)?.is_truthy();
            return Ok(says("is_neg")? || says("is_conj")?);
        }
        let says = |name| self.own(tensor, name)?.call0()?.is_truthy();
        self.unasked(tensor.py(), || Ok(says("is_neg")? || says("is_conj")?))
    }

    /// An attribute as `torch.Tensor` has it.
    fn own<'py>(&self, tensor: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.tensor.bind(tensor.py()).getattr(name)?.call_method1("__get__", (tensor,))
    }

    /// Calls no `__torch_function__` of a class meanwhile.
    fn unasked<T>(&self, py: Python<'_>, ask: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let guards = self.module.bind(py).getattr("_C")?;
        // PyTorch 2.0 and newer; before, the other one did so.
        let guard = guards
            .getattr("DisableTorchFunctionSubclass")
            .or_else(|_| guards.getattr("DisableTorchFunction"))?
            .call0()?;
        guard.call_method0("__enter__")?;
        let answer = ask();
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        answer
    }

    fn by_own_attributes<'py>(
        &self,
        py: Python<'py>,
        own: impl Fn(&str) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Leaf>> {
        let strided = self.module.bind(py).getattr("strided")?;
        if !own("layout")?.is(&strided) || own("is_nested")?.is_truthy()? {
            return Ok(None);
        }
        let dtype = own("dtype")?;
        let known = self.dtypes.iter().position(|known| known.as_ref().is_some_and(|known| dtype.is(known)));
        let (Some(element), Some(place)) = (known, self.place_of(&own("device")?)?) else {
            return Ok(None);
        };
        let shape: SmallVec<[i64; 8]> = own("shape")?.extract::<Vec<i64>>()?.into();
        let strides: Vec<i64> = own("stride")?.call0()?.extract()?;
        let mut numbers = shape;
        numbers.extend_from_slice(&strides);
        let address: u64 = own("data_ptr")?.call0()?.extract()?;
        Ok(Leaf::new(address, place, element, numbers))
    }
}

/// # Safety
///
/// `read` is PyTorch's, and this is a tensor of its.
#[inline]
pub unsafe fn by_exchange(read: FromPyObject, tensor: &Bound<'_, PyAny>) -> Option<Leaf> {
    // SAFETY: the caller's promise; the numbers are those of the tensor, which is alive.
    unsafe { Leaf::read(&described(read, tensor)?) }
}

/// # Safety
///
/// As [`by_exchange`].
#[inline]
unsafe fn described(read: FromPyObject, tensor: &Bound<'_, PyAny>) -> Option<DLTensor> {
    let mut described = std::mem::MaybeUninit::<DLTensor>::uninit();
    // SAFETY: the caller's promise; it writes the struct, or says that it has failed.
    if unsafe { read(tensor.as_ptr().cast(), described.as_mut_ptr()) } != 0 {
        // SAFETY: the GIL is held. What it cannot describe is left to PyTorch, which has an error of its own, if any.
        unsafe { ffi::PyErr_Clear() };
        return None;
    }
    // SAFETY: written just now.
    Some(unsafe { described.assume_init() })
}
