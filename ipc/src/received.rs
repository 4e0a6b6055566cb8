//! Tensors that another process has written.

use std::sync::Arc;

use transship_core::{
    Manifest, ManifestLeaf, MemoryKind, PreparedPut, RawMemory, RepeatedPut, Result, SharedMemory,
    SharedOwner, Tensor, TensorTree,
};

/// The tensors of a manifest.
pub(crate) struct Received {
    put: Arc<RepeatedPut>,
    /// The chunk. What is there on the host is copied, and read in no other way: another process can write to it.
    memory: SharedMemory,
}

impl Received {
    /// Over `memory`, which the only chunk of the manifest of `put` begins with, until `owner` is dropped.
    ///
    /// # Safety
    ///
    /// Memory of the host: as [`SharedOwner::shared_memory`]. Memory of a device: as [`SharedOwner::memory`], where each tensor of the manifest lies.
    pub(crate) unsafe fn new(put: Arc<RepeatedPut>, owner: &SharedOwner, memory: RawMemory) -> Result<Self> {
        let memory = match memory.kind {
            // SAFETY: passed on: a tensor is made for each of the manifest, and for no other part.
            MemoryKind::Device => unsafe { owner.memory(memory)? },
            // SAFETY: passed on.
            _ => unsafe { owner.shared_memory(memory)? },
        };
        Ok(Self { put, memory })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        self.put.manifest()
    }

    /// All but the last step of [`put_into`](Self::put_into).
    pub(crate) fn prepare<'t, S: TensorTree + ?Sized>(&self, tree: &'t mut S) -> Result<PreparedPut<'t, S>> {
        self.put.prepare(tree, |leaf| self.tensor(leaf))
    }

    pub(crate) fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        self.put.put_tensors(tree, |leaf| self.tensor(leaf))
    }

    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut tensors = Vec::with_capacity(self.manifest().len());
        self.manifest().for_each_leaf(|leaf| {
            tensors.push((leaf.path().to_owned(), self.tensor(leaf)?));
            Ok(())
        })?;
        Ok(tensors)
    }

    /// The tensor that `leaf` describes.
    fn tensor(&self, leaf: &ManifestLeaf<'_>) -> Result<Tensor> {
        self.memory.tensor(leaf.offset(), leaf.layout().clone())
    }
}
