//! Tensors of any library that speaks DLPack, in and out.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict};
use smallvec::SmallVec;
use transship::dlpack::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, VERSION};

use crate::leaf::Leaf;
use crate::modules;
use crate::order;
use crate::place::Place;
use crate::torch::Torch;

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";
/// Flags of DLPack: the memory must not be written; it is that of a copy.
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// Describes an object that has `__dlpack__`. What comes with it keeps its memory. What lies on a device is in the order that copies from there
/// come behind.
pub fn read<'py>(object: &Bound<'py, PyAny>, torch: Option<&Torch>) -> PyResult<(Bound<'py, PyAny>, Leaf)> {
    let read = read_capsule(ask(object, torch)?)?;
    let is_as_it_is = |(_, leaf): &(_, Leaf)| leaf.is_aligned();
    // Arrays of numpy may go backwards, and lie at any address.
    if !read.as_ref().is_some_and(is_as_it_is)
        && let Some(numpy) = modules::imported(intern!(object.py(), "numpy"))
        && object.is_instance(&numpy.getattr("ndarray")?)?
        && let Some(copied) = read_capsule(ask(&numpy.call_method1("array", (object,))?, torch)?)?
    {
        return Ok(copied);
    }
    if let Some(read) = read {
        return Ok(read);
    }
    let text = "a tensor of an element type that is not known here, on a device that is not, or with negative strides";
    Err(PyTypeError::new_err(text))
}

/// As [`read`], for a tensor that is to be written.
pub fn read_to_write<'py>(
    object: &Bound<'py, PyAny>,
    torch: Option<&Torch>,
) -> PyResult<(Bound<'py, PyAny>, Leaf)> {
    let capsule = ask(object, torch)?;
    if let Some(managed) = versioned(capsule.cast()?)?
        && managed.flags & (READ_ONLY | IS_COPIED) != 0
    {
        return Err(PyValueError::new_err("a tensor that must not be written is not copied into"));
    }
    let text = "a tensor of an element type that is not known here, on a device that is not, or with negative strides";
    read_capsule(capsule)?.ok_or_else(|| PyTypeError::new_err(text))
}

fn read_capsule(capsule: Bound<'_, PyAny>) -> PyResult<Option<(Bound<'_, PyAny>, Leaf)>> {
    let capsule = capsule.cast_into::<PyCapsule>()?;
    let described = described(&capsule)?;
    // SAFETY: a capsule of such a name that nobody has consumed holds a valid struct, for as long as it lives.
    let leaf = unsafe { Leaf::read(&described) };
    Ok(leaf.map(|leaf| (capsule.into_any(), leaf)))
}

/// What arrays of numpy's are asked for: the class, and the arguments of `__dlpack__`.
struct Arrays {
    class: Py<PyAny>,
    named: Py<PyDict>,
}

static ARRAYS: PyOnceLock<Arrays> = PyOnceLock::new();

impl Arrays {
    /// `None` as long as the program has not imported numpy.
    fn get(py: Python<'_>) -> PyResult<Option<&Self>> {
        if let Some(arrays) = ARRAYS.get(py) {
            return Ok(Some(arrays));
        }
        let numpy = modules::imported(intern!(py, "numpy"));
        let Some(class) = numpy.and_then(|numpy| numpy.getattr("ndarray").ok()) else { return Ok(None) };
        let named = PyDict::new(py);
        named.set_item("max_version", (VERSION.major, VERSION.minor))?;
        ARRAYS.get_or_try_init(py, || Ok(Self { class: class.unbind(), named: named.unbind() })).map(Some)
    }
}

/// Of an array of numpy's, which lies on the host. `None` for all else, and where numpy refuses, or is too old to be asked so.
fn ask_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let Some(arrays) = Arrays::get(py)? else { return Ok(None) };
    if object.get_type_ptr() != arrays.class.as_ptr().cast() {
        return Ok(None);
    }
    Ok(object.call_method(pyo3::intern!(py, "__dlpack__"), (), Some(arrays.named.bind(py))).ok())
}

fn ask<'py>(object: &Bound<'py, PyAny>, torch: Option<&Torch>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if let Some(capsule) = ask_array(object)? {
        return Ok(capsule);
    }
    let named = PyDict::new(py);
    named.set_item("max_version", (VERSION.major, VERSION.minor))?;
    let (kind, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    let place = Place::of(transship::dlpack::DLDevice { device_type: kind, device_id: number });
    if let Some(place @ (Place::Cuda(_) | Place::Hip(_))) = place {
        named.set_item("stream", named_in_dlpack(place, order::handle_of(py, torch, place)))?;
    }
    match object.call_method("__dlpack__", (), Some(&named)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            named.del_item("max_version")?;
            object.call_method("__dlpack__", (), Some(&named))
        }
        // What cannot go out at all, such as objects in an array of numpy.
        Err(error) if error.is_instance_of::<PyBufferError>(py) => Err(refused(object, error)),
        answer => answer,
    }
}

/// Says what to do instead. A list of what an array holds goes through, unless that is tensors.
#[cold]
fn refused(object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let (py, class) = (object.py(), object.get_type());
    let elements = object.getattr("dtype").map(|dtype| format!(" of {dtype}")).unwrap_or_default();
    let said = error.value(py).to_string();
    let said = said.trim_end_matches('.');
    let instead = match object.hasattr("tolist") {
        Ok(true) => {
            "give it other elements (astype) or strides (numpy.ascontiguousarray), make a list of it (tolist), which goes through, or take it out of the structure"
        }
        _ => "take it out of the structure",
    };
    let refused = PyTypeError::new_err(format!("a {class}{elements}: {said}; {instead}"));
    refused.set_cause(py, Some(error));
    refused
}

/// What DLPack calls a stream: the default one of CUDA is 1 there.
fn named_in_dlpack(place: Place, handle: usize) -> usize {
    if matches!(place, Place::Cuda(_)) { handle.max(1) } else { handle }
}

/// What such a capsule holds; `None` for another one.
fn versioned<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<Option<&'a DLManagedTensorVersioned>> {
    let Ok(managed) = capsule.pointer_checked(Some(VERSIONED)) else { return Ok(None) };
    let managed = managed.cast::<DLManagedTensorVersioned>();
    // SAFETY: whatever the version, it comes first. No reference yet to what may be laid out otherwise.
    let DLPackVersion { major, minor } = unsafe { (&raw const (*managed.as_ptr()).version).read() };
    match major {
        // SAFETY: this is what capsules of this name hold, for as long as they live.
        1 => Ok(Some(unsafe { managed.as_ref() })),
        _ => Err(PyBufferError::new_err(format!("DLPack {major}.{minor} is none that is known here"))),
    }
}

fn described(capsule: &Bound<'_, PyCapsule>) -> PyResult<DLTensor> {
    if let Some(managed) = versioned(capsule)? {
        return Ok(managed.dl_tensor);
    }
    let managed = capsule.pointer_checked(Some(UNVERSIONED))?;
    // SAFETY: as above.
    Ok(unsafe { managed.cast::<DLManagedTensor>().as_ref() }.dl_tensor)
}

/// What goes out: the struct, its numbers, and what keeps the memory.
struct Exported {
    versioned: DLManagedTensorVersioned,
    unversioned: DLManagedTensor,
    numbers: SmallVec<[i64; 8]>,
    /// Dropped on any thread, without the GIL.
    _keeper: transship::Tensor,
}

/// A capsule of a tensor whose memory `keeper` keeps.
pub fn export<'py>(
    py: Python<'py>,
    leaf: &Leaf,
    keeper: transship::Tensor,
    is_versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = DLTensor {
        data: std::ptr::with_exposed_provenance_mut(usize::try_from(leaf.address).unwrap_or(0)),
        device: leaf.place.dl_device(),
        ndim: leaf.rank() as i32,
        dtype: leaf.type_of_elements().data_type(),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let all = Box::into_raw(Box::new(Exported {
        versioned: DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: 0,
            dl_tensor: tensor,
        },
        unversioned: DLManagedTensor {
            dl_tensor: tensor,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_unversioned),
        },
        numbers: leaf.numbers.clone(),
        _keeper: keeper,
    }));
    // SAFETY: it is alive, and nobody else has it; there are twice as many numbers as the rank. They stay where they are: a box that moves
    // would take its pointers along.
    unsafe {
        let numbers = &mut (*all).numbers;
        let shape = numbers.as_mut_ptr();
        let strides = shape.add(leaf.rank());
        for described in [&raw mut (*all).versioned.dl_tensor, &raw mut (*all).unversioned.dl_tensor] {
            ((*described).shape, (*described).strides) = (shape, strides);
        }
        (*all).versioned.manager_ctx = all.cast();
        (*all).unversioned.manager_ctx = all.cast();
    }
    // SAFETY: as above.
    let (pointer, name): (*mut c_void, &CStr) = unsafe {
        match is_versioned {
            true => ((&raw mut (*all).versioned).cast(), VERSIONED),
            false => ((&raw mut (*all).unversioned).cast(), UNVERSIONED),
        }
    };
    // SAFETY: the pointer is not null, the name lives for ever, and the destructor knows such capsules.
    let capsule = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)))
    };
    capsule.inspect_err(|_| {
        // SAFETY: there is no capsule that would drop it.
        drop(unsafe { Box::from_raw(all) });
    })
}

/// Drops what nobody has consumed; who has, has given the capsule another name, and calls the deleter.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    for (name, is_versioned) in [(VERSIONED, true), (UNVERSIONED, false)] {
        // SAFETY: a capsule that is being destroyed, and names that live for ever.
        if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } != 0 {
            // SAFETY: as above; it was made by `export`, and holds this.
            unsafe {
                let managed = ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
                match is_versioned {
                    true => delete_versioned(managed.cast()),
                    false => delete_unversioned(managed.cast()),
                }
            }
        }
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    if let Some(managed) = NonNull::new(managed) {
        // SAFETY: its context is the box that it is in; it is called once.
        drop(unsafe { Box::from_raw(managed.as_ref().manager_ctx.cast::<Exported>()) });
    }
}

unsafe extern "C" fn delete_unversioned(managed: *mut DLManagedTensor) {
    if let Some(managed) = NonNull::new(managed) {
        // SAFETY: its context is the box that it is in; it is called once.
        drop(unsafe { Box::from_raw(managed.as_ref().manager_ctx.cast::<Exported>()) });
    }
}
