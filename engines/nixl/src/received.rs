//! A tree that has arrived, in the memory that it was written to.

use std::fmt;
use std::sync::Arc;

use transship::{Device, Manifest, ManifestLeaf, SharedOwner, Tensor, TensorTree};

use crate::arena::Range;
use crate::error::Result;

/// A tree that has arrived, in the registered memory of the agent.
///
/// Its tensors are to be copied, to a device or to the host, and can be read in no other way: peers reach that memory. Once they and this are dropped, and no copy
/// uses them any more, the memory is free for other transfers.
pub struct Received {
    manifest: Manifest,
    range: Arc<Range>,
    owner: SharedOwner,
}

impl Received {
    /// The tree of `manifest`, whose chunk is `range`.
    pub(crate) fn new(manifest: Manifest, range: Arc<Range>) -> Self {
        let owner = SharedOwner::new(Arc::clone(&range), &Device::host());
        Self { manifest, range, owner }
    }

    /// Which tensors it has.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Puts its tensors into the places of those of `tree`, which must have the same paths, types and shapes, with any bytes.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`]; [`Misaligned`](transship::Error::Misaligned) if the peer has put a tensor where its type cannot lie.
    pub fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        Ok(self.manifest.put_tensors(tree, |leaf| lend(&self.owner, &self.range, leaf))?)
    }

    /// Its tensors with the path to each, in the order of the paths.
    ///
    /// # Errors
    ///
    /// As [`put_into`](Self::put_into).
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut tensors = Vec::with_capacity(self.manifest.len());
        self.manifest.for_each_leaf(|leaf| {
            tensors.push((leaf.path().to_owned(), lend(&self.owner, &self.range, leaf)?));
            Ok(())
        })?;
        Ok(tensors)
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

/// The tensor of a leaf, whose chunk is `range`, of which `owner` has a share.
pub(crate) fn lend(
    owner: &SharedOwner,
    range: &Arc<Range>,
    leaf: &ManifestLeaf<'_>,
) -> transship::Result<Tensor> {
    let bytes = if leaf.chunk().is_some() { leaf.layout().span() } else { 0 };
    let memory = range.memory(leaf.offset(), bytes);
    // SAFETY: the leaf lies in the chunk of its manifest (`Manifest::from_bytes`), and that is the range (`Offer::check`), which is mapped, and
    // zero at first (`Arena`), as long as the owner has it. No reference points there.
    unsafe { owner.tensor_over_shared(memory, leaf.layout().clone()) }
}
