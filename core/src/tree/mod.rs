//! Finds tensors in any structure.

pub(crate) mod containers;
pub(crate) mod key;
pub(crate) mod nested;
pub(crate) mod outline;
pub(crate) mod pair;
pub(crate) mod stack_growth;
pub(crate) mod value;
pub(crate) mod visitor;
