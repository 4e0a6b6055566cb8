//! Carries a job out.

pub(crate) mod background;
pub(crate) mod block_layout;
pub(crate) mod carry_in_parallel;
pub(crate) mod carry_segment;
pub(crate) mod coalesce;
pub(crate) mod cut_segments;
pub(crate) mod direct;
pub(crate) mod download_ahead;
pub(crate) mod filled;
pub(crate) mod inline;
pub(crate) mod into_graph;
pub(crate) mod job_group;
pub(crate) mod launch;
pub(crate) mod not_inline;
pub(crate) mod order;
pub(crate) mod segment_context;
pub(crate) mod stage;
pub(crate) mod staged_download;
pub(crate) mod staged_upload;
pub(crate) mod submission_resources;
pub(crate) mod take_blocks;
pub(crate) mod via_host;
