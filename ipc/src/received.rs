//! Tensors that another process has written.

use transship_core::{Error, Manifest, ManifestLeaf, Result, SharedMemory, Tensor, TensorTree};

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
    /// What another process has on a device. No reference ever points there.
    pub(crate) fn on_device(manifest: Manifest, tensors: Vec<Tensor>) -> Self {
        Self { manifest, tensors: Tensors::There(tensors) }
    }

    /// What another process has in memory of the host. The only chunk of `manifest` begins where `memory` does.
    pub(crate) fn new(manifest: Manifest, memory: SharedMemory) -> Self {
        Self { manifest, tensors: Tensors::Shared(memory) }
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
