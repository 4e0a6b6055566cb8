//! Tensors in, without asking the interpreter who holds it: an object of PyTorch's has its `at::Tensor` behind what every object begins with
//! (`THPVariable` in `torch/csrc/autograd/python_variable.h`), and functions of C say what that is. Whether it lies there is looked at once.

use std::mem::{self, MaybeUninit};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::lazy::LazyBits;
use super::symbols::{self, Ask, CPU, CUDA, Fields, Handle};
use crate::dtype;
use crate::fetch::{LINE, fetch};
use crate::leaf::{Leaf, is_nowhere, may_be_nowhere};
use crate::leaf_slots::Slot;
use crate::place::Place;
use crate::row_by_row::RowByRow;
use crate::tree::{AT_ONCE, Entries};

/// Reads tensors of PyTorch where they are.
pub struct Direct {
    fields: Fields,
    is_rocm: bool,
    /// Without them each tensor is asked.
    lazy: Option<LazyBits>,
    /// One tensor could not be asked. PyTorch writes a line to the standard error for each: it is asked so no more.
    has_failed: AtomicBool,
}

/// `Layout::Strided` of PyTorch.
const STRIDED: i32 = 0;

impl Direct {
    /// `None` where PyTorch lacks a function, or its objects are laid out otherwise. `handles` makes handles of tensors by PyTorch itself, and `delete`
    /// lets go of them; `read` is the way that is compared with.
    pub fn find(
        module: &Bound<'_, PyAny>,
        folder: &Path,
        (handles, delete): (&Bound<'_, PyAny>, symbols::Delete),
        is_rocm: bool,
        read: &dyn Fn(&Bound<'_, PyAny>) -> Option<Leaf>,
    ) -> PyResult<Option<Self>> {
        let Some(fields) = symbols::fields(folder) else { return Ok(None) };
        let mut direct = Self { fields, is_rocm, lazy: None, has_failed: AtomicBool::new(false) };
        for (shape, dtype) in [((3, 2), "float32"), ((1, 5), "int64"), ((7, 1), "bool")] {
            let named = PyDict::new(module.py());
            named.set_item("dtype", module.getattr(dtype)?)?;
            named.set_item("device", "cpu")?;
            let tensor = module.getattr("empty")?.call((shape,), Some(&named))?;
            if !is_inside(&tensor, handles, delete)? || !direct.reads_as(&tensor, read) {
                return Ok(None);
            }
        }
        direct.lazy = LazyBits::find(module, implementation)?;
        Ok(Some(direct))
    }

    /// Whether the values of a tensor are not what its memory holds. `None` if that has to be asked.
    ///
    /// # Safety
    ///
    /// The class of the object is `torch.Tensor`, or derived of it.
    #[inline]
    pub unsafe fn is_lazy(&self, tensor: &Bound<'_, PyAny>) -> Option<bool> {
        // SAFETY: `find` has seen that objects of this class have their tensors there, and those derived of it begin as they do.
        self.lazy.as_ref().map(|bits| unsafe { bits.are_set(implementation(tensor)) })
    }

    /// Where a tensor is that is no different from most: it has memory of its own, and its values are what that holds. `None` says nothing.
    ///
    /// # Safety
    ///
    /// The class of the object is `torch.Tensor`.
    #[inline]
    pub unsafe fn known_place(&self, tensor: &Bound<'_, PyAny>) -> Option<Place> {
        // SAFETY: as in `is_lazy`.
        let is_plain =
            self.lazy.as_ref().is_some_and(|bits| unsafe { bits.are_plain(implementation(tensor)) });
        is_plain.then_some(Place::Host)
    }

    /// Looks at a tensor that may lie row by row, which is at this [known place](Self::known_place). `None` says nothing: it is to be read otherwise.
    ///
    /// # Safety
    ///
    /// The class of the object is `torch.Tensor`. While what comes back is there, so is the tensor, and nothing else runs.
    #[inline(always)]
    pub unsafe fn read<'a>(&self, tensor: &Bound<'_, PyAny>, known: Option<Place>) -> Option<RowByRow<'a>> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let handle = inside(tensor);
        // SAFETY: the caller's promise, and `find` has seen that objects of this class have their tensors there. It lives while the object does.
        let found = unsafe { self.look(handle, known) };
        if found.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        found.ok().flatten()
    }

    /// Has the processor fetch tensors that come soon after item number `index` of a list, if their class is `tensor`. Else it would wait for memory three times
    /// for each.
    #[inline]
    pub fn expect(&self, list: &Bound<'_, PyList>, index: usize, tensor: *const ffi::PyTypeObject) {
        if cfg!(Py_GIL_DISABLED) {
            // Other threads may change the list.
            return;
        }
        if let Some(object) = item(list, index + FAR) {
            fetch(object.cast());
        }
        // SAFETY: the list holds the object, and nothing runs meanwhile. `find` has seen where such tensors are.
        let implementation =
            |index| item(list, index).and_then(|object| unsafe { implementation_of(object, tensor) });
        if let Some(found) = implementation(index + MIDDLE) {
            fetch_implementation(found);
        }
        if let Some(found) = implementation(index + NEAR) {
            // SAFETY: that of an object in the list.
            unsafe { fetch_storage(found) };
        }
    }

    /// The same for the values of entries of a dict: it waits for all of them at a time.
    #[inline]
    pub fn expect_values(&self, entries: &Entries<'_>, tensor: *const ffi::PyTypeObject) {
        let mut found = [None; AT_ONCE];
        for ((_, value), found) in entries.iter().map_while(Option::as_ref).zip(&mut found) {
            // SAFETY: the object is kept. `find` has seen where such tensors are.
            *found = unsafe { implementation_of(value.as_ptr(), tensor) };
            found.inspect(|found| fetch_implementation(*found));
        }
        for found in found.into_iter().flatten() {
            // SAFETY: that of a value, and nothing has run since.
            unsafe { fetch_storage(found) };
        }
    }

    /// An error for a tensor that cannot be asked.
    ///
    /// # Safety
    ///
    /// The handle is that of a tensor, which is at the place that is known. It lives as long as what comes back, and nothing else runs meanwhile.
    #[inline(always)]
    unsafe fn look<'a>(&self, handle: Handle, known: Option<Place>) -> Result<Option<RowByRow<'a>>, Failed> {
        let Fields { device_type, device_index, layout, dtype, dim, sizes, strides, data, .. } = self.fields;
        // SAFETY: the caller's promise. What has no plain memory is not asked for it: PyTorch would write that down as an error.
        unsafe {
            if known.is_none() && ask(layout, handle)? != STRIDED {
                return Ok(None);
            }
            let place = match known {
                Some(place) => place,
                None => match ask(device_type, handle)? {
                    CPU => Place::Host,
                    CUDA if self.is_rocm => Place::Hip(ask(device_index, handle)?),
                    CUDA => Place::Cuda(ask(device_index, handle)?),
                    _ => return Ok(None),
                },
            };
            let Some(element) = dtype::number_of_scalar_type(ask(dtype, handle)?) else { return Ok(None) };
            let rank = usize::try_from(ask(dim, handle)?).map_err(|_| Failed)?;
            let (sizes, strides) = (ask(sizes, handle)?, ask(strides, handle)?);
            let address = ask(data, handle)?.expose_provenance() as u64;
            if rank > 0 && (sizes.is_null() || strides.is_null()) {
                return Ok(None);
            }
            let slice = |start: *const i64| match rank {
                0 => &[][..],
                // `rank` numbers, which live as long as the tensor does and nothing else runs.
                _ => std::slice::from_raw_parts(start, rank),
            };
            let is_nowhere = may_be_nowhere(address)
                && is_nowhere(address, element, ask(self.fields.storage_offset, handle)?);
            Ok(RowByRow::of(address, place, element, slice(sizes), slice(strides)).filter(|_| !is_nowhere))
        }
    }

    /// Whether a tensor is what `read` says of it.
    fn reads_as(&self, tensor: &Bound<'_, PyAny>, read: &dyn Fn(&Bound<'_, PyAny>) -> Option<Leaf>) -> bool {
        let what = |leaf: &Leaf| {
            (leaf.address, leaf.place, leaf.element(), leaf.numbers.clone(), leaf.bytes, leaf.order)
        };
        let mut slots = Vec::new();
        // SAFETY: PyTorch has just made it, and `is_inside` has found its handle.
        if let Some(found) = unsafe { self.read(tensor, None) } {
            // What is not pushed is not the same below.
            drop(found.push(tensor.clone().unbind(), &mut slots));
        }
        let here = match slots.first() {
            Some(Slot::Leaf(_, leaf)) => Some(what(leaf)),
            _ => None,
        };
        here.is_some() && here == read(tensor).as_ref().map(what)
    }
}

/// How many items before it is read the object of a tensor is fetched, what it stands for (its `TensorImpl`), and the storage of that.
const FAR: usize = 12;
const MIDDLE: usize = 8;
const NEAR: usize = 4;
/// The lines that a `TensorImpl` of 208 bytes lies in.
const LINES: usize = 4;
/// Where a `TensorImpl` has its storage. If another PyTorch has it elsewhere, what is fetched is of no use.
const STORAGE: usize = 16;

/// Borrowed from the list.
#[inline]
fn item(list: &Bound<'_, PyList>, index: usize) -> Option<*mut ffi::PyObject> {
    if index >= list.len() {
        return None;
    }
    // SAFETY: a list, which is as long.
    let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t) };
    Some(item).filter(|item| !item.is_null())
}

/// The `TensorImpl` of an object whose class is `tensor`.
///
/// # Safety
///
/// The object is alive, and those of this class have their tensors behind what every object begins with.
#[inline]
unsafe fn implementation_of(
    object: *mut ffi::PyObject,
    tensor: *const ffi::PyTypeObject,
) -> Option<*const u8> {
    // SAFETY: the caller's promise; an `at::Tensor` is one pointer.
    let found = unsafe {
        match ffi::Py_TYPE(object).cast_const() == tensor {
            true => *object.cast::<u8>().wrapping_add(mem::size_of::<ffi::PyObject>()).cast::<*const u8>(),
            false => return None,
        }
    };
    (!found.is_null()).then_some(found)
}

#[inline]
fn fetch_implementation(implementation: *const u8) {
    (0..LINES).for_each(|line| fetch(implementation.wrapping_add(line * LINE)));
}

/// # Safety
///
/// It is a `TensorImpl`, which is alive.
#[inline]
unsafe fn fetch_storage(implementation: *const u8) {
    // SAFETY: it is larger than that.
    let storage = unsafe { *implementation.wrapping_add(STORAGE).cast::<*const u8>() };
    // What is asked of it lies in the first 64 bytes, which may begin anywhere in a line.
    fetch(storage);
    fetch(storage.wrapping_add(LINE - 16));
}

struct Failed;

/// # Safety
///
/// As [`Direct::look`].
#[inline]
unsafe fn ask<T>(question: Ask<T>, handle: Handle) -> Result<T, Failed> {
    let mut answer = MaybeUninit::uninit();
    // SAFETY: the caller's promise; the answer is written, or an error is returned.
    match unsafe { question(handle, answer.as_mut_ptr()) } {
        // SAFETY: written just now.
        0 => Ok(unsafe { answer.assume_init() }),
        _ => Err(Failed),
    }
}

/// The `TensorImpl` of an object that `Direct::find` has seen to have its tensor there.
#[inline]
fn implementation(tensor: &Bound<'_, PyAny>) -> *const u64 {
    // SAFETY: an `at::Tensor` is one pointer.
    unsafe { *inside(tensor).cast::<*const u64>() }
}

/// Where the tensor of an object is.
fn inside(tensor: &Bound<'_, PyAny>) -> Handle {
    tensor.as_ptr().cast::<u8>().wrapping_add(mem::size_of::<ffi::PyObject>()).cast()
}

/// Whether a handle that PyTorch makes of a tensor of its own has what lies in its object: the address of the same `TensorImpl`.
fn is_inside(
    tensor: &Bound<'_, PyAny>,
    handles: &Bound<'_, PyAny>,
    delete: symbols::Delete,
) -> PyResult<bool> {
    let size: usize = tensor.get_type().getattr("__basicsize__")?.extract()?;
    if size < mem::size_of::<ffi::PyObject>() + mem::size_of::<usize>() {
        return Ok(false);
    }
    let list = PyList::new(tensor.py(), [tensor])?;
    let capsule = handles.call1((list,))?.get_item(0)?;
    // SAFETY: it is a capsule without a name.
    let handle = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if handle.is_null() {
        return Err(PyErr::fetch(tensor.py()));
    }
    // SAFETY: an `at::Tensor` is one pointer, the object has as many bytes (`__basicsize__`), and the handle was made for us.
    unsafe {
        let is_same = *handle.cast::<usize>() == *inside(tensor).cast::<usize>();
        delete(handle);
        Ok(is_same)
    }
}
