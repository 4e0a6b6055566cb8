//! The error of a copy, which gives the structure back.

use std::fmt;

use crate::device_id::DeviceId;
use crate::error::Error;
use crate::error::kind::ErrorKind;

/// A copy that failed, and the structure where it could be kept.
///
/// It prints which copy failed and what [kind](Error::kind) of failure that is. Why, and what to do, is said by its
/// [source](std::error::Error::source), the plain [`Error`], which chains of errors print behind it. `{:#}` prints both.
///
/// It is `Send` where the structure is, and `Sync` whatever the structure is: nobody gets at that through a shared reference.
///
/// ```
/// use std::error::Error as _;
/// use transship_core::{CopyOptions, Device, Error, Tensor, start_copy};
///
/// let options = CopyOptions::default().max_chunk_bytes(0);
/// let failed = start_copy(Tensor::scalar(1_u8), &Device::host(), options).unwrap_err();
/// assert_eq!(failed.to_string(), "the copy to host was refused");
/// let why = failed.source().and_then(|source| source.downcast_ref::<Error>());
/// assert!(matches!(why, Some(Error::InvalidOption { name: "max_chunk_bytes", .. })));
/// let both = "the copy to host was refused: option max_chunk_bytes cannot be 0: it must be at least 1";
/// assert_eq!(format!("{failed:#}"), both);
/// ```
pub struct CopyError<S>(Box<Failed<S>>);

struct Failed<S> {
    error: Error,
    target: Option<DeviceId>,
    value: Option<Unshared<S>>,
    into: Option<Unshared<S>>,
}

/// What only its owner gets at.
struct Unshared<S>(S);

// SAFETY: nothing is done with a value through a shared reference to this: its only field is private to this file, which takes it
// out of an owned one alone.
unsafe impl<S> Sync for Unshared<S> {}

impl<S> CopyError<S> {
    /// A failure that gives the structure back unless it is gone.
    pub fn new(error: Error, value: Option<S>) -> Self {
        Self(Box::new(Failed { error, target: None, value: value.map(Unshared), into: None }))
    }

    /// The same of a copy to `target`.
    pub(crate) fn of_copy_to(mut self, target: DeviceId) -> Self {
        self.0.target = Some(target);
        self
    }

    /// The same with the structure that it should have been copied into.
    pub(crate) fn with_destination(mut self, into: Option<S>) -> Self {
        self.0.into = into.map(Unshared);
        self
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// What went wrong, without the structure.
    pub fn into_error(self) -> Error {
        self.0.error
    }

    /// The structure with the tensors that went in; `None` if they were let go of before the copy failed.
    pub fn into_value(self) -> Option<S> {
        self.into_parts().1
    }

    /// Both.
    pub fn into_parts(self) -> (Error, Option<S>) {
        let Failed { error, value, .. } = *self.0;
        (error, value.map(|value| value.0))
    }

    /// The structure with the tensors that went in, and the one that [`start_copy_into`](crate::start_copy_into) should have
    /// copied it into. If the copy had begun, the latter's tensors are [`Error::CopyFailed`] until another copy has filled them; [`Tensor::into_vec`](crate::Tensor::into_vec) gives a vector
    /// back once nothing is in flight any more.
    pub fn into_both(self) -> (Option<S>, Option<S>) {
        let Failed { value, into, .. } = *self.0;
        (value.map(|value| value.0), into.map(|into| into.0))
    }

    /// What went wrong, and the second structure of [`into_both`](Self::into_both): to fill it by another copy.
    pub fn into_error_and_destination(self) -> (Error, Option<S>) {
        let Failed { error, into, .. } = *self.0;
        (error, into.map(|into| into.0))
    }
}

impl<S> From<CopyError<S>> for Error {
    fn from(failed: CopyError<S>) -> Self {
        failed.into_error()
    }
}

impl<S> fmt::Debug for CopyError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyError")
            .field("error", &self.0.error)
            .field("value", &if self.0.value.is_some() { "kept" } else { "gone" })
            .finish()
    }
}

impl<S> fmt::Display for CopyError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { error, target, .. } = &*self.0;
        f.write_str("the copy ")?;
        if let Some(target) = target {
            write!(f, "to {target} ")?;
        }
        f.write_str(if is_of_earlier_copy(error) {
            "needs a tensor that an earlier copy did not fill"
        } else {
            outcome(error.kind())
        })?;
        if f.alternate() { write!(f, ": {error}") } else { Ok(()) }
    }
}

impl<S> std::error::Error for CopyError<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.error)
    }
}

/// Whether not this copy has failed, but one that should have filled a tensor for it.
fn is_of_earlier_copy(error: &Error) -> bool {
    match error {
        Error::CopyFailed(_) => true,
        Error::UnsuitedTensor { error, .. } => is_of_earlier_copy(error),
        _ => false,
    }
}

/// What became of a copy that failed, in a few words.
pub(super) fn outcome(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidInput => "was refused",
        ErrorKind::NotReady => "needs a tensor that another copy still has",
        ErrorKind::Busy => "would have to wait",
        ErrorKind::OutOfMemory => "ran out of memory",
        ErrorKind::Unsupported => "is not supported here",
        ErrorKind::DeviceLost => "failed: the device is lost",
        ErrorKind::Driver => "failed in the driver",
        ErrorKind::Cancelled => "was cancelled",
        ErrorKind::TimedOut => "missed its deadline",
        ErrorKind::Finished => "is over already",
        ErrorKind::Bug => "failed by a bug",
    }
}
