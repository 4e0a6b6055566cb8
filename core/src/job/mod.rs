//! One copy as data: what goes where, by which path. Knows no structure, starts nothing.

pub(crate) mod allocate;
pub(crate) mod dependencies;
pub(crate) mod destination;
pub(crate) mod into_memory;
pub(crate) mod job;
pub(crate) mod leaf;
pub(crate) mod leaves;
pub(crate) mod options;
pub(crate) mod preallocated;
pub(crate) mod report;
pub(crate) mod scan;
pub(crate) mod shared_plan;
pub(crate) mod source;
pub(crate) mod transfer_path;
pub(crate) mod unstage;
