//! Tensors of cubecl's that are to be lent.

use burn_cubecl::tensor::CubeTensor;
use transship::Layout;

use crate::error::Error;

/// A tensor that has elements.
pub(crate) struct Loan {
    /// Which of all that are lent together.
    pub(crate) number: usize,
    pub(crate) cube: CubeTensor,
    pub(crate) layout: Layout,
}

/// What is wrong, and with which of several if it is one of them.
pub(crate) struct Refused {
    pub(crate) number: Option<usize>,
    pub(crate) error: Error,
}

impl Refused {
    pub(crate) fn at(number: usize, error: impl Into<Error>) -> Self {
        Self { number: Some(number), error: error.into() }
    }
}

impl<E: Into<Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self { number: None, error: error.into() }
    }
}
