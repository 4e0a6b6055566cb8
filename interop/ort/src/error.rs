//! What is in the way, and the way out.

use transship::{DType, DeviceId};

/// [`Error`] as the error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a tensor cannot be lent to ONNX Runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session has no input or output of the name.
    #[error(
        "the session has no {kind} {name:?}; name the fields of the structure as the model does, or bind `value_over` of the tensor; it has {known:?}"
    )]
    Unknown {
        /// `input` or `output`.
        kind: &'static str,
        /// What the path to the tensor is called.
        name: String,
        /// The names that the session has.
        known: Vec<String>,
    },
    /// The session reads or writes it elsewhere, so that ONNX Runtime would copy it: an input once, when it is bound.
    #[error(
        "the session has the {kind} {name:?} on {session}, and the tensor lies on {tensor}; copy the tensor there"
    )]
    Elsewhere {
        /// `input` or `output`.
        kind: &'static str,
        /// What the path to the tensor is called.
        name: String,
        /// Where the session has it, as ONNX Runtime calls that, with the ordinal.
        session: String,
        /// Where the tensor lies, likewise.
        tensor: String,
    },
    /// ONNX Runtime knows no strides.
    #[error(
        "a tensor of shape {shape:?} has the strides {strides:?}, and ONNX Runtime takes row-major ones alone; copy it with `CopyPolicy::Always`, which leaves no gaps"
    )]
    NotContiguous {
        /// Of the tensor, in elements.
        shape: Vec<usize>,
        /// Of the tensor, in elements.
        strides: Vec<usize>,
    },
    /// ONNX Runtime has no memory of that kind.
    #[error(
        "ONNX Runtime takes no memory of {0}; copy the tensor to the host, or to a device of CUDA or HIP"
    )]
    UnsupportedDevice(DeviceId),
    /// ONNX Runtime has no elements of that type.
    #[error(
        "ONNX Runtime takes no elements of the type {0}; cast the tensor on its way, where such elements are cast (CopyOptions::cast), or leave it out"
    )]
    UnsupportedDType(DType),
    /// What ONNX Runtime says.
    #[error("ONNX Runtime: {0}")]
    Runtime(#[from] ort::Error),
    /// What transship says.
    #[error(transparent)]
    Transship(#[from] transship::Error),
}
