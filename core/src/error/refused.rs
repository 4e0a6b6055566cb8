//! The error of a call that takes a value, which gives it back.

use std::fmt;

use crate::error::Error;

/// A call that was refused, and the value that it was given.
///
/// It prints what the plain [`Error`] prints, and turns into that by `?`. As with [`CopyError`](crate::CopyError), what was handed
/// in is not lost.
///
/// ```
/// use transship_core::{Device, Error};
///
/// let refused = Device::host().register_vec(vec![1.0_f32; 5], &[2, 3]).unwrap_err();
/// assert!(matches!(refused.error(), Error::ShapeMismatch { actual: 20, .. }));
/// assert_eq!(refused.into_value(), [1.0; 5]);
/// ```
pub struct Refused<V>(Box<(Error, V)>);

impl<V> Refused<V> {
    /// A refusal that gives `value` back.
    pub fn new(error: Error, value: V) -> Self {
        Self(Box::new((error, value)))
    }

    /// The same with what `of` makes of the value.
    pub(crate) fn map<W>(self, of: impl FnOnce(V) -> W) -> Refused<W> {
        let (error, value) = self.into_parts();
        Refused::new(error, of(value))
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// Why, without the value.
    pub fn into_error(self) -> Error {
        self.into()
    }

    /// The value.
    pub fn into_value(self) -> V {
        self.0.1
    }

    /// Both.
    pub fn into_parts(self) -> (Error, V) {
        *self.0
    }
}

impl<V> From<Refused<V>> for Error {
    fn from(refused: Refused<V>) -> Self {
        refused.0.0
    }
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", self.error()).finish_non_exhaustive()
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<V> std::error::Error for Refused<V> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error().source()
    }
}
