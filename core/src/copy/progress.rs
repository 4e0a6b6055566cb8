//! How far a copy is.

use crate::copy::handle::CopyHandle;
use crate::runtime::fork;

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Bytes that have arrived, padding included. Never fewer than before, and all of them once the copy is done.
    pub arrived_bytes: u64,
    /// Bytes of the whole copy, padding included.
    pub total_bytes: u64,
}

impl<S> CopyHandle<S> {
    /// How far the copy is. Asks the device; never blocks. A copy that workers carry out arrives in many pieces; any other one, which
    /// is small or was to be submitted at once, in one.
    pub fn progress(&self) -> CopyProgress {
        let total_bytes = self.total_bytes();
        let arrived_bytes = match self.completion.is_done() {
            Ok(true) => total_bytes,
            Ok(false) | Err(_) if fork::is_child() => 0,
            Ok(false) | Err(_) => self.completion.arrived(&mut |_| true).min(total_bytes),
        };
        CopyProgress { arrived_bytes, total_bytes }
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        match &self.job {
            Some(job) => job.plan.chunks().iter().map(|chunk| chunk.bytes as u64).sum(),
            None => self.planned.chunk_bytes,
        }
    }
}
