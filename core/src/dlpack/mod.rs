//! Tensors of other libraries and languages, in and out, without a copy: [DLPack](https://dmlc.github.io/dlpack/latest/), version 1.3.
//!
//! [`Tensor::from_dlpack`](crate::Tensor::from_dlpack) takes either struct, [`Tensor::into_dlpack`](crate::Tensor::into_dlpack) makes one. Both hand over a
//! pointer to a struct whose `deleter` is to be called once: by transship when the last use of a tensor that came in is over, and by the other
//! side for one that went out. Nothing here knows of Python.
//!
//! ```
//! use transship_core::{DType, Tensor};
//!
//! let out = Tensor::from(vec![1.0_f32, 2.0, 3.0]).into_dlpack(None)?;
//! // SAFETY: the struct is valid, its memory is on the host and written by nobody, and its deleter may run anywhere.
//! let back = unsafe { Tensor::from_dlpack(out, None)? };
//! assert_eq!((back.dtype(), back.as_slice::<f32>()?), (DType::F32, &[1.0, 2.0, 3.0][..]));
//! # Ok::<(), transship_core::Error>(())
//! ```

mod abi;
mod describe;
mod export;
mod import;
mod managed;
mod order;
mod words;

pub use abi::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, VERSION,
    device_type, flag, type_code,
};
pub use export::ExportError;
pub use managed::Managed;
