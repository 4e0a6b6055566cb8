//! A tree that was handed over.

use std::sync::Arc;
use std::time::Duration;

use crate::error::IpcError;
use crate::ledger::{Ledger, Tree};

/// A tree that was handed to an importer. Whether this is kept or dropped changes nothing for that.
pub struct Offer {
    ledger: Arc<Ledger>,
    tree: Tree,
}

impl Offer {
    pub(crate) fn new(ledger: &Arc<Ledger>, tree: Tree) -> Self {
        Self { ledger: Arc::clone(ledger), tree }
    }

    /// Whether the importer has let go of its last tensor of the tree, and no copy of it reads one any more; or has gone. An importer that was dropped, and whose tensors are still
    /// used, takes no more ([`IpcError::PeerGone`]) and has not gone. Never, as a child that was forked from this process sees it.
    pub fn is_released(&self) -> bool {
        self.ledger.check_here().is_ok() && !self.ledger.has_tree(self.tree)
    }

    /// Waits for that, for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`]; [`IpcError::Forked`].
    pub fn wait_released(&self, limit: Duration) -> Result<(), IpcError> {
        self.ledger.check_here()?;
        match self.ledger.wait(self.tree, limit) {
            true => Ok(()),
            false => Err(IpcError::NotInTime { what: "the importer did not let go of the tree", limit }),
        }
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer").field("is_released", &self.is_released()).finish()
    }
}
