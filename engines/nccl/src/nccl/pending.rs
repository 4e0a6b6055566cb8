//! A collective that was submitted.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use transship::{Event, Stream};

use crate::error::Result;
use crate::nccl::comm::Comm;

/// A collective that was submitted, and not waited for.
#[must_use = "the tree comes out of it"]
pub struct Pending<S> {
    pub(crate) tree: S,
    pub(crate) comm: Arc<Comm>,
    pub(crate) end: Event,
    pub(crate) started: Instant,
}

impl<S> Pending<S> {
    /// The tree, once the host knows that it is filled.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`](crate::Error::Nccl) where another rank has failed, [`Error::TimedOut`](crate::Error::TimedOut) where the time of the communicator is
    /// over, counted from the call: the communicator is aborted with both. [`Error::Aborted`](crate::Error::Aborted) where that was before. The tree is
    /// gone then.
    pub fn wait(self) -> Result<S> {
        let Self { tree, comm, end, started } = self;
        comm.wait("a collective", started, || Ok(end.is_reached()?))?;
        Ok(tree)
    }

    /// The tree at once: later work of `stream` waits for it, on the device, and so does whatever is done with it through transship.
    ///
    /// If another rank dies meanwhile, that waits until somebody asks the communicator ([`Communicator::check`](crate::Communicator::check)); what the tree
    /// has after an error is undefined.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn wait_on(self, stream: &Stream) -> Result<S> {
        stream.wait_event(&self.end)?;
        Ok(self.tree)
    }

    /// Whether it is done. Never blocks.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.end.is_reached()?)
    }
}

impl<S> fmt::Debug for Pending<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("end", &self.end).finish_non_exhaustive()
    }
}
