//! Tensors that a manifest names, put into a structure.

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::manifest::difference::check;
use crate::manifest::entry::{Entries, entries};
use crate::manifest::known_tree::looks_like;
use crate::manifest::leaf::ManifestLeaf;
use crate::manifest::manifest::Manifest;
use crate::manifest::seen_at::{SeenAt, expect};
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::{TensorTree, for_each_tensor};

impl Manifest {
    /// Puts a tensor into the place of each of `tree`, which has the tensors of this manifest: what `make` makes of the leaf there. Either all are put
    /// there or none.
    ///
    /// ```
    /// use transship_core::{Alignment, Manifest, Tensor};
    ///
    /// let mut tree = vec![Tensor::from(vec![0_u8; 2]), Tensor::from(vec![0_u8; 3])];
    /// let manifest = Manifest::packed(&tree, Alignment::ONE)?;
    /// let chunk = Tensor::from(vec![1_u8, 2, 3, 4, 5]);
    /// manifest.put_tensors(&mut tree, |leaf| chunk.narrow(0, leaf.offset(), leaf.layout().nbytes()))?;
    /// assert_eq!(tree[1].as_slice::<u8>()?, [3, 4, 5]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ManifestMismatch`] with the first tensor that differs, in `tree` or in what `make` makes; what `make` returns; as
    /// [`for_each_path`](crate::for_each_path); [`Error::TreeChanged`] if `tree` visits other tensors than it shows: some are put there then.
    pub fn put_tensors<S: TensorTree + ?Sized>(
        &self,
        tree: &mut S,
        mut make: impl FnMut(&ManifestLeaf<'_>) -> Result<Tensor>,
    ) -> Result<()> {
        // A tensor is known by where it is in memory: it is in the same place when it is visited.
        let entries = entries(tree, |tensor| Ok((SeenAt::of(tensor), tensor.layout().clone())))?;
        let made = make_all(self, &entries, |_, leaf| make(leaf))?;
        put(tree, made)
    }
}

/// In the order in which the structure shows them. `make` is told which of them each is.
pub(crate) fn make_all(
    manifest: &Manifest,
    entries: &Entries<(SeenAt, Layout)>,
    mut make: impl FnMut(usize, &ManifestLeaf<'_>) -> Result<Tensor>,
) -> Result<Vec<(SeenAt, Option<Tensor>)>> {
    let mut made: Vec<_> = entries.shown().map(|(seen, _)| (*seen, None)).collect();
    let (mut leaves, mut entries) = (manifest.leaves(), entries.by_path());
    loop {
        let (entry, leaf) = (entries.next(), leaves.next()?);
        let own = entry.map(|(_, path, (_, layout))| (path, layout));
        check(own, leaf.as_ref().map(|leaf| (leaf.path, &*leaf.layout)))?;
        let (Some((number, ..)), Some(leaf)) = (entry, leaf) else { return Ok(made) };
        let tensor = make(number, &leaf)?;
        check(Some((leaf.path, tensor.layout())), Some((leaf.path, &leaf.layout)))?;
        if let Some((_, made)) = made.get_mut(number) {
            *made = Some(tensor);
        }
    }
}

pub(crate) fn put<S: TensorTree + ?Sized>(
    tree: &mut S,
    mut made: Vec<(SeenAt, Option<Tensor>)>,
) -> Result<()> {
    let (first, mut second) = (made.len(), 0_usize);
    let mut numbers: Option<FxHashMap<usize, usize>> = None;
    for_each_tensor(tree, |place| {
        expect(second, |number| made.get(number).map(|(seen, _)| *seen));
        let own = SeenAt::of(place).tensor;
        // Most structures visit their tensors in the order in which they show them.
        let number = match made.get(second) {
            Some((seen, _)) if seen.tensor == own => Some(second),
            _ => {
                let known = made.iter().enumerate().map(|(number, (seen, _))| (seen.tensor, number));
                numbers.get_or_insert_with(|| known.collect()).get(&own).copied()
            }
        };
        let made = number.and_then(|number| made.get_mut(number)?.1.take());
        // Another one may have come to its address since.
        let made = made.filter(|made| looks_like(made.layout(), place.layout()));
        *place = made.ok_or(Error::TreeChanged { first, second })?;
        second = second.saturating_add(1);
        Ok(())
    })?;
    if second == first { Ok(()) } else { Err(Error::TreeChanged { first, second }) }
}
