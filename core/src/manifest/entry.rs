//! The tensors of a structure, in the order of their paths: that of maps differs from process to process.

use crate::error::Result;
use crate::tensor::layout::Layout;
use crate::tensor::tensor::Tensor;
use crate::tree::paths::for_each_path;
use crate::tree::tensor_tree::TensorTree;

/// One tensor, with what `keep` wants to know of it.
pub(crate) struct Entry<T> {
    pub(crate) path: String,
    pub(crate) layout: Layout,
    pub(crate) kept: T,
}

/// All tensors of `tree`. Those of the same path stay in the order in which they are shown.
pub(crate) fn entries<S: TensorTree + ?Sized, T>(
    tree: &S,
    mut keep: impl FnMut(&Tensor) -> Result<T>,
) -> Result<Vec<Entry<T>>> {
    let mut entries = Vec::new();
    for_each_path(tree, |path, tensor| {
        let (path, layout) = (path.to_string(), tensor.layout().clone());
        entries.push(Entry { path, layout, kept: keep(tensor)? });
        Ok(())
    })?;
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}
