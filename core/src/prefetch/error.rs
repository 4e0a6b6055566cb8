//! Why an item did not arrive.

use std::convert::Infallible;
use std::fmt;

use crate::error::{CopyError, Error};

/// Why an item did not arrive: it comes in the item's place, and the next items follow.
pub enum PrefetchError<T, E = Infallible> {
    /// The source failed; this is its error.
    Source(E),
    /// The copy failed; the error gives the item back if its tensors are still there.
    Copy(CopyError<T>),
}

impl<T, E: fmt::Debug> fmt::Debug for PrefetchError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => f.debug_tuple("Source").field(error).finish(),
            Self::Copy(error) => f.debug_tuple("Copy").field(error).finish(),
        }
    }
}

impl<T, E> PrefetchError<T, E> {
    /// The plain error, without the item, as the source's type: `anyhow::Error`, `Box<dyn std::error::Error + Send + Sync>`, or a
    /// program's own that can be made of [`Error`]. For items of `try_prefetch`: a plain `prefetch` has a source without errors, and `?` or
    /// [`Error::from`] makes an [`Error`] of its own.
    ///
    /// ```
    /// use transship_core::{Device, Prefetch, PrefetchError, PrefetchOptions, Tensor};
    ///
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// # fn main() -> Result<(), Failure> {
    /// let read = (0..3_u8).map(|step| Ok::<_, Failure>(Tensor::from(vec![step; 8])));
    /// for batch in read.try_prefetch(&Device::best()?, PrefetchOptions::default()) {
    ///     let _batch = batch.map_err(PrefetchError::into_error)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_error(self) -> E
    where
        E: From<Error>,
    {
        match self {
            Self::Source(error) => error,
            Self::Copy(error) => error.into_error().into(),
        }
    }

    /// The item, if it was copied in vain and its tensors are still there.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Source(_) => None,
            Self::Copy(error) => error.into_value(),
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for PrefetchError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) if f.alternate() => write!(f, "the source failed: {error:#}"),
            Self::Source(_) => f.write_str("the source failed"),
            Self::Copy(error) => error.fmt(f),
        }
    }
}

impl<T, E: std::error::Error + 'static> std::error::Error for PrefetchError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source(error) => Some(error),
            Self::Copy(error) => error.source(),
        }
    }
}

impl<T> From<PrefetchError<T>> for Error {
    fn from(failed: PrefetchError<T>) -> Self {
        match failed {
            PrefetchError::Source(never) => match never {},
            PrefetchError::Copy(error) => error.into_error(),
        }
    }
}

impl<T> From<PrefetchError<T, Self>> for Error {
    fn from(failed: PrefetchError<T, Self>) -> Self {
        match failed {
            PrefetchError::Source(error) => error,
            PrefetchError::Copy(error) => error.into_error(),
        }
    }
}
