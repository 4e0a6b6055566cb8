//! What a structure has shown, by which the next one like it is known: that need not be sorted and compared once more.

use crate::error::Result;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::paths::for_each_printed_path;
use crate::tree::tensor_tree::TensorTree;

/// The path, the type and the shape of each tensor of a structure, in the order in which it has shown them.
pub(crate) struct KnownTree {
    /// All of them, one behind the other.
    paths: String,
    /// Where each ends, and what it has.
    tensors: Vec<(usize, Layout)>,
}

impl KnownTree {
    /// Of paths that end at `ends`, and as many layouts.
    pub(crate) fn new(paths: String, ends: Vec<usize>, layouts: impl IntoIterator<Item = Layout>) -> Self {
        Self { paths, tensors: ends.into_iter().zip(layouts).collect() }
    }

    /// What `keep` makes of each tensor of `tree`, in the order in which that shows them. `None` if it shows another path, type or shape than these, fewer or more.
    pub(crate) fn same<S: TensorTree + ?Sized, T>(
        &self,
        tree: &S,
        mut keep: impl FnMut(&Tensor) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        let (mut known, mut start) = (self.tensors.iter(), 0);
        let (mut kept, mut is_same) = (Vec::with_capacity(self.tensors.len()), true);
        for_each_printed_path(tree, |path, tensor| {
            if is_same {
                is_same = known.next().is_some_and(|(end, layout)| {
                    let from = std::mem::replace(&mut start, *end);
                    self.paths.get(from..*end) == Some(path) && looks_like(layout, tensor.layout())
                });
                kept.push(keep(tensor)?);
            }
            Ok(())
        })?;
        Ok((is_same && known.next().is_none()).then_some(kept))
    }

    /// The path of each.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        let mut start = 0;
        self.tensors.iter().map(move |(end, _)| {
            let from = std::mem::replace(&mut start, *end);
            self.paths.get(from..*end).unwrap_or_default()
        })
    }
}

/// Type and shape are the same. Strides may differ.
pub(crate) fn looks_like(one: &Layout, other: &Layout) -> bool {
    (one.dtype(), one.shape()) == (other.dtype(), other.shape())
}
