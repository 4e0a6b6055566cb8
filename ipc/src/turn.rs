//! A window of another process that this one may write.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use transship_core::{Device, Manifest, RawMemory, Result, SharedOwner, TensorTree};

use crate::arrived::Arrived;
use crate::error::IpcError;
use crate::packed::{ALIGNMENT, copy_tensors};
use crate::socket::tell;
use crate::turns::Turns;
use crate::wire::Message;

/// A window of another process ([`Connection::open_window`](crate::Connection::open_window)) that is this one's to write until [`finish`](Self::finish).
///
/// Dropped before, it is given once more by [`Importer::next_turn_within`](crate::Importer::next_turn_within), with what was written so far.
pub struct Turn {
    window: Arc<PeerWindow>,
    turns: Arc<Turns>,
    is_over: bool,
}

/// Memory of another process.
pub(crate) struct PeerWindow {
    pub(crate) ticket: u64,
    socket: Arc<OwnedFd>,
    manifest: Manifest,
    memory: RawMemory,
    owner: Arc<dyn Any + Send + Sync>,
    device: Device,
    /// Whether the other process uses it.
    is_theirs: AtomicBool,
}

impl Turn {
    pub(crate) fn new(window: Arc<PeerWindow>, turns: &Arc<Turns>) -> Self {
        Self { window, turns: Arc::clone(turns), is_over: false }
    }

    /// Which tensors the window has.
    pub fn manifest(&self) -> &Manifest {
        &self.window.manifest
    }

    /// Copies `tree` there, from wherever its tensors lie. Waits until that is done, behind all work that they wait for. `tree` is not used any more then.
    ///
    /// # Errors
    ///
    /// [`ManifestMismatch`](transship_core::Error::ManifestMismatch) unless `tree` has the paths, types and shapes of the window, and shares memory where it does; as
    /// [`start_copy_into`](transship_core::start_copy_into). The window can be written once more then.
    pub fn put<S: TensorTree + ?Sized>(&mut self, tree: &S) -> Result<()> {
        let (manifest, tensors) = Manifest::packed_with_tensors(tree, ALIGNMENT)?;
        self.window.manifest.check_same(&manifest)?;
        let owner = SharedOwner::new(Arc::clone(&self.window.owner), &self.window.device);
        // SAFETY: the memory is there until `owner` is dropped, and each tensor of the manifest lies in it (`Arrived`). Nothing else of this process uses it: there is one turn at a time
        // (`Turns`), which is borrowed. The other process does not use it before it is told; one that does reads bytes of its own window.
        unsafe { copy_tensors(tensors, &owner, self.window.memory) }
    }

    /// Hands the window over to the other process, with what is in it: what was put there, or what was there before. `Ok` does not say that anybody reads it.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`].
    pub fn finish(mut self) -> std::result::Result<(), IpcError> {
        self.is_over = true;
        self.window.is_theirs.store(true, Ordering::Release);
        tell(&self.window.socket, Message::Written { ticket: self.window.ticket })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.turns.put_back(&self.window);
        }
    }
}

impl PeerWindow {
    /// It is this process's first.
    pub(crate) fn new(socket: &Arc<OwnedFd>, ticket: u64, arrived: Arrived) -> Self {
        let Arrived { manifest, memory, owner, device } = arrived;
        let (socket, is_theirs) = (Arc::clone(socket), AtomicBool::new(false));
        Self { ticket, socket, manifest, memory, owner: Arc::from(owner), device, is_theirs }
    }

    /// The other process has given it back. `false` if it had not got it.
    pub(crate) fn come_back(&self) -> bool {
        self.is_theirs.swap(false, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("manifest", self.manifest()).finish()
    }
}
