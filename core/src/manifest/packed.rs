//! The manifest of a structure whose tensors lie in one chunk, without gaps of their own.

use std::num::NonZero;

use crate::alignment::Alignment;
use crate::backend::Limits;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::manifest::entry::{Entries, entries};
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
        Ok(Self::packed_with_tensors(tree, alignment)?.0)
    }

    /// The same, and what is to be copied for it: the tensors that have elements, each with its offset in the chunk. Of those that share a place there it
    /// is the first one.
    ///
    /// ```
    /// use transship_core::{Alignment, Manifest, Tensor};
    ///
    /// let bias = Tensor::from(vec![1_u8, 2]);
    /// let tree = vec![bias.clone(), Tensor::from(vec![3_u8]), bias];
    /// let (manifest, tensors) = Manifest::packed_with_tensors(&tree, Alignment::ONE)?;
    /// let places: Vec<_> = tensors.iter().map(|(offset, tensor)| (*offset, tensor.nbytes())).collect();
    /// assert_eq!((manifest.len(), manifest.chunks(), places), (3, &[3][..], vec![(0, 2), (2, 1)]));
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`packed`](Self::packed).
    pub fn packed_with_tensors<S: TensorTree + ?Sized>(
        tree: &S,
        alignment: Alignment,
    ) -> Result<(Self, Vec<(usize, Tensor)>)> {
        let (manifest, places, entries) = pack(tree, alignment)?;
        let mut shown: Vec<_> = entries.into_shown().into_iter().map(Some).collect();
        Ok((manifest, tensors_at(&places, &mut shown)))
    }

    /// The same as [`packed`](Self::packed), with a place of its own for each tensor, whatever memory they share: for places that are written one by one.
    ///
    /// ```
    /// use transship_core::{Alignment, DType, Device, Manifest, Tensor};
    ///
    /// let tree = vec![Tensor::zeros(&[4], DType::U8, &Device::host())?; 3];
    /// assert_eq!(Manifest::packed(&tree, Alignment::ONE)?.chunks(), &[4]);
    /// assert_eq!(Manifest::packed_apart(&tree, Alignment::ONE)?.chunks(), &[12]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`packed`](Self::packed).
    pub fn packed_apart<S: TensorTree + ?Sized>(tree: &S, alignment: Alignment) -> Result<Self> {
        Ok(pack_entries(entries(tree, apart)?, alignment)?.0)
    }
}

/// The manifest, the places in its chunk by their offsets, and what the structure has shown.
pub(crate) fn pack<S: TensorTree + ?Sized>(
    tree: &S,
    alignment: Alignment,
) -> Result<(Manifest, Vec<PackedPlace>, Entries<Shared>)> {
    pack_entries(entries(tree, shared)?, alignment)
}

fn pack_entries(
    entries: Entries<Shared>,
    alignment: Alignment,
) -> Result<(Manifest, Vec<PackedPlace>, Entries<Shared>)> {
    let leaves = entries.by_path().map(|(.., shared)| leaf_of(shared)).collect::<Result<Vec<Leaf>>>()?;
    let plan = Plan::new(&leaves, &options(alignment), &Limits::new(alignment, LARGEST));
    let plan = plan.map_err(|error| error.on(DeviceId::HOST))?;
    if plan.chunks().len() > 1 {
        return Err(too_large());
    }
    let (mut writer, mut places) = (Writer::default(), Vec::with_capacity(leaves.len()));
    for (index, (shown, path, shared)) in entries.by_path().enumerate() {
        writer.leaf(path, &contiguous(shared.tensor.layout()), place(plan.routes(), index));
        if let Some(Route::Packed { offset, .. } | Route::Alone { offset, .. }) = plan.routes().get(index) {
            places.push(PackedPlace { shown, offset: *offset });
        }
    }
    let manifest = writer.finish(plan.chunks().iter().map(|chunk| chunk.bytes).collect())?;
    Ok((manifest, places, entries))
}

/// Where a tensor is copied to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedPlace {
    /// Which one it is in the order in which the structure shows them.
    pub(crate) shown: usize,
    pub(crate) offset: usize,
}

/// The tensor of each place, with its offset, out of all that were shown.
pub(crate) fn tensors_at(places: &[PackedPlace], shown: &mut [Option<Shared>]) -> Vec<(usize, Tensor)> {
    let mut tensors = Vec::with_capacity(places.len());
    for PackedPlace { shown: number, offset } in places {
        if let Some(Some(Shared { tensor, .. })) = shown.get_mut(*number).map(std::mem::take) {
            tensors.push((*offset, tensor));
        }
    }
    tensors
}

/// A tensor, which shares its memory now, and whether it did before.
pub(crate) struct Shared {
    pub(crate) tensor: Tensor,
    pub(crate) is_shared: bool,
}

pub(crate) fn shared(tensor: &Tensor) -> Result<Shared> {
    let is_shared = is_shared(tensor)?;
    Ok(Shared { tensor: tensor.clone(), is_shared })
}

/// As if no other tensor had its memory.
fn apart(tensor: &Tensor) -> Result<Shared> {
    Ok(Shared { tensor: tensor.clone(), is_shared: false })
}

/// Whether others may show the same memory.
#[inline]
pub(crate) fn is_shared(tensor: &Tensor) -> Result<bool> {
    let storage = tensor.storage()?;
    Ok(tensor.is_contiguous() && storage.is_shared())
}

fn leaf_of(Shared { tensor, is_shared }: &Shared) -> Result<Leaf> {
    let (storage, layout) = (tensor.storage()?, tensor.layout());
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

pub(crate) fn contiguous(layout: &Layout) -> Layout {
    let mut layout = layout.clone();
    layout.make_contiguous();
    layout
}

/// All together have more bytes than memory can have.
#[cold]
fn too_large() -> Error {
    Error::TooLarge { device: DeviceId::HOST, kind: "host", requested: usize::MAX, limit: LARGEST }
}
