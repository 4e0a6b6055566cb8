//! Finds tensors in any structure.

pub(crate) mod array_containers;
pub(crate) mod array_leaves;
pub(crate) mod containers;
pub(crate) mod into_tensors;
pub(crate) mod outline;
pub(crate) mod pair;
pub(crate) mod paths;
pub(crate) mod stack_growth;
pub(crate) mod step;
pub(crate) mod tensor_tree;
pub(crate) mod value;
pub(crate) mod value_key;
pub(crate) mod value_nested;
