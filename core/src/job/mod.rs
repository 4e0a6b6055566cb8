//! One copy as data: what goes where, by which path. Knows no structure, starts nothing.

pub(crate) mod allocate;
pub(crate) mod allocate_by_program;
pub(crate) mod allocator;
pub(crate) mod apart;
pub(crate) mod callers_memory;
pub(crate) mod chunk_memory;
pub(crate) mod dependencies;
pub(crate) mod job;
pub(crate) mod kernels;
pub(crate) mod leaf;
pub(crate) mod leaves;
pub(crate) mod locate_leaves;
pub(crate) mod options;
pub(crate) mod plan_into;
pub(crate) mod report;
pub(crate) mod result_blocks;
pub(crate) mod shared_plan;
pub(crate) mod source;
pub(crate) mod transfer_path;
pub(crate) mod unstage;
pub(crate) mod widening;
