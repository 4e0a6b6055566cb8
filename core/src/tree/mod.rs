//! Finds tensors in any structure.

pub(crate) mod containers;
pub(crate) mod outline;
pub(crate) mod pair;
pub(crate) mod paths;
pub(crate) mod stack_growth;
pub(crate) mod step;
pub(crate) mod tensor_tree;
pub(crate) mod value;
pub(crate) mod value_key;
pub(crate) mod value_nested;
