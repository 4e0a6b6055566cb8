//! Gathers sources on the host, into a staging block or directly into the destination.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::{Direction, Elements, WriteWindow};
use crate::cast::Cast;
use crate::convert::write::CastScratch;
use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::Phase;
use crate::job::chunk_memory::{Destination, StridedPlaces};
use crate::job::leaf::{Leaf, Special};
use crate::runtime::trace::span;
use crate::staging::block::Block;
use crate::staging::copy_share::CopyShare;
use crate::staging::pool::StagingPool;
use crate::tensor::gather_list::GatherList;
use crate::tensor::non_temporal::HostCopy;
use crate::tensor::strided_copy::{gather, scatter};
use crate::transfer::block_layout::{BlockLayout, Place};
use crate::transfer::cut_segments::{Piece, Segment, pieces};
use crate::transfer::filled::{FilledSegment, Outlet};
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::take_blocks::{BlockSource, Now};

/// So many bytes lie side by side before they are written to where they have gaps.
const SCATTERED_AT_ONCE: usize = 16 << 10;

impl<'a> SegmentCopy<'a> {
    /// Writes the segment directly into the destination.
    pub(crate) fn fill(&self) -> Result<Carried> {
        self.job.note_begun();
        let _span = span!("stage", bytes = self.segment.bytes());
        self.job.completion.metrics.time(Phase::Stage, || {
            let (mut chunk, mut window, mut base) = (usize::MAX, None, 0);
            let (mut written, mut strided) = (0, None);
            let writer = HostCopy::ordinary();
            let mut scratch = None;
            for (piece, leaf) in pieces(self.job, self.path, self.segment) {
                if chunk != piece.chunk {
                    chunk = piece.chunk;
                    let to = self.destinations.chunks.get(chunk);
                    window = to.and_then(|to| to.storage.window());
                    base = to.map_or(0, |to| to.offset);
                    strided = to.and_then(|to| Some((to, to.strided.as_deref()?)));
                }
                if let Some((to, places)) = strided {
                    self.scatter(leaf, &piece, to, places, &mut scratch)?;
                    written += piece.bytes;
                    continue;
                }
                let to = window.and_then(|window| window.at(base + piece.chunk_offset, piece.bytes));
                let Some(to) = to else { return Err(Error::NotReady) };
                // SAFETY: `at` checks that the window has room. Nobody else reads or writes there: the storage is
                // `NotReady` until the copy is done (`Storage::check_ready`), earlier uses by devices are over
                // (`order_behind_uses`), and later ones come after `Job::close`.
                unsafe { read(leaf, &piece, None, to, &writer, &mut scratch) }?;
                written += piece.bytes;
            }
            self.job.completion.metrics.count_written(written);
            Ok(Carried::Whole)
        })
    }

    /// Writes a piece to where it has gaps, by way of memory that stays in the caches.
    fn scatter(
        &self,
        leaf: &Leaf,
        piece: &Piece,
        to: &Destination,
        strided: &StridedPlaces,
        scratch: &mut Option<CastScratch>,
    ) -> Result<()> {
        let Elements { offset, runs, .. } = &strided.elements;
        let window = to.storage.window().and_then(|window| window.at(*offset, runs.span()));
        let Some(first) = window else { return Err(Error::NotReady) };
        let mut side_by_side = vec![0_u8; piece.bytes.min(SCATTERED_AT_ONCE)];
        for done in (0..piece.bytes).step_by(SCATTERED_AT_ONCE) {
            let bytes = SCATTERED_AT_ONCE.min(piece.bytes - done);
            let part = Piece { leaf_offset: piece.leaf_offset + done, bytes, ..*piece };
            // SAFETY: there is room for the part, and nobody else uses it; the writer is dropped at once.
            unsafe {
                let room = NonNull::from(side_by_side.as_mut_slice()).cast();
                read(leaf, &part, None, room, &HostCopy::ordinary(), scratch)
            }?;
            // SAFETY: `at` checks that the window has room for all elements, which have as many bytes as the chunk. Nobody else uses
            // those of the piece, as in `fill`.
            unsafe {
                scatter(runs, first.as_ptr(), piece.chunk_offset + done, side_by_side.as_ptr(), bytes);
            }
        }
        Ok(())
    }

    /// Gathers into a staging block.
    pub(crate) fn stage(&self, blocks: BlockSource<'_>, outlet: Outlet<'_>) -> Result<Carried> {
        if let BlockSource::Now(Now { lease: Some(lease), .. }) = blocks
            && let Some(largest) = self.smaller_block(lease)
        {
            return Ok(Carried::InBlocksOf(largest));
        }
        let block = match blocks {
            BlockSource::SegmentBlocks(taken) => taken.block.ok_or(Error::NotReady)?,
            BlockSource::Now(Now { lease, .. }) if self.job.pinned => {
                match self.take(self.job.target.staging(), Direction::Upload, lease)? {
                    Some(block) => block,
                    None => return Ok(Carried::InHalves),
                }
            }
            BlockSource::Now(_) => Block::pageable(self.segment.bytes())?,
        };
        let layout = BlockLayout::of(self.path, self.segment, &block);
        let span = span!("stage", bytes = layout.bytes());
        self.job.completion.metrics.time(Phase::Stage, || self.write_block(&block, &layout, None))?;
        span.end();
        outlet(FilledSegment { segment: *self.segment, layout, block }).map(|()| Carried::Whole)
    }

    /// A block for the segment. `None` if no block of its size can be pinned and the segment can be halved. A segment that cannot
    /// be halved gets ordinary memory in the end, and the report says so.
    pub(crate) fn take(
        &self,
        pool: &Arc<StagingPool>,
        direction: Direction,
        lease: Option<&Arc<CopyShare>>,
    ) -> Result<Option<Block>> {
        match pool.take(self.segment.block, direction, lease) {
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. })
                if self.segment.halves(self.job.granularity, self.path).is_some() =>
            {
                Ok(None)
            }
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {
                // A small segment at the end of a copy asks for a block as large as those of the others.
                let Segment { staged, block, .. } = *self.segment;
                // Ordinary memory has all bytes as they come out.
                let fall_back = || pool.fall_back(self.segment.bytes());
                match staged < block {
                    true => pool.take(staged, direction, lease).or_else(|_| fall_back()).map(Some),
                    false => fall_back().map(Some),
                }
            }
            block => block.map(Some),
        }
    }

    /// The size of the block that the segment should take instead, if too few of its own size fit into the share of the copy and
    /// it may go through blocks of any size.
    fn smaller_block(&self, lease: &CopyShare) -> Option<usize> {
        let largest = lease.largest_block();
        let fits = || {
            self.segment.staged <= largest || self.segment.halves(self.job.granularity, self.path).is_some()
        };
        (self.segment.block > largest && self.path.is_filled_by_many() && fits()).then_some(largest)
    }

    /// Writes the segment into `block` by `layout`: out of the leaves, or out of another block that holds the same segment.
    pub(crate) fn write_block(
        &self,
        block: &Block,
        layout: &BlockLayout,
        other: Option<&Block>,
    ) -> Result<()> {
        let window = block.staging().window().ok_or_else(|| block.why_no_access())?;
        // Copies read as many, padding included.
        window.at(0, layout.bytes()).ok_or(Error::NotReady)?;
        let writer = self.path.writer(layout.bytes(), block);
        match layout.is_plain() {
            true => self.write_pieces::<false>(&window, layout, &writer, other),
            false => self.write_pieces::<true>(&window, layout, &writer, other),
        }
    }

    /// `WIDENS`: some are narrow. To ask for each takes 6 instructions, of 330 that a small leaf has in all.
    fn write_pieces<const WIDENS: bool>(
        &self,
        window: &WriteWindow,
        layout: &BlockLayout,
        writer: &HostCopy,
        other: Option<&Block>,
    ) -> Result<()> {
        let (mut places, mut scratch) = (layout.places(), None);
        for (piece, leaf) in pieces(self.job, self.path, self.segment) {
            let Place { offset, bytes, narrow } = places.of::<WIDENS>(&piece, leaf);
            let Some(to) = window.at(offset, bytes) else { return Err(Error::NotReady) };
            match other {
                // SAFETY: `at` checks that the window has room. The callers own the block until they give it to their outlet,
                // after `write_block` has dropped `writer`.
                None => unsafe { read(leaf, &piece, narrow, to, writer, &mut scratch) }?,
                Some(other) => {
                    let from = other.staging().contents().ok_or_else(|| other.why_no_access())?;
                    // SAFETY: `at` checks that the window has room, and the caller owns the block (`via_host`). `other` is
                    // another block, has room for the same segment, and `copy_down` has waited for the copies into it.
                    unsafe { to.copy_from_nonoverlapping(from.add(offset), bytes) };
                }
            }
        }
        Ok(())
    }
}

/// Copies a piece of a leaf on the host to `to`: what it becomes, or its elements as they are if they are `narrow`.
///
/// # Safety
///
/// `to` has room for that, and nobody else uses it before `writer` is dropped. What is cast is cast in `scratch`.
// A call of its own takes 31 instructions more for each leaf of the headline batch, a seventh of what staging it takes.
#[inline(always)]
unsafe fn read(
    leaf: &Leaf,
    piece: &Piece,
    narrow: Option<&Cast>,
    to: NonNull<u8>,
    writer: &HostCopy,
    scratch: &mut Option<CastScratch>,
) -> Result<()> {
    let Some(first) = leaf.host_pointer() else {
        // SAFETY: passed on.
        return unsafe { read_listed(leaf, piece, to, writer) };
    };
    match &leaf.special {
        // SAFETY: the piece lies within the leaf (`OpenChunk::piece`), and the leaf within its storage (`Scan::recognizes`,
        // `Scan::look_at`), which the job holds. No copy writes there any more (`order_behind_predecessors`). The caller promises
        // the destination. It is other memory than the source, since nobody else uses it.
        None => unsafe { writer.copy(first.as_ptr().add(piece.leaf_offset), to.as_ptr(), piece.bytes) },
        Some(special) => {
            // SAFETY: as for `writer.copy`.
            unsafe { read_special(special, narrow, first, piece, to, writer, scratch) }
        }
    }
    Ok(())
}

/// As [`read`], for a leaf that lies nowhere as a whole.
///
/// # Safety
///
/// As [`read`].
#[inline(never)]
unsafe fn read_listed(leaf: &Leaf, piece: &Piece, to: NonNull<u8>, writer: &HostCopy) -> Result<()> {
    let list = GatherList::of(leaf.storage.buffer()).ok_or(Error::NotReady)?;
    let Some(Special { elements, .. }) = leaf.special.as_deref() else {
        // SAFETY: the caller's promise. No copy writes what was lent to be copied.
        unsafe { list.copy(leaf.offset + piece.leaf_offset, to.as_ptr(), piece.bytes, writer) };
        return Ok(());
    };
    // It is not cast (`Scan::look_at`).
    let mut done = 0;
    for (offset, bytes) in elements.runs.places(piece.leaf_offset..piece.leaf_offset + piece.bytes) {
        // SAFETY: as above; the runs of the piece have as many bytes together.
        unsafe { list.copy(leaf.offset + offset, to.as_ptr().add(done), bytes, writer) };
        done += bytes;
    }
    Ok(())
}

/// # Safety
///
/// As [`read`]; `first` is where the first element of the leaf lies, and the piece lies within it.
#[inline(never)]
unsafe fn read_special(
    special: &Special,
    narrow: Option<&Cast>,
    first: NonNull<u8>,
    piece: &Piece,
    to: NonNull<u8>,
    writer: &HostCopy,
    scratch: &mut Option<CastScratch>,
) {
    let (first, to) = (first.as_ptr().cast_const(), to.as_ptr());
    let Elements { runs, cast, .. } = &special.elements;
    match (cast, narrow) {
        // SAFETY: passed on. The runs are those of the leaf, whose span lies within its storage (`Scan::look_at`). The piece consists of
        // whole elements (`Widening`), which have fewer bytes when they are not cast.
        (_, Some(cast)) => unsafe {
            let [skip, bytes] = [piece.leaf_offset, piece.bytes].map(|bytes| cast.source_bytes(bytes));
            gather(runs, first, skip, to, bytes, writer);
        },
        // SAFETY: passed on. The runs are those of the leaf, whose span lies within its storage (`Scan::look_at`), and it has as many
        // bytes when it is cast as the plan says. Options were checked before anything was taken (`CopyOptions::validate`).
        (Some(cast), None) => unsafe {
            let scratch = scratch.get_or_insert_with(CastScratch::new);
            scratch.write(cast, (first, runs), piece.leaf_offset, to, piece.bytes, writer);
        },
        // SAFETY: as above.
        (None, None) => unsafe { gather(runs, first, piece.leaf_offset, to, piece.bytes, writer) },
    }
}
