//! What can go wrong.

use burn_cubecl::cubecl::server::{IoError, ServerError};
use transship::{DType, DeviceId};

/// `Result` with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device of burn that is not wgpu's.
    #[cfg(feature = "wgpu")]
    #[error("{device} is none of burn's wgpu devices; use the one that was shared")]
    NotWgpu {
        /// The device, as burn prints it.
        device: String,
    },
    /// A tensor that is not in memory of burn's on the shared device, or that [`from_burn`](crate::SharedDevice::from_burn) gave.
    #[error(
        "the tensor is on {actual}, in memory that burn does not have; copy it to {expected} first: \
         start_copy with SharedDevice::copy_options(){}",
        if actual == expected { ", and CopyPolicy::Always, since it is on that device already" } else { "" }
    )]
    NotShared {
        /// Where the tensor is.
        actual: DeviceId,
        /// The shared device.
        expected: DeviceId,
    },
    /// A tensor of burn on another device, of another backend as well.
    #[error("the tensor is on burn's {actual}, and not on {expected}; move it with to_device first")]
    OtherDevice {
        /// Where the tensor is.
        actual: String,
        /// The shared device.
        expected: String,
    },
    /// Elements that burn's tensors of this kind, or the device, do not have.
    #[error(
        "elements of {dtype} are no {kind} tensor on this device; convert them on the host, to {instead} for instance"
    )]
    NoSuchElements {
        /// Their type.
        dtype: DType,
        /// `Float`, `Int` or `Bool`.
        kind: &'static str,
        /// A type that every device has.
        instead: DType,
    },
    /// Elements of burn's that transship does not have.
    #[error("tensors of {dtype} are not copied; dequantize them first")]
    NotCopied {
        /// Their type, as burn prints it.
        dtype: String,
    },
    /// The tensor has another number of dimensions.
    #[error(
        "the tensor has {actual} dimensions and not {expected}; ask for a Tensor<{actual}>, or reshape it"
    )]
    WrongRank {
        /// What was asked for.
        expected: usize,
        /// What it has.
        actual: usize,
    },
    /// A view that no kernel can bind.
    #[error(
        "the tensor starts at byte {offset} of its memory, which is no multiple of {alignment}; copy it with \
         CopyOptions::bindable(true), and CopyPolicy::Always where it is on that device already"
    )]
    Misaligned {
        /// Where it starts, in bytes.
        offset: u64,
        /// What the device demands, in bytes.
        alignment: u64,
    },
    /// Tensors of an autodiff device of burn's, detached ones as well.
    #[error(
        "burn does not show the memory of the tensor: {reason}; leave that with Tensor::inner (detach does not)"
    )]
    NotShown {
        /// What burn says.
        reason: String,
    },
    /// What is wrong with one tensor of a structure.
    #[error("{path}: {error}")]
    InStructure {
        /// Which one: `.1[3]` is item 3 of the second part of a tuple.
        path: String,
        /// What is wrong with it. Not the source: the text has it.
        error: Box<Error>,
    },
    /// burn's wgpu runtime did not start.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Init(#[from] burn_tensor::wgpu::WgpuInitError),
    /// What burn had queued for the tensors was not computed.
    #[cfg(feature = "fusion")]
    #[error("burn did not compute the tensors: {reason}")]
    NotComputed {
        /// What is known of it.
        reason: String,
    },
    /// What cubecl says.
    #[error("cubecl: {0}")]
    Cubecl(Box<ServerError>),
    /// What transship says.
    #[error(transparent)]
    Transship(#[from] transship::Error),
}

impl From<ServerError> for Error {
    fn from(error: ServerError) -> Self {
        Self::Cubecl(Box::new(error))
    }
}

/// What cubecl says about an allocation of so many bytes, as transship says it.
pub(crate) fn explain_allocation(
    error: &ServerError,
    requested: usize,
    device: DeviceId,
) -> transship::Error {
    match error {
        ServerError::Io(IoError::OutOfMemory { .. }) => {
            transship::Error::OutOfMemory { device, kind: "device", requested, free: 0, total: 0 }
        }
        other => transship::Error::Driver { device, call: "cubecl", code: 0, message: other.to_string() },
    }
}
