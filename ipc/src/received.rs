//! Tensors that another process has written.

use std::sync::Arc;

use transship_core::{
    Error, Layout, Manifest, ManifestLeaf, MemoryKind, PreparedPut, RawMemory, RepeatedPut, Result,
    SharedMemory, SharedOwner, Tensor, TensorTree,
};

/// The tensors of a manifest.
pub(crate) struct Received {
    put: Arc<RepeatedPut>,
    tensors: Tensors,
}

enum Tensors {
    /// In one chunk of memory that another process can write to: they are copied, and read in no other way.
    Shared(SharedMemory),
    /// These, in the order of the manifest.
    There(Vec<Tensor>),
}

impl Received {
    /// Over `memory`, which the only chunk of the manifest of `put` begins with, until `owner` is dropped.
    ///
    /// # Safety
    ///
    /// Memory of the host: as [`SharedOwner::shared_memory`]. Memory of a device: as [`SharedOwner::tensors`], where each tensor of the manifest lies.
    pub(crate) unsafe fn new(put: Arc<RepeatedPut>, owner: &SharedOwner, memory: RawMemory) -> Result<Self> {
        let tensors = match memory.kind {
            // SAFETY: passed on.
            MemoryKind::Device => Tensors::There(unsafe { owner.tensors(places(put.manifest(), memory)?)? }),
            // SAFETY: passed on.
            _ => Tensors::Shared(unsafe { owner.shared_memory(memory)? }),
        };
        Ok(Self { put, tensors })
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
        match &self.tensors {
            Tensors::There(tensors) => {
                let tensor = tensors.get(leaf.number()).cloned();
                tensor.ok_or(Error::TreeChanged { first: self.manifest().len(), second: tensors.len() })
            }
            Tensors::Shared(memory) => memory.tensor(leaf.offset(), leaf.layout().clone()),
        }
    }
}

/// Where each tensor lies in the chunk that `memory` begins with.
fn places(manifest: &Manifest, memory: RawMemory) -> Result<Vec<(RawMemory, Layout)>> {
    let mut places = Vec::with_capacity(manifest.len());
    manifest.for_each_leaf(|leaf| {
        let address = memory.address.saturating_add(leaf.offset() as u64);
        places.push((RawMemory::new(address, leaf.layout().span(), memory.kind), leaf.layout().clone()));
        Ok(())
    })?;
    Ok(places)
}
