//! The tensors of a tree, copied next to each other into the arena, piece after piece.

use std::collections::VecDeque;
use std::sync::Arc;

use transship::{
    Alignment, CopyOptions, Device, Layout, Manifest, ManifestLeaf, SharedOwner, Tensor, start_copy_into,
};

use crate::arena::Range;
use crate::copies::{Copying, devices_of, named};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::pieces::Pieces;

/// What each tensor begins at a multiple of: a cache line.
pub(crate) const ALIGNMENT: Alignment = match Alignment::new(64) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// So many pieces are being packed while one is written.
const AHEAD: usize = 2;

/// A tensor, or a part of one, and where it goes.
pub(crate) struct Part {
    source: Tensor,
    offset: usize,
}

/// The tensors of a packed tree, each with its offset, in the order of their places. Contiguous ones are cut where a piece ends.
pub(crate) fn parts(tensors: Vec<(usize, Tensor)>, pieces: &Pieces) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = tensors.into_iter().map(|(offset, source)| Part { source, offset }).collect();
    parts.sort_by_key(|part| part.offset);
    let mut cut = Vec::with_capacity(parts.len());
    parts.into_iter().try_for_each(|part| part.cut(pieces, &mut cut))?;
    Ok(cut)
}

/// How large a packed tree is.
pub(crate) fn bytes_of(manifest: &Manifest) -> usize {
    manifest.chunks().first().copied().unwrap_or(0)
}

/// Copies parts into `range`, which lies on `device`, piece by piece, and tells `packed` how many bytes from its beginning on are filled: a device has come by
/// what fills them, since the library knows no order of devices. The next pieces are copied while `packed` runs.
pub(crate) fn pack(
    parts: &[Part],
    manifest: &Manifest,
    pieces: &Pieces,
    range: &Arc<Range>,
    device: &Device,
    deadline: Deadline,
    mut packed: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let mut begun = Begun(VecDeque::with_capacity(AHEAD + 1));
    let mut left = parts;
    loop {
        while let Some(first) = left.first().filter(|_| begun.0.len() <= AHEAD) {
            let end = pieces.end_at(first.offset);
            let (some, behind) = left.split_at(left.partition_point(|part| part.offset < end));
            let copy = copy(some, manifest, range, device)?;
            begun.0.push_back((behind.first().map_or(range.bytes, |next| next.offset), copy));
            left = behind;
        }
        let Some((filled, copy)) = begun.0.pop_front() else { return Ok(()) };
        copy.wait(deadline).map_err(|(error, _)| error)?;
        packed(filled)?;
    }
}

/// Copies that fill pieces, each with the bytes that are filled once it is done and those before it are. Dropped, nothing of the program is held that its device does not use.
struct Begun(VecDeque<(usize, Copying)>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, copy)| copy.end());
    }
}

fn copy(parts: &[Part], manifest: &Manifest, range: &Arc<Range>, device: &Device) -> Result<Copying> {
    let (start, end) = (parts.first().map_or(0, |first| first.offset), parts.last().map_or(0, Part::end));
    let owner = SharedOwner::new(Arc::clone(range), device);
    let layouts = parts.iter().map(|part| Ok((part.offset - start, part.layout()?)));
    let layouts = layouts.collect::<Result<Vec<_>>>()?;
    let memory = range.memory(start, end - start);
    // SAFETY: the memory is mapped as long as the owner has the range (`Arena`), and zero at first. Nobody is told where it lies, and the library reads what is
    // packed once the tensors here have gone; a peer that writes there all the same is another process, and copies write through raw pointers.
    let places = unsafe { owner.parts_mut(memory, layouts) }?;
    let sources: Vec<Tensor> = parts.iter().map(|part| part.source.clone()).collect();
    let others = devices_of(&sources);
    let copy = start_copy_into(sources, places, CopyOptions::default())
        .map_err(|failed| named(failed.into(), manifest, |index, leaf| lies_in(parts.get(index), leaf)))?;
    Ok(Copying::new("packing", device, others, copy))
}

/// Of tied tensors the first one has the bytes.
fn lies_in(part: Option<&Part>, leaf: &ManifestLeaf<'_>) -> bool {
    part.is_some_and(|part| (leaf.offset()..leaf.offset() + leaf.layout().span()).contains(&part.offset))
}

impl Part {
    fn end(&self) -> usize {
        self.offset + self.source.nbytes()
    }

    fn layout(&self) -> Result<Layout> {
        Ok(Layout::contiguous(self.source.dtype(), self.source.shape())?)
    }

    /// In parts that end where a piece does, if it is contiguous.
    fn cut(self, pieces: &Pieces, parts: &mut Vec<Self>) -> transship::Result<()> {
        let (mut start, end) = (self.offset, self.end());
        if pieces.end_at(start) >= end || !self.source.is_contiguous() {
            parts.push(self);
            return Ok(());
        }
        let size = self.source.dtype().size();
        let flat = self.source.reshape(&[self.source.numel()])?;
        while start < end {
            let next = pieces.end_at(start).min(end);
            let source = flat.narrow(0, (start - self.offset) / size, (next - start) / size)?;
            parts.push(Self { source, offset: start });
            start = next;
        }
        Ok(())
    }
}
