//! Conversion of elements while they are copied.

pub(crate) mod cast;
pub(crate) mod check;
pub(crate) mod convert;
pub(crate) mod write;
