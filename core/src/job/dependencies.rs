//! The copies and streams that a copy must come after.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::in_flight::completion::Completion;
use crate::in_flight::stream_uses::StreamUses;

/// The copies and streams that a copy must come after.
#[derive(Default, Clone)]
pub(crate) struct Dependencies {
    /// Copies that fill its sources.
    pub(crate) of_sources: SmallVec<[Arc<Completion>; 1]>,
    /// Copies that fill tensors that stay where they are.
    pub(crate) of_residents: SmallVec<[Arc<Completion>; 1]>,
    /// Streams that its sources on devices were handed to.
    pub(crate) uses: StreamUses,
    /// Copies that still fill memory of the caller, which it fills next.
    pub(crate) of_destinations: SmallVec<[Arc<Completion>; 1]>,
}
