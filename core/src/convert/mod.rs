//! Conversion of elements while they are copied.

pub(crate) mod check;
pub(crate) mod elements;
pub(crate) mod write;
