//! Tensors that a manifest names, put into structures that look alike, again and again.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::manifest::difference::check;
use crate::manifest::entry::entries;
use crate::manifest::known_tree::KnownTree;
use crate::manifest::leaf::{LeafPlace, ManifestLeaf};
use crate::manifest::manifest::Manifest;
use crate::manifest::put_tensors::{make_all, put};
use crate::manifest::seen_at::SeenAt;
use crate::runtime::sync::Mutex;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

/// A manifest whose tensors are put into structures again and again, such as each version of a model. The first structure is sorted by its paths and compared with the manifest. One that
/// shows the same paths, types and shapes in the same order is the same: it is compared, and not sorted, which takes less than half of the time for 2,000 tensors.
///
/// ```
/// use transship_core::{Alignment, Manifest, RepeatedPut, Tensor};
///
/// let like = vec![Tensor::from(vec![0_u8; 2]), Tensor::from(vec![0_u8; 3])];
/// let put = RepeatedPut::new(Manifest::packed(&like, Alignment::ONE)?);
/// for version in 1..4 {
///     let (mut tree, chunk) = (like.clone(), Tensor::from(vec![version; 5]));
///     put.put_tensors(&mut tree, |leaf| chunk.narrow(0, leaf.offset(), leaf.layout().nbytes()))?;
///     assert_eq!(tree[1].as_slice::<u8>()?, [version; 3]);
/// }
/// # Ok::<(), transship_core::Error>(())
/// ```
pub struct RepeatedPut {
    manifest: Manifest,
    last: Mutex<Option<Arc<Known>>>,
}

/// A structure that has the tensors of the manifest.
struct Known {
    tree: KnownTree,
    /// Of each tensor that it shows: which one of the manifest it is.
    leaves: Vec<KnownLeaf>,
}

/// A tensor of the manifest. Its strides are its own, and not those of the tensor whose place it takes.
struct KnownLeaf {
    number: usize,
    layout: Layout,
    place: Option<LeafPlace>,
}

impl RepeatedPut {
    /// No structure is known yet.
    pub fn new(manifest: Manifest) -> Self {
        Self { manifest, last: Mutex::new(None) }
    }

    /// What it was made of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// As [`Manifest::put_tensors`]. `make` is asked in any order.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`].
    pub fn put_tensors<S: TensorTree + ?Sized>(
        &self,
        tree: &mut S,
        make: impl FnMut(&ManifestLeaf<'_>) -> Result<Tensor>,
    ) -> Result<()> {
        self.prepare(tree, make)?.put()
    }

    /// The same but for the last step, for what is not there yet: `tree` is compared, and its tensors are made. It is as it was until they are [put](PreparedPut::put).
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`].
    pub fn prepare<'t, S: TensorTree + ?Sized>(
        &self,
        tree: &'t mut S,
        mut make: impl FnMut(&ManifestLeaf<'_>) -> Result<Tensor>,
    ) -> Result<PreparedPut<'t, S>> {
        // Where another thread has it, it is not waited for: in a forked child that would be for ever.
        let last = self.last.try_lock().and_then(|last| last.clone());
        let mut seen = Vec::with_capacity(last.as_ref().map_or(0, |known| known.leaves.len()));
        if let Some(known) = last
            && known.tree.same(tree, |tensor| {
                seen.push(SeenAt::of(tensor));
                Ok(())
            })?
        {
            let made = known.make_all(seen, &mut make)?;
            return Ok(PreparedPut { tree, made });
        }
        let entries = entries(tree, |tensor| Ok((SeenAt::of(tensor), tensor.layout().clone())))?;
        let mut leaves: Vec<_> = entries.shown().map(|_| None).collect();
        let made = make_all(&self.manifest, &entries, |shown, leaf| {
            if let Some(known) = leaves.get_mut(shown) {
                let layout = leaf.layout().clone();
                *known = Some(KnownLeaf { number: leaf.number, layout, place: leaf.place });
            }
            make(leaf)
        })?;
        let (known, _) = entries.into_known_and_shown(|(_, layout)| layout.clone());
        let known = Arc::new(Known { tree: known, leaves: leaves.into_iter().flatten().collect() });
        let before = self.last.try_lock().and_then(|mut last| last.replace(known));
        drop(before);
        Ok(PreparedPut { tree, made })
    }
}

/// Tensors for a structure, which has its own until they are put there: see [`RepeatedPut::prepare`].
pub struct PreparedPut<'t, S: ?Sized> {
    tree: &'t mut S,
    /// With where those are that they take the place of.
    made: Vec<(SeenAt, Option<Tensor>)>,
}

impl<S: TensorTree + ?Sized> PreparedPut<'_, S> {
    /// Puts them there.
    ///
    /// # Errors
    ///
    /// [`Error::TreeChanged`](crate::Error::TreeChanged) if the structure visits other tensors than it has shown: some are put there then.
    pub fn put(self) -> Result<()> {
        put(self.tree, self.made)
    }
}

impl Known {
    /// In the order in which the structure shows them.
    fn make_all(
        &self,
        seen: Vec<SeenAt>,
        make: &mut impl FnMut(&ManifestLeaf<'_>) -> Result<Tensor>,
    ) -> Result<Vec<(SeenAt, Option<Tensor>)>> {
        let mut made = Vec::with_capacity(seen.len());
        let known = self.tree.paths().zip(&self.leaves);
        for (seen, (path, KnownLeaf { number, layout, place })) in seen.into_iter().zip(known) {
            let leaf = ManifestLeaf { path, layout: Cow::Borrowed(layout), number: *number, place: *place };
            let tensor = make(&leaf)?;
            check(Some((path, tensor.layout())), Some((path, layout)))?;
            made.push((seen, Some(tensor)));
        }
        Ok(made)
    }
}

impl fmt::Debug for RepeatedPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatedPut").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

impl<S: ?Sized> fmt::Debug for PreparedPut<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPut").field("tensors", &self.made.len()).finish_non_exhaustive()
    }
}
