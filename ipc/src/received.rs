//! Tensors that another process has written.

use transship_core::{Error, Manifest, ManifestLeaf, RawMemory, Result, SharedOwner, Tensor, TensorTree};

/// The tensors of a manifest.
pub(crate) struct Received {
    manifest: Manifest,
    tensors: Tensors,
}

enum Tensors {
    /// In one chunk of memory that another process can write to: they are copied, and read in no other way.
    Shared { owner: SharedOwner, chunk: RawMemory },
    /// These, in the order of the manifest.
    There(Vec<Tensor>),
}

impl Received {
    /// What another process has on a device. No reference ever points there.
    pub(crate) fn on_device(manifest: Manifest, tensors: Vec<Tensor>) -> Self {
        Self { manifest, tensors: Tensors::There(tensors) }
    }

    /// # Safety
    ///
    /// `chunk` is memory as [`SharedOwner::tensor_over_shared`] asks for, until `owner` is dropped. `manifest` has no other chunk, and that is not larger.
    pub(crate) unsafe fn new(manifest: Manifest, owner: SharedOwner, chunk: RawMemory) -> Self {
        Self { manifest, tensors: Tensors::Shared { owner, chunk } }
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
            Tensors::Shared { owner, chunk } => {
                let address = chunk.address.saturating_add(leaf.offset() as u64);
                let memory = RawMemory::new(address, leaf.layout().span(), chunk.kind);
                // SAFETY: the leaf lies in the chunk of its manifest (`Manifest::from_bytes`), and that in the memory which `owner` keeps (`new`).
                unsafe { owner.tensor_over_shared(memory, leaf.layout().clone()) }
            }
        }
    }
}
