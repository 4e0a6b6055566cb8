//! A structure whose tensors lie in one piece of a device's memory, as the results of a copy do: it is packed as it lies, and copied as one.

use crate::alignment::Alignment;
use crate::backend::MemoryKind;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::manifest::entry::{Entries, entries};
use crate::manifest::known_tree::KnownTree;
use crate::manifest::leaf::LeafPlace;
use crate::manifest::manifest::Manifest;
use crate::manifest::packed::contiguous;
use crate::manifest::writer::Writer;
use crate::tensor::layout::Layout;
use crate::tensor::storage::{Gaps, Storage};
use crate::tensor::tensor::Tensor;
use crate::tree::tensor_tree::TensorTree;

/// Between two tensors of a piece there are fewer bytes: what plans leave to align the next one, if they are not asked for more. Where they are not asked for less, no tensor lies there.
pub(crate) const PADDING: usize = 16;

/// Structures that look like the one that this was made of, and lie as that did.
pub(crate) struct OnePiece {
    tree: KnownTree,
    /// Of each tensor in the order in which it is shown: where it lies in the piece; `None` of one without elements.
    offsets: Vec<Option<usize>>,
    bytes: usize,
    /// The piece begins at a multiple of it.
    alignment: Alignment,
}

/// Where a piece begins.
struct Start {
    storage: Storage,
    offset: usize,
}

impl OnePiece {
    /// The manifest of `tree` as it lies, and its bytes as one tensor. `None` unless all of it lies in one piece, which begins at a multiple of `alignment`.
    pub(crate) fn of<S: TensorTree + ?Sized>(
        tree: &S,
        alignment: Alignment,
    ) -> Result<Option<(Self, Manifest, Tensor)>> {
        let Some(entries) = entries_of_one_storage(tree)? else { return Ok(None) };
        let Some((start, bytes)) = piece_of(&entries, alignment)? else { return Ok(None) };
        let first = start.offset;
        let place = |tensor: &Tensor| {
            let offset = tensor.offset().checked_sub(first);
            offset.filter(|_| tensor.layout().nbytes() > 0)
        };
        let mut writer = Writer::default();
        for (_, path, tensor) in entries.by_path() {
            let place = place(tensor).map(|offset| LeafPlace { chunk: 0, offset });
            writer.leaf(path, &contiguous(tensor.layout()), place);
        }
        let (manifest, whole) = (writer.finish(vec![bytes])?, start.tensor(bytes)?);
        let offsets = entries.shown().map(place).collect();
        let (tree, _) = entries.into_known_and_shown(|tensor| tensor.layout().clone());
        Ok(Some((Self { tree, offsets, bytes, alignment }, manifest, whole)))
    }

    /// The bytes of `tree` as one tensor, if it looks the same and lies so.
    pub(crate) fn of_same<S: TensorTree + ?Sized>(&self, tree: &S) -> Result<Option<Tensor>> {
        let (mut start, mut lies_so, mut offsets) = (None, true, self.offsets.iter());
        let same = self.tree.same(tree, |tensor| {
            let storage = tensor.storage()?;
            if let Some(Some(offset)) = offsets.next().filter(|_| lies_so) {
                if start.is_none() {
                    start = self.start(storage, tensor.offset().checked_sub(*offset));
                }
                let is_there = |start: &Start| start.has(tensor, storage, *offset);
                lies_so = tensor.is_contiguous() && start.as_ref().is_some_and(is_there);
            }
            Ok(())
        })?;
        match start {
            Some(start) if same && lies_so => start.tensor(self.bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// A piece that begins there, if one may.
    fn start(&self, storage: &Storage, offset: Option<usize>) -> Option<Start> {
        let offset = offset.filter(|offset| self.alignment.divides(*offset))?;
        may_be_read_whole(storage).then(|| Start { storage: storage.clone(), offset })
    }
}

impl Start {
    fn has(&self, tensor: &Tensor, storage: &Storage, offset: usize) -> bool {
        storage.identity() == self.storage.identity()
            && tensor.offset().checked_sub(self.offset) == Some(offset)
    }

    fn tensor(self, bytes: usize) -> Result<Tensor> {
        Tensor::from_storage(self.storage, self.offset, Layout::contiguous(DType::U8, &[bytes])?)
    }
}

/// The tensors of `tree`, if all that have elements lie in one storage, whose bytes may be read as one tensor. Else the visit ends at the first one that does not.
fn entries_of_one_storage<S: TensorTree + ?Sized>(tree: &S) -> Result<Option<Entries<Tensor>>> {
    let (mut of_all, mut lies_apart) = (None, false);
    let entries = entries(tree, |tensor| {
        let storage = tensor.storage()?;
        if tensor.layout().nbytes() > 0 {
            let first = *of_all.get_or_insert_with(|| storage.identity());
            lies_apart =
                storage.identity() != first || !tensor.is_contiguous() || !may_be_read_whole(storage);
        }
        // Only to end the visit.
        if lies_apart { Err(Error::NotReady) } else { Ok(tensor.clone()) }
    });
    match entries {
        Err(_) if lies_apart => Ok(None),
        entries => entries.map(Some),
    }
}

/// Where the piece of all of them begins, and how many bytes it has. They lie in one storage.
fn piece_of(entries: &Entries<Tensor>, alignment: Alignment) -> Result<Option<(Start, usize)>> {
    let with_elements = || entries.shown().filter(|tensor| tensor.layout().nbytes() > 0);
    let range = |tensor: &Tensor| (tensor.offset(), tensor.layout().nbytes(), tensor.dtype().alignment());
    let mut ranges: Vec<_> = with_elements().map(range).collect();
    ranges.sort_unstable();
    let (Some(tensor), Some((offset, ..)), true) =
        (with_elements().next(), ranges.first().copied(), ranges.len() > 1)
    else {
        return Ok(None);
    };
    let (mut end, mut last) = (offset, None);
    for (from, bytes, element) in ranges {
        let place = from.saturating_sub(offset);
        let is_next = from >= end && from.saturating_sub(end) < PADDING;
        if !element.divides(place) || !(is_next || last == Some((from, bytes))) {
            return Ok(None);
        }
        (end, last) = (from.saturating_add(bytes), Some((from, bytes)));
    }
    let start = Start { storage: tensor.storage()?.clone(), offset };
    Ok(alignment.divides(offset).then(|| (start, end.saturating_sub(offset))))
}

/// Whether the bytes between its tensors are padding of a plan, which may be copied along. Nothing may ever have written them: the host cannot read memory of this kind, and so does not see that.
fn may_be_read_whole(storage: &Storage) -> bool {
    storage.device().is_some() && storage.kind() == MemoryKind::Device && storage.gaps() == Gaps::Padding
}
