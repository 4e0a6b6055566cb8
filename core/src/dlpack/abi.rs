//! The structs of DLPack as C has them. Kinds of devices and of elements are numbers: new ones come with each minor version.

use std::ffi::c_void;

/// The version that [`Tensor::into_dlpack`](crate::Tensor::into_dlpack) says. Another minor one has the same structs.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

/// A version of DLPack. Structs of another major one are laid out otherwise behind `deleter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Changes with the layout.
    pub major: u32,
    /// Changes with what the numbers may be.
    pub minor: u32,
}

/// Where memory is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// What kind of device: one of [`device_type`], or another.
    pub device_type: i32,
    /// Which of them; 0 for memory of the host.
    pub device_id: i32,
}

/// What an element is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// What it means: one of [`type_code`], or another.
    pub code: u8,
    /// Its size in bits.
    pub bits: u8,
    /// How many of them one element has; 1 but for vector types.
    pub lanes: u16,
}

/// A tensor in memory that somebody else manages.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLTensor {
    /// The memory; null if there are no elements.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// How many dimensions there are.
    pub ndim: i32,
    /// What the elements are.
    pub dtype: DLDataType,
    /// The size of each dimension; may be null if there are none.
    pub shape: *mut i64,
    /// From one element to the next along each dimension, in elements. Null: row-major, without gaps (before version 1.2).
    pub strides: *mut i64,
    /// Where the first element is, in bytes behind `data`.
    pub byte_offset: u64,
}

/// A tensor with what lets go of it, as it was before version 1.0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once, with the struct itself, when it is used no more.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor with what lets go of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLManagedTensorVersioned {
    /// Of which version it is.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once, with the struct itself, when it is used no more.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// Bits of [`flag`], and perhaps others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

pub mod flag {
    //! Bits of [`DLManagedTensorVersioned::flags`](super::DLManagedTensorVersioned::flags).

    /// The memory must not be written.
    pub const READ_ONLY: u64 = 1;
    /// The producer has copied the tensor for its consumer.
    pub const IS_COPIED: u64 = 2;
    /// Elements of less than a byte have one each.
    pub const IS_SUBBYTE_TYPE_PADDED: u64 = 4;
}

pub mod device_type {
    //! Numbers of [`DLDevice::device_type`](super::DLDevice::device_type), as far as transship has such memory.

    /// Memory of the host.
    pub const CPU: i32 = 1;
    /// Memory of a device of NVIDIA.
    pub const CUDA: i32 = 2;
    /// Memory of the host that CUDA has page-locked.
    pub const CUDA_HOST: i32 = 3;
    /// Memory of a device of AMD.
    pub const ROCM: i32 = 10;
    /// Memory of the host that ROCm has page-locked.
    pub const ROCM_HOST: i32 = 11;
}

pub mod type_code {
    //! Numbers of [`DLDataType::code`](super::DLDataType::code), as far as transship has such elements.

    /// Integers with a sign.
    pub const INT: u8 = 0;
    /// Integers without a sign.
    pub const UINT: u8 = 1;
    /// IEEE floating point.
    pub const FLOAT: u8 = 2;
    /// The upper half of a float of 32 bits.
    pub const BFLOAT: u8 = 4;
    /// Two floats.
    pub const COMPLEX: u8 = 5;
    /// Bytes that are 0 or 1.
    pub const BOOL: u8 = 6;
    /// `float8_e4m3fn`.
    pub const FLOAT8_E4M3FN: u8 = 10;
    /// `float8_e5m2`.
    pub const FLOAT8_E5M2: u8 = 12;
    /// `float8_e8m0fnu`.
    pub const FLOAT8_E8M0FNU: u8 = 14;
}
