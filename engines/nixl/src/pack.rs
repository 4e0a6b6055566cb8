//! The tensors of a tree, copied next to each other into the arena, part after part.

use std::sync::Arc;

use transship::{
    Alignment, CopyOptions, Device, Layout, Manifest, SharedOwner, Tensor, TensorTree, for_each_path,
    start_copy_into,
};

use crate::arena::Range;
use crate::error::Result;

/// What each tensor begins at a multiple of: a cache line.
pub(crate) const ALIGNMENT: Alignment = match Alignment::new(64) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// So many bytes are packed, written and unpacked at a time: while some are written, the next are packed.
pub(crate) const PIECE: usize = 16 << 20;

/// A tensor, or a part of one, and where it goes.
pub(crate) struct Part {
    source: Tensor,
    offset: usize,
}

/// The tensors of `tree` as `manifest` (which is packed) has them, in the order of their places. Large ones are cut.
///
/// # Errors
///
/// [`TreeChanged`](transship::Error::TreeChanged) if the tree shows others than it has shown to the manifest: there is no room for those.
pub(crate) fn parts<S: TensorTree + ?Sized>(tree: &S, manifest: &Manifest) -> Result<Vec<Part>> {
    let mut tensors = Vec::new();
    for_each_path(tree, |path, tensor| {
        tensors.push((path.to_string(), tensor.clone()));
        Ok(())
    })?;
    tensors.sort_by(|one, other| one.0.cmp(&other.0));
    let changed = transship::Error::TreeChanged { first: manifest.len(), second: tensors.len() };
    let (mut tensors, mut parts) = (tensors.into_iter(), Vec::new());
    manifest.for_each_leaf(|leaf| {
        let (dtype, shape) = (leaf.layout().dtype(), leaf.layout().shape());
        let is_same = |path: &str, tensor: &Tensor| {
            path == leaf.path() && tensor.dtype() == dtype && tensor.shape() == shape
        };
        let found = tensors.next().filter(|(path, tensor)| is_same(path, tensor));
        let (_, source) = found.ok_or_else(|| changed.clone())?;
        if leaf.chunk().is_some() {
            parts.push(Part { source, offset: leaf.offset() });
        }
        Ok(())
    })?;
    if tensors.next().is_some() {
        return Err(changed.into());
    }
    parts.sort_by_key(|part| part.offset);
    // Those at the same place share their memory.
    parts.dedup_by_key(|part| part.offset);
    let mut cut = Vec::with_capacity(parts.len());
    parts.into_iter().try_for_each(|part| part.cut(&mut cut))?;
    Ok(cut)
}

/// Copies a few parts at a time into `range`, and tells `packed` how many bytes from its beginning on are filled.
pub(crate) fn pack(
    parts: &[Part],
    range: &Arc<Range>,
    mut packed: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let mut left = parts;
    while let Some(first) = left.first() {
        let count = left.iter().take_while(|part| part.end() - first.offset <= PIECE).count().max(1);
        let (some, behind) = left.split_at(count);
        copy(some, range)?;
        left = behind;
        packed(left.first().map_or(range.bytes, |next| next.offset))?;
    }
    Ok(())
}

fn copy(parts: &[Part], range: &Arc<Range>) -> Result<()> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
    let start = first.offset;
    let owner = SharedOwner::new(Arc::clone(range), &Device::host());
    let layouts = parts.iter().map(|part| Ok((part.offset - start, part.layout()?)));
    let layouts = layouts.collect::<Result<Vec<_>>>()?;
    let memory = range.memory(start, last.end() - start);
    // SAFETY: the memory is mapped as long as the owner has the range (`Arena`), and zero at first. Nobody is told where it lies, and the library reads what is
    // packed once the tensors here have gone; a peer that writes there all the same is another process, and copies write through raw pointers.
    let places = unsafe { owner.parts_mut(memory, layouts) }?;
    let sources = parts.iter().map(|part| part.source.clone()).collect();
    let copied = start_copy_into(sources, places, CopyOptions::default());
    copied.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    Ok(())
}

impl Part {
    fn end(&self) -> usize {
        self.offset + self.source.nbytes()
    }

    fn layout(&self) -> Result<Layout> {
        Ok(Layout::contiguous(self.source.dtype(), self.source.shape())?)
    }

    /// One that is larger than a piece, in parts of that size.
    fn cut(self, parts: &mut Vec<Self>) -> transship::Result<()> {
        if self.source.nbytes() <= PIECE || !self.source.is_contiguous() {
            parts.push(self);
            return Ok(());
        }
        let (elements, size) = (self.source.numel(), self.source.dtype().size());
        let flat = self.source.reshape(&[elements])?;
        for start in (0..elements).step_by(PIECE / size) {
            let source = flat.narrow(0, start, (PIECE / size).min(elements - start))?;
            parts.push(Self { source, offset: self.offset + start * size });
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::cell::Cell;

    use transship::{Paths, Step, Stop, Visitor};

    use super::*;

    /// Shows other tensors than before.
    struct Changing {
        shown: Cell<usize>,
        in_turn: [Vec<Tensor>; 2],
    }

    impl TensorTree for Changing {
        fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
            self.in_turn[0].visit(visitor)
        }

        fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
            let turn = self.shown.replace(1);
            paths.nested(|paths| paths.part(Step::Field("tensors"), &self.in_turn[turn]))
        }
    }

    /// Deliberate bug: tensors are packed that the manifest has no room for, into the memory behind it.
    #[test]
    fn a_tree_that_changes_is_refused() {
        let tensor = |elements: usize| Tensor::from(vec![1_u8; elements]);
        for (second, is_same) in [
            (vec![tensor(8), tensor(8)], true),
            (vec![tensor(8), tensor(9)], false),
            (vec![tensor(8), Tensor::from(vec![1_i8; 8])], false),
            (vec![tensor(8)], false),
            (vec![tensor(8), tensor(8), tensor(8)], false),
        ] {
            let tree = Changing { shown: Cell::new(0), in_turn: [vec![tensor(8), tensor(8)], second] };
            let manifest = Manifest::packed(&tree, ALIGNMENT).unwrap();
            assert_eq!(parts(&tree, &manifest).is_ok(), is_same);
        }
    }
}
