//! A tree that has arrived, in the memory that it was written to.

use std::fmt;
use std::sync::Arc;

use transship::{Device, ForkCount, Manifest, ManifestLeaf, SharedMemory, SharedOwner, Tensor, TensorTree};

use crate::arena::Range;
use crate::error::{Error, Result};

/// A tree that has arrived, in the registered memory of the agent.
///
/// Its tensors are to be copied, to a device or to the host, and can be read in no other way: peers reach that memory. Once they and this are dropped, and no copy
/// uses them any more, the memory is free for other transfers. Where the agent has gone before, the last tensor frees all of it: on a GPU by `cuMemFree`, which may wait for all work there.
pub struct Received {
    manifest: Manifest,
    memory: SharedMemory,
    /// What is registered may not be mapped in a child that was forked.
    forks: ForkCount,
}

impl Received {
    /// The tree of `manifest`, whose chunk is `range` on `device`.
    pub(crate) fn new(manifest: Manifest, range: &Arc<Range>, device: &Device) -> Result<Self> {
        Ok(Self { manifest, memory: shared(range, device)?, forks: ForkCount::now() })
    }

    /// Which tensors it has.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Puts its tensors into the places of those of `tree`, which must have the same paths, types and shapes, with any bytes.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`]; [`Error::Forked`]; [`Misaligned`](transship::Error::Misaligned) if the peer has put a tensor where its type cannot lie.
    pub fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        self.check_here()?;
        Ok(self.manifest.put_tensors(tree, |leaf| lend(&self.memory, leaf))?)
    }

    /// Its tensors with the path to each, in the order of the paths.
    ///
    /// # Errors
    ///
    /// As [`put_into`](Self::put_into).
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        self.check_here()?;
        let mut tensors = Vec::with_capacity(self.manifest.len());
        self.manifest.for_each_leaf(|leaf| {
            tensors.push((leaf.path().to_owned(), lend(&self.memory, leaf)?));
            Ok(())
        })?;
        Ok(tensors)
    }

    fn check_here(&self) -> Result<()> {
        if self.forks.is_now() { Ok(()) } else { Err(Error::Forked) }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

/// The memory of `range` on `device`, to be copied from.
pub(crate) fn shared(range: &Arc<Range>, device: &Device) -> transship::Result<SharedMemory> {
    let owner = SharedOwner::new(Arc::clone(range), device);
    // SAFETY: the range is mapped, and zero at first (`Memory`), as long as the owner has it. No reference points there.
    unsafe { owner.shared_memory(range.memory(0, range.bytes)) }
}

/// The tensor of a leaf, whose chunk is `memory`.
pub(crate) fn lend(memory: &SharedMemory, leaf: &ManifestLeaf<'_>) -> transship::Result<Tensor> {
    let offset = if leaf.chunk().is_some() { leaf.offset() } else { 0 };
    memory.tensor(offset, leaf.layout().clone())
}
