//! NCCL, and RCCL, which has the same functions.

pub(crate) mod agree;
pub(crate) mod comm;
pub(crate) mod communicator;
pub(crate) mod elements;
pub(crate) mod functions;
pub(crate) mod library;
pub(crate) mod local_ranks;
pub(crate) mod memory;
pub(crate) mod native;
pub(crate) mod pending;
pub(crate) mod run;
pub(crate) mod unique_id;
