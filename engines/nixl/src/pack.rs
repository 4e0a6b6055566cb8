//! The tensors of a tree, copied next to each other into the arena, part after part.

use std::sync::Arc;

use transship::{Alignment, CopyOptions, Device, Layout, SharedOwner, Tensor, start_copy_into};

use crate::arena::Range;
use crate::copies::{Copying, devices_of};
use crate::deadline::Deadline;
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

/// The tensors of a packed tree, each with its place ([`Manifest::packed_with_tensors`](transship::Manifest::packed_with_tensors)), in the order of
/// their places. Large ones are cut.
pub(crate) fn parts(tensors: Vec<(usize, Tensor)>) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = tensors.into_iter().map(|(offset, source)| Part { source, offset }).collect();
    parts.sort_by_key(|part| part.offset);
    let mut cut = Vec::with_capacity(parts.len());
    parts.into_iter().try_for_each(|part| part.cut(&mut cut))?;
    Ok(cut)
}

/// Copies a few parts at a time into `range`, which lies on `device`, and tells `packed` how many bytes from its beginning on are filled: a device has come by
/// what fills them, since the library knows no order of devices.
pub(crate) fn pack(
    parts: &[Part],
    range: &Arc<Range>,
    device: &Device,
    deadline: Deadline,
    mut packed: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let mut left = parts;
    while let Some(first) = left.first() {
        let count = left.iter().take_while(|part| part.end() - first.offset <= PIECE).count().max(1);
        let (some, behind) = left.split_at(count);
        copy(some, range, device, deadline)?;
        left = behind;
        packed(left.first().map_or(range.bytes, |next| next.offset))?;
    }
    Ok(())
}

fn copy(parts: &[Part], range: &Arc<Range>, device: &Device, deadline: Deadline) -> Result<()> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
    let start = first.offset;
    let owner = SharedOwner::new(Arc::clone(range), device);
    let layouts = parts.iter().map(|part| Ok((part.offset - start, part.layout()?)));
    let layouts = layouts.collect::<Result<Vec<_>>>()?;
    let memory = range.memory(start, last.end() - start);
    // SAFETY: the memory is mapped as long as the owner has the range (`Arena`), and zero at first. Nobody is told where it lies, and the library reads what is
    // packed once the tensors here have gone; a peer that writes there all the same is another process, and copies write through raw pointers.
    let places = unsafe { owner.parts_mut(memory, layouts) }?;
    let sources: Vec<Tensor> = parts.iter().map(|part| part.source.clone()).collect();
    let others = devices_of(&sources);
    let copy = start_copy_into(sources, places, CopyOptions::default()).map_err(transship::Error::from)?;
    let copied = Copying::new("packing", device, others, copy).wait(deadline);
    copied.map(drop).map_err(|(error, _)| error)
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

    use transship::{Manifest, Paths, Step, Stop, TensorTree, Visitor};

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
            let turn = self.shown.replace(self.shown.get() + 1);
            paths.nested(|paths| paths.part(Step::Field("tensors"), &self.in_turn[turn]))
        }
    }

    /// Deliberate bug: tensors are packed that the tree shows to another look than the manifest's, which has no room for them.
    #[test]
    fn what_is_packed_has_room_though_a_tree_changes() {
        let tensor = |elements: usize| Tensor::from(vec![1_u8; elements]);
        let tree = Changing {
            shown: Cell::new(0),
            in_turn: [vec![tensor(8), tensor(9)], vec![tensor(800), tensor(900), tensor(7)]],
        };
        let (manifest, tensors) = Manifest::packed_with_tensors(&tree, ALIGNMENT).unwrap();
        let parts = parts(tensors).unwrap();
        let lengths: Vec<_> = parts.iter().map(|part| part.source.nbytes()).collect();
        assert_eq!((lengths, tree.shown.get()), (vec![8, 9], 1));
        assert!(parts.last().unwrap().end() <= manifest.chunks()[0]);
    }
}
