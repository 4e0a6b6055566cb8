//! The library: its functions, found at run time, and an agent of it.

pub(crate) mod agent;
pub(crate) mod functions;
pub(crate) mod library;
pub(crate) mod place;
