//! One importer, as its exporter has it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use transship_core::TensorTree;

use crate::error::IpcError;
use crate::ledger::Ledger;
use crate::offer::Offer;
use crate::packed::Packing;
use crate::pools::Shared;

/// One importer, to which trees are handed over. Dropped, it tells the importer that there will be no more; what was handed over stays there.
///
/// A thread of this process listens to the importer until that has gone, or has given everything back after this was dropped.
pub struct Connection {
    ledger: Arc<Ledger>,
    pools: Shared,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, IpcError> {
        Ok(Self { ledger: Ledger::open(socket)?, pools: Shared::default() })
    }

    /// Copies `tree`, all of which lies on the host or on one device, into memory there that both processes share, and hands it over. Waits until it is copied, behind all
    /// work that its tensors wait for, and not for the importer. `tree` is not used any more then.
    ///
    /// Memory of the host that the importer has given back is used again for trees of the same size, four pieces of it at most: it stays with both processes until a tree of
    /// another size comes, or this goes. Devices of CUDA can share memory. Each importer has a pool of its own on each device, apart from all other memory of this process; it keeps what was freed, for the trees
    /// to come, until this and the last tree have gone.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::TooManyTrees`] if the importer has 128; [`IpcError::SeveralDevices`]; [`IpcError::System`] if there is no memory;
    /// [`IpcError::Tensors`] if `tree` does not show its tensors, one of them cannot be copied, or their device shares no memory
    /// ([`Unsupported`](transship_core::Error::Unsupported)) or has none left. Nothing is handed over then.
    pub fn export<S: TensorTree + ?Sized>(&mut self, tree: &S) -> Result<Offer, IpcError> {
        if self.ledger.has_gone() {
            return Err(IpcError::PeerGone);
        }
        let packing = Packing::new(tree)?;
        let piece = |bytes| self.ledger.piece(bytes);
        let packed = match packing.device().is_host() {
            true => packing.into_shared_memory(piece)?,
            false => {
                let tell = |pool, uuid, descriptor| self.ledger.tell_pool(pool, uuid, &descriptor);
                let (number, pool) = self.pools.of(packing.device(), tell)?;
                packing.into_pool(number, &*pool, piece)?
            }
        };
        Ok(Offer::new(&self.ledger, self.ledger.lend(packed)?))
    }

    /// How many trees the importer has, or will find.
    pub fn lent(&self) -> usize {
        self.ledger.lent()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ledger.close();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("lent", &self.lent()).finish()
    }
}
