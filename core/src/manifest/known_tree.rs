//! What a structure has shown, by which the next one like it is known: that need not be sorted and compared once more.

use crate::error::Result;
use crate::manifest::seen_at::{SeenAt, expect};
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
    /// Where each was when it was shown first.
    seen: Vec<SeenAt>,
}

impl KnownTree {
    /// Of paths that end at `ends`, and as many layouts and places where tensors were seen.
    pub(crate) fn new(
        paths: String,
        ends: Vec<usize>,
        layouts: impl IntoIterator<Item = Layout>,
        seen: Vec<SeenAt>,
    ) -> Self {
        Self { paths, tensors: ends.into_iter().zip(layouts).collect(), seen }
    }

    /// Whether `tree` shows these paths, types and shapes in this order, and no others. Each tensor that it shows until it differs is one to `look` at.
    pub(crate) fn same<S: TensorTree + ?Sized>(
        &self,
        tree: &S,
        mut look: impl FnMut(&Tensor) -> Result<()>,
    ) -> Result<bool> {
        let (mut known, mut start) = (self.tensors.iter(), 0);
        let mut is_same = true;
        for_each_printed_path(tree, |path, tensor| {
            if is_same {
                let next = self.tensors.len().saturating_sub(known.len());
                expect(next, |number| self.seen.get(number).copied());
                is_same = known.next().is_some_and(|(end, layout)| {
                    let from = std::mem::replace(&mut start, *end);
                    self.paths.get(from..*end) == Some(path.as_str()) && looks_like(layout, tensor.layout())
                });
                look(tensor)?;
            }
            Ok(())
        })?;
        Ok(is_same && known.next().is_none())
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
