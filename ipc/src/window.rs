//! Memory that another process writes, as the process that reads it has it.

use std::sync::Arc;
use std::time::Duration;

use transship_core::{Device, Manifest, SharedOwner};

use crate::error::IpcError;
use crate::imported::Imported;
use crate::ledger::Ledger;
use crate::packed::Packed;
use crate::received::Received;

/// Memory of this process that an importer writes: see [`Connection::open_window`](crate::Connection::open_window). The importer has it first, and again whenever what it has written is
/// not used any more.
///
/// Dropped, and all tensors over it too, it is taken from the importer, which frees it when it next listens.
pub struct Window {
    shared: Arc<Shared>,
    device: Device,
}

/// What the window and tensors over it have.
struct Shared {
    ledger: Arc<Ledger>,
    ticket: u64,
    manifest: Manifest,
    packed: Packed,
}

/// What tensors own. Dropped, the importer may write again.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.ledger.give_again(self.0.ticket);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ledger.close_window(self.ticket);
    }
}

impl Window {
    pub(crate) fn new(
        ledger: &Arc<Ledger>,
        ticket: u64,
        (manifest, packed): (Manifest, Packed),
        device: &Device,
    ) -> Self {
        let shared = Shared { ledger: Arc::clone(ledger), ticket, manifest, packed };
        Self { shared: Arc::new(shared), device: device.clone() }
    }

    /// What the importer has written, waiting for it for at most `limit`: tensors over the window. The importer writes there again once they and what this returns are dropped,
    /// and no copy and no stream uses them any more. A copy that is done keeps them as long as its handle was not waited for.
    ///
    /// # Errors
    ///
    /// [`IpcError::NotInTime`], also if the tensors of the time before are still used; [`IpcError::PeerGone`], in the middle of a write as well, but not for what
    /// was finished before; [`IpcError::WindowClosed`]; [`IpcError::Tensors`].
    pub fn written_within(&self, limit: Duration) -> Result<Imported, IpcError> {
        let Shared { ledger, ticket, manifest, packed } = &*self.shared;
        ledger.take_written(*ticket, limit)?;
        let owner = SharedOwner::new(Held(Arc::clone(&self.shared)), &self.device);
        // SAFETY: the memory has room for all of the manifest, and is there until `owner` is dropped (`Packed`); that of the host was made of zeros. The importer does not write to it
        // until then; one that does changes bytes where no reference points.
        let received = unsafe { Received::new(manifest.clone(), &owner, packed.memory()?)? };
        Ok(Imported::of(received))
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("manifest", &self.shared.manifest).finish_non_exhaustive()
    }
}
