//! Deciding where each leaf goes: a pure function of sizes and limits, without a device and without a failure mode
//! other than [`PlanError`].
//!
//! A plan has *chunks*, each of which becomes one buffer of the target. Leaves that are small share a chunk, every
//! other leaf has one of its own. The chunks of one source, laid one behind the other, are the source's *linear
//! space*: staging cuts it into blocks where it likes, since an address in it names one byte of one chunk.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub(crate) mod copied_leaves;
pub(crate) mod leaf;
pub(crate) mod one_pass;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod preallocated;
pub(crate) mod rules;

pub use leaf::{Leaf, Place, PlanOptions, RangeKey};
pub use plan::{Chunk, Counts, NumberedChunks, Plan, PlanError, Route};
