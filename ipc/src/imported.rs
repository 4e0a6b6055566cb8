//! A tree that another process has handed over.

use std::sync::Arc;

use transship_core::{Manifest, Result, SharedOwner, Tensor, TensorTree};

use crate::arrived::Arrived;
use crate::received::Received;

/// A tree that another process has handed over, in the memory that both share.
///
/// Tensors on a device are ordinary ones that are read-only. Those on the host are to be copied, to a device or to the host, and can be read in no other way: the other
/// process can still write to their memory. Once they and this are dropped, and no copy and no stream uses them any more, the other process is told. They stay valid when it has gone.
pub struct Imported {
    received: Arc<Received>,
}

impl Imported {
    /// Of an exporter.
    pub(crate) fn new(arrived: Arrived) -> Result<Self> {
        let Arrived { put, memory, owner, device } = arrived;
        let owner = SharedOwner::new(owner, &device);
        // SAFETY: the memory is there until `owner` is dropped, and each tensor of the manifest lies in it (`Arrived`). Memory of the host is page-locked for the driver of its kind,
        // and was made of zeros. The exporter does not write to that of a device meanwhile; one that does changes bytes where no reference points.
        Ok(Self::of(unsafe { Received::new(put, &owner, memory)? }))
    }

    pub(crate) fn of(received: impl Into<Arc<Received>>) -> Self {
        Self { received: received.into() }
    }

    /// Whether its tensors are those of `received`.
    pub(crate) fn is_of(&self, received: &Arc<Received>) -> bool {
        Arc::ptr_eq(&self.received, received)
    }

    /// Which tensors it has.
    pub fn manifest(&self) -> &Manifest {
        self.received.manifest()
    }

    /// Puts its tensors into the places of those of `tree`, which must have the same paths, types and shapes: the structure that was handed over, with any bytes.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`]; [`Misaligned`](transship_core::Error::Misaligned) if the other process has put a tensor where its type cannot lie.
    pub fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        self.received.put_into(tree)
    }

    /// Its tensors with the path to each, in the order of the paths.
    ///
    /// # Errors
    ///
    /// As [`put_into`](Self::put_into).
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        self.received.tensors()
    }
}

impl std::fmt::Debug for Imported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Imported").field("manifest", self.manifest()).finish()
    }
}
