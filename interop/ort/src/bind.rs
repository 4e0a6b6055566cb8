//! Structures of tensors as the inputs and outputs of a session.

use std::ffi::CStr;
use std::ptr::null;

use ort::session::{IoBinding, Session};
use ort::sys::{OrtDeviceMemoryType, OrtMemoryInfo, OrtMemoryInfoDeviceType, OrtSession, OrtStatusPtr};
use ort::value::Outlet;
use ort::{AsPointer, ortsys};
use transship::{Tensor, TensorTree, for_each_path};

use crate::error::{Error, Result};
use crate::value::{memory_of, value_over};

/// A binding of `session` to the memory of the tensors of `inputs` and `outputs`: each run reads and writes there.
///
/// A tensor goes by the name of the path to it (`TensorPath::name`): the field `boxes` of the third entry of the list `cameras`
/// is `cameras.2.boxes`. Where the model calls it otherwise, bind [`value_over`] of it under that name.
///
/// Fill `inputs` anew with `start_copy_into`, which keeps the addresses, and keep the binding: each one takes memory.
///
/// # Errors
///
/// [`Error::Unknown`] for a tensor that the session has no input or output for; [`Error::Elsewhere`] if it lies on another device than
/// the one where the session has it, which for an input is where the first operator that takes it runs; and as [`value_over`]. What shape
/// and type should be, and which inputs are missing, ONNX Runtime says when the session is run.
///
/// # Panics
///
/// As [`value_over`].
///
/// # Safety
///
/// The promises of [`value_over`] for each tensor, for as long as the binding is there.
pub unsafe fn bind<I: TensorTree, O: TensorTree>(
    session: &Session,
    inputs: &I,
    outputs: &O,
) -> Result<IoBinding> {
    let mut binding = session.create_binding()?;
    let places = places_of(session, session.inputs().len(), ortsys![SessionGetMemoryInfoForInputs])?;
    for (name, tensor) in leaves(inputs)? {
        check("input", &name, &tensor, session.inputs(), &places)?;
        // SAFETY: the caller's promise.
        binding.bind_input(name, &unsafe { value_over(&tensor)? })?;
    }
    let places = places_of(session, session.outputs().len(), ortsys![SessionGetMemoryInfoForOutputs])?;
    for (name, tensor) in leaves(outputs)? {
        check("output", &name, &tensor, session.outputs(), &places)?;
        // SAFETY: the caller's promise.
        binding.bind_output(name, unsafe { value_over(&tensor)? })?;
    }
    Ok(binding)
}

/// The tensors of a structure under the names of their paths.
fn leaves<S: TensorTree>(tree: &S) -> Result<Vec<(String, Tensor)>> {
    let mut leaves = Vec::new();
    for_each_path(tree, |path, tensor| {
        leaves.push((path.name().to_owned(), tensor.clone()));
        Ok(())
    })?;
    Ok(leaves)
}

/// Fails unless the session has the tensor under this name, and where it lies.
fn check(
    kind: &'static str,
    name: &str,
    tensor: &Tensor,
    outlets: &[Outlet],
    places: &[Place],
) -> Result<()> {
    let place = outlets.iter().position(|outlet| outlet.name() == name).and_then(|index| places.get(index));
    let Some(place) = place else {
        let known = outlets.iter().map(|outlet| outlet.name().to_owned()).collect();
        return Err(Error::Unknown { kind, name: name.to_owned(), known });
    };
    let device = tensor.device_id()?;
    let (called, ordinal) = memory_of(device)?;
    let there = (!device.is_host()).then_some(ordinal);
    if place.device == there {
        return Ok(());
    }
    let tensor = format!("{} {ordinal}", called.as_str());
    Err(Error::Elsewhere { kind, name: name.to_owned(), session: place.called.clone(), tensor })
}

/// Where a session has an input or output.
struct Place {
    called: String,
    /// The ordinal of a device; nothing where the host can read it.
    device: Option<i32>,
}

/// Where the session has its inputs or its outputs, in their order.
fn places_of(
    session: &Session,
    count: usize,
    ask: unsafe extern "system" fn(*const OrtSession, *mut *const OrtMemoryInfo, usize) -> OrtStatusPtr,
) -> Result<Vec<Place>> {
    let mut infos = vec![null(); count];
    // SAFETY: there is room for as many as the session has.
    unsafe { ort::Error::result_from_status(ask(session.ptr(), infos.as_mut_ptr(), infos.len()))? };
    // SAFETY: they are the session's, which is borrowed.
    infos.into_iter().map(|info| unsafe { place(info) }).collect()
}

/// # Safety
///
/// `info` is a description of memory, or null.
unsafe fn place(info: *const OrtMemoryInfo) -> Result<Place> {
    if info.is_null() {
        return Err(ort::Error::new("it does not say where the session has its inputs and outputs").into());
    }
    let (mut called, mut ordinal, mut device) =
        (null(), 0, OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU);
    ortsys![unsafe MemoryInfoGetName(info, &mut called)?];
    ortsys![unsafe MemoryInfoGetId(info, &mut ordinal)?];
    ortsys![unsafe MemoryInfoGetDeviceType(info, &mut device)];
    let kind = ortsys![unsafe MemoryInfoGetDeviceMemType(info)];
    // SAFETY: the name is a string of the runtime's, which ends with a zero.
    let called = unsafe { CStr::from_ptr(called) }.to_string_lossy();
    let is_on_host = device == OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU
        || kind == OrtDeviceMemoryType::OrtDeviceMemoryType_HOST_ACCESSIBLE;
    Ok(Place { called: format!("{called} {ordinal}"), device: (!is_on_host).then_some(ordinal) })
}
