//! A tensor as ONNX Runtime sees it.

use std::ptr::{NonNull, null_mut};

use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::value::{DynTensor, TensorElementType};
use ort::{AsPointer, ortsys};
use transship::{DType, DeviceId, Tensor};

use crate::error::{Error, Result};

/// A value of ONNX Runtime over the memory of `tensor`, without a copy.
///
/// `IoBinding::bind_input` and `bind_output` bind it at its address. Values of `ort`'s own over memory of somebody else
/// (`TensorRefMut::from_raw`) are not bound by `bind_input`: it is documented to bind a copy, and with 2.0.0-rc.15 on the CPU it never returned.
///
/// # Errors
///
/// [`Error::NotContiguous`], [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`]; [`Error::Transship`] if the tensor is in a copy in
/// flight; [`Error::Runtime`].
///
/// # Panics
///
/// `ort` panics if the library of ONNX Runtime cannot be loaded, and nobody has done so with `ort::init_from` before.
///
/// # Safety
///
/// For as long as the value is used, by a binding or by a run that a device still carries out:
///
/// - the memory is not freed: a tensor over it lives, and was handed to the stream of the session ([`Tensor::record_stream`],
///   `CopyHandle::wait_on`) before it goes;
/// - what else reads or writes the memory comes before or behind the runs, on the host or in the order of that stream;
/// - memory of an output may be written: transship has allocated it, or it was lent by [`Tensor::from_raw_mut`].
pub unsafe fn value_over(tensor: &Tensor) -> Result<DynTensor> {
    if !tensor.is_contiguous() {
        return Err(Error::NotContiguous {
            shape: tensor.shape().to_vec(),
            strides: tensor.strides().to_vec(),
        });
    }
    let element = element_type(tensor.dtype())?;
    let (device, ordinal) = memory_of(tensor.device_id()?)?;
    let info = MemoryInfo::new(device, ordinal, AllocatorType::Device, MemoryType::Default)?;
    let address = tensor.address()?.unwrap_or(0);
    let shape: Vec<i64> = tensor.shape().iter().map(|dim| *dim as i64).collect();
    let mut value = null_mut();
    // SAFETY: `info` and `shape` are there; the tensor has so many bytes at `address`, where `info` says.
    ortsys![unsafe CreateTensorWithDataAsOrtValue(
        info.ptr(),
        std::ptr::with_exposed_provenance_mut(address as usize),
        tensor.nbytes(),
        shape.as_ptr(),
        shape.len(),
        element.into(),
        &mut value
    )?];
    let value = NonNull::new(value).ok_or_else(|| ort::Error::new("no value was made"))?;
    // SAFETY: the value was made above, and nobody else releases it. It frees no memory, so the allocator is never used.
    Ok(unsafe { DynTensor::from_ptr(value, Some(&Allocator::default())) })
}

/// What ONNX Runtime calls the memory of a device, and its ordinal there.
pub(crate) fn memory_of(device: DeviceId) -> Result<(AllocationDevice<'static>, i32)> {
    let kind = match device.driver() {
        _ if device.is_host() => AllocationDevice::CPU,
        "cuda" => AllocationDevice::CUDA,
        "hip" => AllocationDevice::HIP,
        _ => return Err(Error::UnsupportedDevice(device)),
    };
    let ordinal = i32::try_from(device.ordinal()).map_err(|_| Error::UnsupportedDevice(device))?;
    Ok((kind, ordinal))
}

/// ONNX has complex numbers and `float8e8m0`, and ONNX Runtime has not.
fn element_type(dtype: DType) -> Result<TensorElementType> {
    Ok(match dtype {
        DType::Bool => TensorElementType::Bool,
        DType::U8 => TensorElementType::Uint8,
        DType::U16 => TensorElementType::Uint16,
        DType::U32 => TensorElementType::Uint32,
        DType::U64 => TensorElementType::Uint64,
        DType::I8 => TensorElementType::Int8,
        DType::I16 => TensorElementType::Int16,
        DType::I32 => TensorElementType::Int32,
        DType::I64 => TensorElementType::Int64,
        DType::F16 => TensorElementType::Float16,
        DType::BF16 => TensorElementType::Bfloat16,
        DType::F32 => TensorElementType::Float32,
        DType::F64 => TensorElementType::Float64,
        DType::F8E4M3FN => TensorElementType::Float8E4M3FN,
        DType::F8E5M2 => TensorElementType::Float8E5M2,
        _ => return Err(Error::UnsupportedDType(dtype)),
    })
}
