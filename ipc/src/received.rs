//! Tensors that another process has written.

use transship_core::{
    Error, Layout, Manifest, ManifestLeaf, MemoryKind, RawMemory, Result, SharedMemory, SharedOwner, Tensor,
    TensorTree,
};

/// The tensors of a manifest.
pub(crate) struct Received {
    manifest: Manifest,
    tensors: Tensors,
}

enum Tensors {
    /// In one chunk of memory that another process can write to: they are copied, and read in no other way.
    Shared(SharedMemory),
    /// These, in the order of the manifest.
    There(Vec<Tensor>),
}

impl Received {
    /// Over `memory`, which the only chunk of `manifest` begins with, until `owner` is dropped.
    ///
    /// # Safety
    ///
    /// Memory of the host: as [`SharedOwner::shared_memory`]. Memory of a device: as [`SharedOwner::tensors`], where each tensor of `manifest` lies.
    pub(crate) unsafe fn new(manifest: Manifest, owner: &SharedOwner, memory: RawMemory) -> Result<Self> {
        let tensors = match memory.kind {
            // SAFETY: passed on.
            MemoryKind::Device => Tensors::There(unsafe { owner.tensors(places(&manifest, memory)?)? }),
            // SAFETY: passed on.
            _ => Tensors::Shared(unsafe { owner.shared_memory(memory)? }),
        };
        Ok(Self { manifest, tensors })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        let mut number = 0..;
        self.manifest.put_tensors(tree, |leaf| self.tensor(number.next(), leaf))
    }

    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let (mut number, mut tensors) = (0.., Vec::with_capacity(self.manifest.len()));
        self.manifest.for_each_leaf(|leaf| {
            tensors.push((leaf.path().to_owned(), self.tensor(number.next(), leaf)?));
            Ok(())
        })?;
        Ok(tensors)
    }

    /// The tensor of this number, which `leaf` describes.
    fn tensor(&self, number: Option<usize>, leaf: &ManifestLeaf<'_>) -> Result<Tensor> {
        match &self.tensors {
            Tensors::There(tensors) => {
                let tensor = number.and_then(|number| tensors.get(number)).cloned();
                tensor.ok_or(Error::TreeChanged { first: self.manifest.len(), second: tensors.len() })
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
