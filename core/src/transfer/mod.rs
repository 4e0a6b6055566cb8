//! Carries a job out.

pub(crate) mod background;
pub(crate) mod blocks;
pub(crate) mod carry;
pub(crate) mod coalesce;
pub(crate) mod direct;
pub(crate) mod download;
pub(crate) mod filled;
pub(crate) mod inline;
pub(crate) mod job_group;
pub(crate) mod launch;
pub(crate) mod not_inline;
pub(crate) mod order;
pub(crate) mod parallel;
pub(crate) mod resources;
pub(crate) mod segment;
pub(crate) mod segment_copy;
pub(crate) mod stage;
pub(crate) mod upload;
pub(crate) mod via_host;
