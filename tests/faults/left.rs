//! What is open on devices, by the stand-in's own count.

#[path = "../support/eventually.rs"]
mod eventually;

use std::ops::Range;
use std::time::Duration;

use crate::stand_in::StandIn;
use crate::through::Through;

/// How many contexts, handles and allocations are open, and what contexts have left behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left(pub(crate) [u64; 3]);

impl Left {
    /// What is open on these devices now.
    pub(crate) fn on(through: Through, devices: &Range<usize>, stand_in: &StandIn) -> Self {
        let sum =
            |figure: &str| devices.clone().map(|device| stand_in.ask(&format!("{figure}:{device}"))).sum();
        let contexts = if through.closes_contexts() { sum("contexts") } else { 0 };
        Self([contexts, sum("handles"), sum("blocks")])
    }

    /// Whether there is no more of anything.
    pub(crate) fn is_at_most(self, most: [u64; 3]) -> bool {
        self.0.iter().zip(most).all(|(open, most)| *open <= most)
    }
}

/// Whether this comes about, by what other threads do.
pub(crate) fn eventually(holds: impl FnMut() -> bool) -> bool {
    eventually::within(Duration::from_secs(5), holds)
}
