//! Structures that look alike, packed into one chunk again and again.

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::alignment::Alignment;
use crate::error::Result;
use crate::manifest::entry::Entries;
use crate::manifest::known_tree::KnownTree;
use crate::manifest::manifest::Manifest;
use crate::manifest::one_piece::OnePiece;
use crate::manifest::packed::{PackedPlace, Shared, is_shared, pack, tensors_at};
use crate::runtime::scratch::{Scratch, ScratchVec};
use crate::runtime::sync::Mutex;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

/// A manifest of [packed](Manifest::packed) tensors, for structures that are copied there again and again. One that shows the same paths, types and shapes in the same order as the last
/// one, and shares memory where that did, has the same places: it is compared, and neither sorted nor planned.
///
/// ```
/// use transship_core::{Alignment, Manifest, RepeatedPacking, Tensor};
///
/// let version = |value: u8| vec![Tensor::from(vec![value; 2]), Tensor::from(vec![value; 3])];
/// let manifest = Manifest::packed(&version(0), Alignment::ONE)?;
/// let packing = RepeatedPacking::new(manifest, Alignment::ONE);
/// for value in 1..4 {
///     let tensors = packing.tensors(&version(value))?;
///     assert_eq!((tensors[1].0, tensors[1].1.as_slice::<u8>()?), (2, &[value; 3][..]));
/// }
/// assert!(packing.tensors(&vec![Tensor::from(vec![1_u8])]).is_err());
/// # Ok::<(), transship_core::Error>(())
/// ```
pub struct RepeatedPacking {
    manifest: Manifest,
    alignment: Alignment,
    /// Of a structure that was packed as it lay.
    as_it_lies: Option<OnePiece>,
    last: Mutex<Option<Arc<Known>>>,
}

thread_local! {
    static SHOWN: Scratch<Option<Shared>> = const { Scratch::new() };
}

/// A structure that has the manifest.
struct Known {
    tree: KnownTree,
    /// As [`first_of`] says.
    first_of: Vec<usize>,
    places: Vec<PackedPlace>,
}

impl RepeatedPacking {
    /// For structures whose manifest, packed with this alignment, is `manifest`.
    pub fn new(manifest: Manifest, alignment: Alignment) -> Self {
        Self { manifest, alignment, as_it_lies: None, last: Mutex::new(None) }
    }

    /// For structures that look like `tree`, and its tensors, as [`tensors`](Self::tensors) gives them.
    ///
    /// # Errors
    ///
    /// As [`Manifest::packed`].
    pub fn of<S: TensorTree + ?Sized>(
        tree: &S,
        alignment: Alignment,
    ) -> Result<(Self, Vec<(usize, Tensor)>)> {
        let (manifest, places, entries) = pack(tree, alignment)?;
        let (known, tensors) = Known::of(places, entries)?;
        let last = Mutex::new(Some(Arc::new(known)));
        Ok((Self { manifest, alignment, as_it_lies: None, last }, tensors))
    }

    /// For structures that look like `tree` and lie as it does, where that is in one piece of a device's memory, as small tensors do that one copy has packed: its tensors stay where they are in the piece. All of
    /// it is copied as one tensor of bytes at offset 0, which is given here and by [`tensors_of_same`](Self::tensors_of_same) for each structure that lies so.
    ///
    /// `None` unless there are two tensors with elements or more, all of them without gaps in one chunk of a copy, with fewer than 16 bytes between two, and the first one at a multiple of `alignment` there. The bytes
    /// between two tensors are copied along. They may be what another tensor had, or still has where [`packed_alignment`](crate::CopyOptions::packed_alignment) is below 16.
    ///
    /// # Errors
    ///
    /// As [`Manifest::of`].
    pub fn of_one_piece<S: TensorTree + ?Sized>(
        tree: &S,
        alignment: Alignment,
    ) -> Result<Option<(Self, Tensor)>> {
        let Some((piece, manifest, whole)) = OnePiece::of(tree, alignment)? else { return Ok(None) };
        let packing = Self { manifest, alignment, as_it_lies: Some(piece), last: Mutex::new(None) };
        Ok(Some((packing, whole)))
    }

    /// What it was made of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether this and `other` have the same places for what [`tensors_of_same`](Self::tensors_of_same) gives: the same manifest, and both or neither are of [one piece](Self::of_one_piece).
    pub fn has_places_of(&self, other: &Self) -> bool {
        self.as_it_lies.is_some() == other.as_it_lies.is_some() && self.manifest == other.manifest
    }

    /// The tensors of `tree` that are to be copied, each with its offset in the chunk (or all of them as one, if they lie in the [piece](Self::of_one_piece) that this is for): as [`Manifest::packed_with_tensors`] gives them, in the same order each time.
    ///
    /// # Errors
    ///
    /// [`Error::ManifestMismatch`](crate::Error::ManifestMismatch) unless `tree` has the same manifest; as [`Manifest::packed`].
    pub fn tensors<S: TensorTree + ?Sized>(&self, tree: &S) -> Result<Vec<(usize, Tensor)>> {
        if let Some(tensors) = self.tensors_of_same(tree)? {
            return Ok(tensors);
        }
        let (manifest, places, entries) = pack(tree, self.alignment)?;
        self.manifest.check_same(&manifest)?;
        let (known, tensors) = Known::of(places, entries)?;
        if self.as_it_lies.is_some() {
            return Ok(tensors);
        }
        let before = self.last.try_lock().and_then(|mut last| last.replace(Arc::new(known)));
        drop(before);
        Ok(tensors)
    }

    /// The same, by comparing `tree` with the last one alone. `None` if it shows another path, type or shape than that, or these in another order, or shares other memory: it may have the same manifest for all that.
    /// Of [one piece](Self::of_one_piece): `None` as well if it lies otherwise than the first one did.
    ///
    /// # Errors
    ///
    /// What a tensor cannot say, such as [`Error::Taken`](crate::Error::Taken).
    pub fn tensors_of_same<S: TensorTree + ?Sized>(&self, tree: &S) -> Result<Option<Vec<(usize, Tensor)>>> {
        if let Some(piece) = &self.as_it_lies {
            return Ok(piece.of_same(tree)?.map(|whole| vec![(0, whole)]));
        }
        // Where another thread has it, it is not waited for: in a forked child that would be for ever.
        let last = self.last.try_lock().and_then(|last| last.clone());
        let mut shown = ScratchVec::new(&SHOWN);
        if let Some(known) = last
            && known.tree.same(tree, |tensor| {
                let is_shared = is_shared(tensor)?;
                shown.push(Some(Shared { tensor: tensor.clone(), is_shared }));
                Ok(())
            })?
            && first_of(&shown)? == known.first_of
        {
            return Ok(Some(tensors_at(&known.places, &mut shown)));
        }
        Ok(None)
    }
}

impl Known {
    /// What is remembered of a structure, and its tensors.
    fn of(places: Vec<PackedPlace>, entries: Entries<Shared>) -> Result<(Self, Vec<(usize, Tensor)>)> {
        let (tree, shown) = entries.into_known_and_shown(|shared| shared.tensor.layout().clone());
        let mut shown: Vec<_> = shown.into_iter().map(Some).collect();
        let known = Self { tree, first_of: first_of(&shown)?, places };
        let tensors = tensors_at(&known.places, &mut shown);
        Ok((known, tensors))
    }
}

/// For each tensor the first one over the same memory, which may be itself: all that a plan knows of tensors beside their layouts.
fn first_of(shown: &[Option<Shared>]) -> Result<Vec<usize>> {
    if each_behind_the_last(shown)? {
        return Ok((0..shown.len()).collect());
    }
    let mut known = FxHashMap::with_capacity_and_hasher(shown.len(), FxBuildHasher);
    let mut all = Vec::with_capacity(shown.len());
    for (number, Shared { tensor, is_shared }) in shown.iter().flatten().enumerate() {
        let layout = tensor.layout();
        all.push(match is_shared {
            false => number,
            true => {
                let memory = (tensor.storage()?.identity(), tensor.offset());
                *known.entry((memory, layout.nbytes(), layout.dtype().alignment())).or_insert(number)
            }
        });
    }
    Ok(all)
}

/// Whether those that share memory lie in one piece of it, one behind the other, as results of a copy do: no two are over the same, then.
fn each_behind_the_last(shown: &[Option<Shared>]) -> Result<bool> {
    let mut last: Option<(usize, usize)> = None;
    for Shared { tensor, .. } in shown.iter().flatten().filter(|shown| shown.is_shared) {
        let (memory, offset) = (tensor.storage()?.identity(), tensor.offset());
        if last.is_some_and(|(of, before)| of != memory || offset <= before) {
            return Ok(false);
        }
        last = Some((memory, offset));
    }
    Ok(true)
}

impl fmt::Debug for RepeatedPacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatedPacking").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}
