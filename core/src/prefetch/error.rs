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

impl<T, E: fmt::Display> fmt::Display for PrefetchError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Copy(error) => error.fmt(f),
        }
    }
}

impl<T, E: std::error::Error> std::error::Error for PrefetchError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source(error) => error.source(),
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
