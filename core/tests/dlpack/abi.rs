//! Our structs beside those that bindgen makes of DLPack's header.

use std::mem::{align_of, offset_of, size_of};

use dlpack_ffi as c;
use transship_core::dlpack as ours;
use transship_core::{DType, Tensor};

use crate::theirs::let_go;

macro_rules! same_struct {
    ($name:ident: $($field:ident),*) => {
        assert_eq!(size_of::<ours::$name>(), size_of::<c::$name>(), stringify!($name));
        assert_eq!(align_of::<ours::$name>(), align_of::<c::$name>(), stringify!($name));
        $(assert_eq!(
            offset_of!(ours::$name, $field),
            offset_of!(c::$name, $field),
            concat!(stringify!($name), ".", stringify!($field))
        );)*
    };
}

#[test]
fn structs_are_laid_out_as_in_c() {
    same_struct!(DLPackVersion: major, minor);
    same_struct!(DLDevice: device_type, device_id);
    same_struct!(DLDataType: code, bits, lanes);
    same_struct!(DLTensor: data, device, ndim, dtype, shape, strides, byte_offset);
    same_struct!(DLManagedTensor: dl_tensor, manager_ctx, deleter);
    same_struct!(DLManagedTensorVersioned: version, manager_ctx, deleter, flags, dl_tensor);
}

#[test]
fn numbers_are_those_of_c() {
    assert_eq!(
        (ours::VERSION.major, ours::VERSION.minor),
        (c::DLPACK_MAJOR_VERSION, c::DLPACK_MINOR_VERSION)
    );
    for (own, theirs) in [
        (ours::flag::READ_ONLY, c::DLPACK_FLAG_BITMASK_READ_ONLY),
        (ours::flag::IS_COPIED, c::DLPACK_FLAG_BITMASK_IS_COPIED),
        (ours::flag::IS_SUBBYTE_TYPE_PADDED, c::DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED),
    ] {
        assert_eq!(own, u64::from(theirs));
    }
    for (own, theirs) in [
        (ours::device_type::CPU, c::DLDeviceType::kDLCPU),
        (ours::device_type::CUDA, c::DLDeviceType::kDLCUDA),
        (ours::device_type::CUDA_HOST, c::DLDeviceType::kDLCUDAHost),
        (ours::device_type::ROCM, c::DLDeviceType::kDLROCM),
        (ours::device_type::ROCM_HOST, c::DLDeviceType::kDLROCMHost),
    ] {
        assert_eq!(own as u32, theirs.0);
    }
}

/// Each type goes out with the numbers of the header, and comes back as what it was.
#[test]
fn every_element_type_has_its_numbers() {
    use c::DLDataTypeCode as Code;
    let code = |dtype| match dtype {
        DType::Bool => Code::kDLBool,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => Code::kDLUInt,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => Code::kDLInt,
        DType::F16 | DType::F32 | DType::F64 => Code::kDLFloat,
        DType::BF16 => Code::kDLBfloat,
        DType::F8E4M3FN => Code::kDLFloat8_e4m3fn,
        DType::F8E5M2 => Code::kDLFloat8_e5m2,
        DType::F8E8M0FNU => Code::kDLFloat8_e8m0fnu,
        DType::Complex64 | DType::Complex128 => Code::kDLComplex,
        other => panic!("{other} is new"),
    };
    for &dtype in DType::ALL {
        let bytes: Vec<u8> = (0..2 * dtype.size() as u8).map(|byte| byte & 1).collect();
        let mut tensor = Tensor::empty(&[2], dtype, &transship_core::Device::host()).unwrap();
        tensor.as_mut_bytes().unwrap().copy_from_slice(&bytes);
        let out = tensor.into_dlpack(None).unwrap();
        // SAFETY: it is there until it is let go of.
        let said = unsafe { (*out.as_ptr()).dl_tensor.dtype };
        assert_eq!(u32::from(said.code), code(dtype).0, "{dtype}");
        assert_eq!((usize::from(said.bits), said.lanes), (dtype.size() * 8, 1), "{dtype}");
        // SAFETY: our own struct, whose memory nobody writes.
        let back = unsafe { Tensor::from_dlpack(out, None) }.unwrap();
        assert_eq!((back.dtype(), back.to_bytes().unwrap()), (dtype, bytes));
    }
    let out = Tensor::from(vec![1_u8]).into_dlpack_unversioned(None).unwrap();
    let_go(out);
}
