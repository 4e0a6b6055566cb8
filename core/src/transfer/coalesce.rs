//! Copies without staging, as few as possible: neighbours in memory are joined into one copy.

use std::num::NonZero;

use crate::alignment::Alignment;
use crate::backend::Buffer;
use crate::device::check_limits::FEWEST_GATHERED;
use crate::error::{Error, Result};
use crate::job::chunk_memory::Destination;
use crate::job::job::Job;
use crate::job::kernels::{Kernels, part_of_block};
use crate::job::leaf::Leaf;
use crate::job::transfer_path::TransferPath;
use crate::staging::block::Block;
use crate::tensor::storage::Gaps;
use crate::transfer::cut_segments;
use crate::transfer::cut_segments::{Piece, Segment, pieces};
use crate::transfer::submission_resources::{Storages, Table};

/// Neighbours in the same memory are joined over gaps of up to so many bytes, which may be read: a copy of its own takes as long as copying 60 KB.
const LARGEST_GAP: usize = 4096;

/// The largest part of a strided tensor, in bytes, that a kernel gathers together with others. A larger one is gathered by a launch
/// of its own: 8 of 4 MiB each come down in 1.11 times the time of one copy of as many bytes (H200).
const LARGEST_STRIDED: usize = 256 << 10;

/// The list of copies has room for at most so many from the beginning.
const MOST_EXPECTED: usize = 4096;

/// A copy out of the memory of a leaf.
#[derive(Clone, Copy)]
pub(crate) struct CopyRange {
    /// The number of the leaf, as the plan counts them.
    pub(crate) leaf: u32,
    pub(crate) begin: Begin,
    /// The number of the destination in the [`SubmissionResources`](crate::transfer::submission_resources::SubmissionResources); 0 where that is a block.
    pub(crate) to: u32,
    pub(crate) to_offset: usize,
    pub(crate) bytes: usize,
}

/// Where a copy begins in the memory of its leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At an offset of the storage.
    At(usize),
    /// So many bytes of elements behind the first one. Gaps are left out.
    Behind(usize),
    /// At an offset of the buffer of this number in a list (`DeviceList`).
    In(u32, usize),
}

impl Begin {
    /// So many bytes further on.
    pub(crate) fn advanced(self, done: usize) -> Self {
        match self {
            Begin::At(offset) => Begin::At(offset + done),
            Begin::Behind(skip) => Begin::Behind(skip + done),
            Begin::In(buffer, offset) => Begin::In(buffer, offset + done),
        }
    }

    /// The number alone.
    #[inline]
    pub(crate) fn number(self) -> usize {
        match self {
            Self::At(number) | Self::Behind(number) | Self::In(_, number) => number,
        }
    }
}

/// The copies of a segment, neighbours joined. They write to `chunks`, of which those that are used are added to `keep`. Without
/// `chunks` they write to positions in the linear space.
pub(crate) fn ranges(
    job: &Job,
    path: &TransferPath,
    segment: &Segment,
    chunks: Option<&[Destination]>,
    keep: &mut Storages,
) -> Vec<CopyRange> {
    let mut ranges = match path.kernels.strided {
        None => ranges_by::<false>(job, path, segment, chunks, keep),
        Some(_) => ranges_by::<true>(job, path, segment, chunks, keep),
    };
    // Host memory is read as it is: what goes up without staging consists of whole granules (`Scan::copies_directly`).
    // Device memory is read in granules of this source: others may have larger ones, which its buffers do not consist of. Where
    // copies go directly, the target has the same granules (`is_direct`).
    if path.listed > 0 {
        ranges = in_pieces(job, path, ranges);
    }
    let granularity = path.from.granularity();
    if path.from.device().is_some() && granularity != Alignment::ONE {
        ranges.iter_mut().for_each(|range| range.round_to(granularity));
    }
    ranges
}

/// As [`ranges`], before they are rounded. `GATHERS`: gaps of some leaves may be left out. To ask each leaf takes 12 instructions,
/// of 74 that it has here without.
fn ranges_by<const GATHERS: bool>(
    job: &Job,
    path: &TransferPath,
    segment: &Segment,
    chunks: Option<&[Destination]>,
    keep: &mut Storages,
) -> Vec<CopyRange> {
    let mut ranges: Vec<CopyRange> = Vec::with_capacity(most(job, path).min(MOST_EXPECTED));
    let mut end = End::NOWHERE;
    let (mut chunk, mut to, mut base) = (usize::MAX, 0, 0);
    pieces(job, path, segment).for_each(|(piece, leaf)| {
        let is_gathered = GATHERS && leaf.gathered().is_some();
        let joins = !is_gathered && end.is_followed_by(&piece, leaf);
        end = if is_gathered { End::NOWHERE } else { End::of(&piece, leaf) };
        if joins && let Some(range) = ranges.last_mut() {
            range.bytes = end.source - range.begin.number();
            return;
        }
        if let Some(chunks) = chunks.filter(|_| chunk != piece.chunk) {
            let Some(destination) = chunks.get(piece.chunk) else { return };
            (chunk, to, base) = (piece.chunk, keep.len() as u32, destination.offset);
            keep.push(destination.storage.clone());
        }
        let begin = match is_gathered {
            true => Begin::Behind(piece.leaf_offset),
            false => Begin::At(leaf.offset + piece.leaf_offset),
        };
        let to_offset = if chunks.is_some() { base + piece.chunk_offset } else { piece.linear };
        // The plan counts leaves and chunks in 32 bits.
        ranges.push(CopyRange { leaf: piece.leaf as u32, begin, to, to_offset, bytes: piece.bytes });
    });
    ranges
}

/// The same copies, where each piece of a list is one.
fn in_pieces(job: &Job, path: &TransferPath, ranges: Vec<CopyRange>) -> Vec<CopyRange> {
    let mut all = Vec::with_capacity(ranges.len() + path.listed);
    for range in ranges {
        match (range.begin, job.leaves.get(range.leaf as usize).and_then(Leaf::list)) {
            (Begin::At(skip), Some(list)) => all.extend(list.within(skip..skip + range.bytes).map(|run| {
                let (begin, to_offset) = (Begin::In(run.buffer, run.from), range.to_offset + (run.to - skip));
                CopyRange { begin, to_offset, bytes: run.bytes, ..range }
            })),
            _ => all.push(range),
        }
    }
    all
}

/// How many copies a path without staging needs. Counts no further than `enough + 1`.
pub(crate) fn count(job: &Job, path: &TransferPath, enough: usize) -> usize {
    let whole = cut_segments::whole(job, path);
    let gathers = path.kernels.strided.is_some();
    let mut ranges = 0;
    let mut end = End::NOWHERE;
    for (piece, leaf) in pieces(job, path, &whole) {
        let is_gathered = gathers && leaf.gathered().is_some();
        ranges += match path.list_of(leaf) {
            Some(list) => list.count_within(piece.source(leaf)),
            None => usize::from(is_gathered || !end.is_followed_by(&piece, leaf)),
        };
        if ranges > enough {
            break;
        }
        end = if is_gathered { End::NOWHERE } else { End::of(&piece, leaf) };
    }
    ranges
}

/// How many copies of a path no kernel makes together with others. Counts no further than `enough + 1`.
pub(crate) fn count_large(job: &Job, path: &TransferPath, enough: usize) -> usize {
    let whole = cut_segments::whole(job, path);
    let is_large = |bytes: usize| path.kernels.ranges.is_none_or(|ranges| bytes > ranges.largest);
    let (mut count, mut end, mut joined) = (0, End::NOWHERE, 0);
    for (piece, leaf) in pieces(job, path, &whole) {
        let gap = end.is_followed_by(&piece, leaf).then(|| leaf.offset + piece.leaf_offset - end.source);
        end = if leaf.gathered().is_some() { End::NOWHERE } else { End::of(&piece, leaf) };
        count += match (leaf.gathered(), path.list_of(leaf)) {
            (Some(_), _) => usize::from(piece.bytes > LARGEST_STRIDED),
            (None, Some(list)) => list.within(piece.source(leaf)).filter(|run| is_large(run.bytes)).count(),
            (None, None) => {
                // It is counted when it becomes large.
                let before = gap.map_or(0, |gap| joined + gap);
                joined = before + piece.bytes;
                usize::from(is_large(joined) && !(before > 0 && is_large(before)))
            }
        };
        if count > enough {
            break;
        }
    }
    count
}

/// Where a piece ends.
struct End {
    /// The storage that it lies in, by identity; 0 is none.
    storage: usize,
    /// In the storage.
    source: usize,
    chunk: usize,
    linear: usize,
}

impl End {
    const NOWHERE: Self = Self { storage: 0, source: 0, chunk: 0, linear: 0 };

    #[inline]
    fn of(piece: &Piece, leaf: &Leaf) -> Self {
        Self {
            storage: leaf.storage.identity(),
            source: leaf.offset + piece.leaf_offset + piece.bytes,
            chunk: piece.chunk,
            linear: piece.linear + piece.bytes,
        }
    }

    /// Whether `piece` lies behind it in the same memory, at the same distance in its source and in its destination.
    #[inline]
    fn is_followed_by(&self, piece: &Piece, leaf: &Leaf) -> bool {
        let gap = || (leaf.offset + piece.leaf_offset).checked_sub(self.source);
        self.storage == leaf.storage.identity()
            && self.chunk == piece.chunk
            && gap()
                .is_some_and(|gap| gap <= LARGEST_GAP && piece.linear.checked_sub(self.linear) == Some(gap))
            && (gap() == Some(0) || leaf.storage.gaps() != Gaps::Unread)
    }
}

impl CopyRange {
    /// The buffer that it reads.
    #[inline]
    pub(crate) fn buffer<'k>(&self, leaf: &'k Leaf) -> &'k dyn Buffer {
        match self.begin {
            Begin::In(number, _) => leaf.listed_buffer(number),
            _ => leaf.storage.buffer(),
        }
    }

    /// Whether gaps are left out.
    pub(crate) fn is_gathered(&self) -> bool {
        matches!(self.begin, Begin::Behind(_))
    }

    /// Its parts of so many bytes.
    fn in_parts(self, part: usize) -> impl Iterator<Item = Self> {
        (0..self.bytes).step_by(part).map(move |done| Self {
            begin: self.begin.advanced(done),
            to_offset: self.to_offset + done,
            bytes: part.min(self.bytes - done),
            ..self
        })
    }

    /// A range for each of the runs that this one gathers from `leaf`.
    fn in_runs(self, leaf: &Leaf, skip: usize) -> impl Iterator<Item = Self> {
        let (first, mut to_offset) = (leaf.offset, self.to_offset);
        let places = leaf.gathered().map(|elements| elements.runs.places(skip..skip + self.bytes));
        places.into_iter().flatten().map(move |(offset, bytes)| {
            let range = Self { begin: Begin::At(first + offset), to_offset, bytes, ..self };
            to_offset += bytes;
            range
        })
    }

    /// Extends the range to whole granules at both ends. The plan has kept room for that at the same distances
    /// (`plan::Leaf::skew`), and buffers consist of whole granules. Elements that are gathered are no granules: the device that gathers
    /// them need not copy granules (`check_limits`), or fills the last one itself (`Limits::largest_strided`).
    fn round_to(&mut self, granularity: Alignment) {
        let Begin::At(from_offset) = &mut self.begin else { return };
        let lead = *from_offset & (granularity.bytes() - 1);
        *from_offset -= lead;
        self.to_offset -= lead;
        self.bytes = (self.bytes + lead).next_multiple_of(granularity.bytes());
    }
}

/// The most copies that a path can need.
pub(crate) fn most(job: &Job, path: &TransferPath) -> usize {
    let leaves: usize = job.plan.chunks_of(path.source).iter().map(|chunk| chunk.order.len()).sum();
    leaves + path.listed
}

/// What one launch of a kernel copies.
pub(crate) struct Gathered {
    /// Those of strided tensors come last, as the seam asks, in parts. All others are cut when the table is written: [`Table::part`].
    pub(crate) ranges: Vec<CopyRange>,
    /// How many entries the table has.
    pub(crate) parts: usize,
    pub(crate) table: Table,
}

/// Splits `ranges` into those that one launch copies, with a block for its table, and those that are copies of their own. If there
/// are few, or `table` gives no block for so many bytes, all are copies of their own.
pub(crate) fn split(
    ranges: Vec<CopyRange>,
    kernels: Kernels,
    table: impl FnOnce(usize) -> Option<Block>,
) -> (Option<Gathered>, Vec<CopyRange>) {
    let Some(strided) = kernels.strided_entry() else { return split_ranges(ranges, kernels, table) };
    let part = part_of_block(ranges.iter().map(|range| range.bytes).sum());
    // An entry of its kernel, and how many.
    let entries = |range: &CopyRange| match range.begin {
        Begin::At(_) | Begin::In(..) => {
            let kernel = kernels.ranges?;
            Some((kernel.entry, kernel.entries(range.bytes)?))
        }
        Begin::Behind(_) if range.bytes <= LARGEST_STRIDED => Some((strided, range.bytes.div_ceil(part))),
        Begin::Behind(_) => None,
    };
    let (mut small, mut parts, mut bytes) = (0, 0_usize, 0_usize);
    for (entry, of_range) in ranges.iter().filter_map(entries) {
        small += 1;
        parts = parts.saturating_add(of_range);
        bytes = bytes.saturating_add(entry.saturating_mul(of_range));
    }
    let block = if small < FEWEST_GATHERED { None } else { table(bytes) };
    let Some(block) = block.filter(|block| block.bytes() >= bytes) else { return (None, ranges) };
    let (mut together, mut behind, mut single) = (Vec::with_capacity(small), Vec::new(), Vec::new());
    for range in ranges {
        match entries(&range) {
            None => single.push(range),
            Some(_) if range.is_gathered() => behind.extend(range.in_parts(part)),
            Some(_) => together.push(range),
        }
    }
    together.append(&mut behind);
    let part = kernels.ranges.map_or(NonZero::<usize>::MAX, |ranges| ranges.part);
    (Some(Gathered { ranges: together, parts, table: Table { block, part } }), single)
}

/// As [`split`], where no gaps are left out.
fn split_ranges(
    mut ranges: Vec<CopyRange>,
    kernels: Kernels,
    table: impl FnOnce(usize) -> Option<Block>,
) -> (Option<Gathered>, Vec<CopyRange>) {
    let Some(kernel) = kernels.ranges else { return (None, ranges) };
    let (mut small, mut parts) = (0, 0_usize);
    for of_range in ranges.iter().filter_map(|range| kernel.entries(range.bytes)) {
        small += 1;
        parts = parts.saturating_add(of_range);
    }
    if small < FEWEST_GATHERED {
        return (None, ranges);
    }
    let bytes = parts.saturating_mul(kernel.entry);
    let Some(block) = table(bytes).filter(|block| block.bytes() >= bytes) else { return (None, ranges) };
    let mut single = Vec::new();
    if small < ranges.len() {
        single.extend(ranges.extract_if(.., |range| range.bytes > kernel.largest));
    }
    (Some(Gathered { ranges, parts, table: Table { block, part: kernel.part } }), single)
}

/// The same copies, of ranges alone, for memory that no kernel reaches: each run of a strided tensor is a copy of its own. Fails if
/// elements are cast.
pub(crate) fn without_kernels(job: &Job, ranges: Vec<CopyRange>) -> Result<Vec<CopyRange>> {
    if !ranges.iter().any(CopyRange::is_gathered) {
        return Ok(ranges);
    }
    let mut all = Vec::new();
    for range in ranges {
        match (range.begin, job.leaves.get(range.leaf as usize)) {
            (Begin::Behind(_), Some(leaf)) if leaf.cast_to().is_some() => {
                let what = "cast into memory that is not pinned, and none can be pinned now; leave it more of the staging budget";
                return Err(Error::Unsupported { device: leaf.storage.device_id(), what });
            }
            (Begin::Behind(skip), Some(leaf)) => all.extend(range.in_runs(leaf, skip)),
            _ => all.push(range),
        }
    }
    Ok(all)
}
