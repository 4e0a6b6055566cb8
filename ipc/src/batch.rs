//! A batch that a loader has written.

use std::sync::Arc;

use transship_core::{Device, Manifest, RawMemory, RepeatedPut, Result, SharedOwner, Tensor, TensorTree};

use crate::error::{IpcError, broken};
use crate::received::Received;
use crate::ring::{Lease, Ring};

/// A batch that a loader has written, in the memory that it shares with this process.
///
/// Its tensors are to be copied, to a device or to the host, and can be read in no other way: another process maps their memory. Once they
/// and this are dropped, and no copy uses them any more, the loader has their slot again.
pub struct Batch {
    number: u64,
    ring: Arc<Ring>,
    received: Received,
}

impl Batch {
    /// The batch in `slot` of `ring`, which has the chunk of the manifest of `put` at its start.
    pub(crate) fn new(
        number: u64,
        put: Arc<RepeatedPut>,
        ring: &Arc<Ring>,
        slot: usize,
    ) -> std::result::Result<Self, IpcError> {
        let address = ring.address(slot).ok_or_else(|| broken("there is no such slot"))?;
        let start = RawMemory::new(address, ring.slot_bytes(), ring.kind());
        let owner = SharedOwner::new(Lease::new(ring, slot), &Device::host());
        // SAFETY: the chunk lies in the slot (`Peer::batch`), which is mapped, and locked for the driver of its kind, until the lease that `owner` has is dropped. It
        // was made of zeros. No reference points there (`Mapping`).
        let received = unsafe { Received::new(put, &owner, start)? };
        Ok(Self { number, ring: Arc::clone(ring), received })
    }

    /// The number that it was asked for by.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Which tensors it has.
    pub fn manifest(&self) -> &Manifest {
        self.received.manifest()
    }

    /// Puts its tensors into the places of those of `tree`, which must have the same paths, types and shapes: the structure that the loader has written,
    /// with any bytes.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`]; [`Misaligned`](transship_core::Error::Misaligned) if the loader has put a tensor where its type cannot lie.
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

    /// Whether it lies there.
    pub(crate) fn lies_in(&self, ring: &Arc<Ring>) -> bool {
        Arc::ptr_eq(&self.ring, ring)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("number", &self.number).field("manifest", self.manifest()).finish()
    }
}
