//! The manifest of a structure as it lies.

use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::manifest::entry::entries;
use crate::manifest::leaf::LeafPlace;
use crate::manifest::manifest::Manifest;
use crate::manifest::writer::Writer;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

impl Manifest {
    /// Where the tensors of `tree` lie now: each piece of memory that they share is a chunk, numbered in the order of the paths. Whether they
    /// are filled yet plays no part.
    ///
    /// # Errors
    ///
    /// [`Error::Taken`](crate::Error::Taken) where a copy has one of them; [`Error::InvalidManifest`](crate::Error::InvalidManifest) if the paths are
    /// longer than a manifest may say; as [`for_each_path`](crate::for_each_path).
    pub fn of<S: TensorTree + ?Sized>(tree: &S) -> Result<Self> {
        let entries = entries(tree, storage_of)?;
        let (mut numbers, mut chunks) = (FxHashMap::default(), Vec::new());
        let mut writer = Writer::default();
        for (_, path, Stored { identity, bytes, offset, layout }) in entries.by_path() {
            let place = (layout.nbytes() > 0).then(|| {
                let chunk = *numbers.entry(*identity).or_insert_with(|| {
                    chunks.push(*bytes);
                    chunks.len().saturating_sub(1)
                });
                LeafPlace { chunk, offset: *offset }
            });
            writer.leaf(path, layout, place);
        }
        writer.finish(chunks)
    }
}

struct Stored {
    identity: usize,
    bytes: usize,
    offset: usize,
    layout: Layout,
}

fn storage_of(tensor: &Tensor) -> Result<Stored> {
    let (storage, layout) = (tensor.storage()?, tensor.layout().clone());
    Ok(Stored { identity: storage.identity(), bytes: storage.bytes(), offset: tensor.offset(), layout })
}
