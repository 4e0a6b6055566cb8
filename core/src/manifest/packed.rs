//! The manifest of a structure whose tensors lie in one chunk, without gaps of their own.

use std::num::NonZero;

use crate::alignment::Alignment;
use crate::backend::Limits;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::manifest::entry::entries;
use crate::manifest::leaf::LeafPlace;
use crate::manifest::manifest::Manifest;
use crate::manifest::writer::Writer;
use crate::plan::leaf::{Leaf, Place, PlanOptions, RangeKey};
use crate::plan::plan::{Plan, Route};
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

const LARGEST: usize = isize::MAX.unsigned_abs();

impl Manifest {
    /// Where the tensors of `tree` lie once each is in row-major order in one chunk, at a multiple of `alignment` and of what its type asks for. Those
    /// over the same memory share theirs. It depends on nothing but paths, types, shapes and what is shared.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the chunk is larger than any memory; as [`of`](Self::of).
    pub fn packed<S: TensorTree + ?Sized>(tree: &S, alignment: Alignment) -> Result<Self> {
        let entries = entries(tree, leaf_of)?;
        let leaves: Vec<Leaf> = entries.iter().map(|entry| entry.kept).collect();
        let plan = Plan::new(&leaves, &options(alignment), &Limits::new(alignment, LARGEST));
        let plan = plan.map_err(|error| error.on(DeviceId::HOST))?;
        if plan.chunks().len() > 1 {
            return Err(too_large());
        }
        let mut writer = Writer::default();
        for (index, entry) in entries.iter().enumerate() {
            writer.leaf(&entry.path, &contiguous(&entry.layout), place(plan.routes(), index));
        }
        writer.finish(plan.chunks().iter().map(|chunk| chunk.bytes).collect())
    }
}

fn leaf_of(tensor: &Tensor) -> Result<Leaf> {
    let (storage, layout) = (tensor.storage()?, tensor.layout());
    let is_shared = layout.is_contiguous() && storage.is_shared();
    let range =
        is_shared.then(|| RangeKey { storage: storage.identity(), offset: tensor.offset(), layout: 0 });
    Ok(Leaf {
        bytes: layout.nbytes(),
        alignment: layout.dtype().alignment(),
        skew: 0,
        place: Place::From(0),
        range,
        widened_log2: 0,
    })
}

fn options(alignment: Alignment) -> PlanOptions {
    PlanOptions {
        pack: true,
        alignment,
        multiple: NonZero::<usize>::MIN,
        granularity: Alignment::ONE,
        largest_chunk: LARGEST,
        largest_packed: LARGEST,
    }
}

/// Where a leaf lies; one over the memory of another, where that does.
fn place(routes: &[Route], index: usize) -> Option<LeafPlace> {
    match *routes.get(index)? {
        Route::Packed { chunk, offset } | Route::Alone { chunk, offset } => {
            Some(LeafPlace { chunk: chunk as usize, offset })
        }
        // The earlier one is copied, and so no alias itself.
        Route::Alias(first) if (first as usize) < index => place(routes, first as usize),
        Route::Alias(_) | Route::Resident | Route::Empty => None,
    }
}

fn contiguous(layout: &Layout) -> Layout {
    let mut layout = layout.clone();
    layout.make_contiguous();
    layout
}

/// All together have more bytes than memory can have.
#[cold]
fn too_large() -> Error {
    Error::TooLarge { device: DeviceId::HOST, kind: "host", requested: usize::MAX, limit: LARGEST }
}
