//! What can go wrong.

use std::fmt;

/// `Result` with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// candle has no elements of this type.
    #[error(
        "{}: candle has no {dtype}; let integers become int64 on their way (CopyOptions::cast), and leave other types out",
        place(path)
    )]
    NotInCandle {
        /// Where the tensor is, as in `["mask"]`; empty where it is all there is.
        path: String,
        /// Its type.
        dtype: transship::DType,
    },
    /// transship has no elements of this type.
    #[error("{}: tensors of {} are not copied; leave the tensor out (`#[tensor_tree(skip)]`), or convert it (Tensor::to_dtype)", place(path), dtype.as_str())]
    NotCopied {
        /// Where the tensor is in its structure, as in `.layers["attn.q"][3]`; empty where it is all of it, or this is not known.
        path: String,
        /// Its type.
        dtype: candle_core::DType,
    },
    /// A device that is neither the CPU nor one of CUDA.
    #[error(
        "{}: {device} is not copied from or to; use the CPU or CUDA, or candle's own Tensor::to_device",
        place(path)
    )]
    UnsupportedDevice {
        /// Where the tensor is; empty where the target of the copy is meant.
        path: String,
        /// The device, as candle prints it.
        device: String,
    },
    /// A tensor of CUDA whose memory was allocated in another context than its device's, as `CudaStorage::wrap_cuda_slice` of candle
    /// allows.
    #[error(
        "{}: its device is GPU {expected}, but its memory was allocated in another context, of GPU {actual}; wrap a slice with the device \
         that has allocated it",
        place(path)
    )]
    OtherContext {
        /// Where the tensor is; empty where it is all there is.
        path: String,
        /// The number of the GPU of the tensor's device.
        expected: usize,
        /// The number of the GPU that the memory was allocated on.
        actual: usize,
    },
    /// The structure showed other tensors after the copy than before it.
    #[error(
        "the structure showed other tensors than when the copy started; visit() must show the same ones each time, in the same order"
    )]
    TreeChanged,
    /// The structure is nested more deeply than visits go.
    #[error("the structure is nested more than {limit} levels deep; use a flatter one")]
    TooDeep {
        /// The most levels.
        limit: usize,
    },
    /// A device of CUDA answers no more, as after a kernel that has written where it may not. Its driver revives it only when nobody in the
    /// process holds anything of it, and what was in flight there is held for ever.
    #[error(
        "{device} is lost: {error}; nothing that lies there can be used again, and the device only by another process"
    )]
    DeviceLost {
        /// The device.
        device: transship::DeviceId,
        /// What the copy came to.
        error: Box<Error>,
    },
    /// What transship says.
    #[error(transparent)]
    Transship(Box<transship::Error>),
    /// What candle says.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

impl From<transship::Error> for Error {
    fn from(error: transship::Error) -> Self {
        Self::Transship(Box::new(error))
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Box::new(error))
    }
}

impl Error {
    /// Whether it may come from a driver: what transship says, and candle of CUDA.
    #[cfg(feature = "cuda")]
    pub(crate) fn may_be_a_drivers(&self) -> bool {
        match self {
            Self::Transship(_) => true,
            Self::Candle(error) => is_of_cuda(error),
            _ => false,
        }
    }

    /// The same, of the tensor at `there`.
    pub(crate) fn at(mut self, there: String) -> Self {
        if let Self::NotInCandle { path, .. }
        | Self::NotCopied { path, .. }
        | Self::UnsupportedDevice { path, .. }
        | Self::OtherContext { path, .. } = &mut self
        {
            *path = there;
        }
        self
    }
}

/// A copy failed. The structure comes back with its tensors as they were.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct CopyError<S> {
    /// Why.
    #[source]
    pub error: Error,
    /// The structure, with its sources.
    pub value: S,
}

impl<S> fmt::Debug for CopyError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<S> From<CopyError<S>> for Error {
    fn from(failed: CopyError<S>) -> Self {
        failed.error
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            other => Self::wrap(other),
        }
    }
}

impl<S> From<CopyError<S>> for candle_core::Error {
    fn from(failed: CopyError<S>) -> Self {
        failed.error.into()
    }
}

#[cfg(feature = "cuda")]
fn is_of_cuda(error: &candle_core::Error) -> bool {
    use candle_core::Error::{Context, Cuda, WithBacktrace, WithPath};
    match error {
        Cuda(_) => true,
        WithBacktrace { inner, .. } | WithPath { inner, .. } | Context { inner, .. } => is_of_cuda(inner),
        _ => false,
    }
}

fn place(path: &str) -> &str {
    if path.is_empty() { "the tensor" } else { path }
}
