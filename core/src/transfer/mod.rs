//! Carries a job out.

pub(crate) mod coalesce;
pub(crate) mod crew;
pub(crate) mod download;
pub(crate) mod group;
pub(crate) mod inline;
pub(crate) mod muster;
pub(crate) mod segment;
pub(crate) mod segment_copy;
pub(crate) mod upload;
