//! Copies without staging.

use std::sync::Arc;

use crate::backend::{Buffer, CopyOp, Elements, GatherTo, ScatterFrom, Scattered};
use crate::error::Result;
use crate::job::callers_memory::Preallocated;
use crate::job::chunk_memory::StridedPlaces;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::PathKind;
use crate::plan::plan::Route;
use crate::staging::block::host_side;
use crate::transfer::coalesce;
use crate::transfer::coalesce::{Begin, CopyRange, Gathered};
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::submission_resources::{Storages, SubmissionResources};
use crate::transfer::take_blocks::BlockSource;

impl<'a> SegmentCopy<'a> {
    /// Copies without staging.
    pub(crate) fn direct(&self, blocks: BlockSource<'_>) -> Result<Carried> {
        let mut storages = Storages::new();
        let chunks = Some(&*self.destinations.chunks);
        let mut ranges = coalesce::ranges(self.job, self.path, self.segment, chunks, &mut storages);
        if self.job.held().is_some_and(Preallocated::is_strided) {
            ranges = self.scatter_ranges(ranges, &storages)?;
        }
        let table = |bytes| match blocks {
            BlockSource::SegmentBlocks(taken) => self.table(taken.table, bytes),
            BlockSource::Now(_) => self.grow_table(bytes),
        };
        let (gathered, single) = match self.destinations.pageable {
            true => (None, coalesce::without_kernels(self.job, ranges)?),
            false => coalesce::split(ranges, self.path.kernels, table),
        };
        self.count_gathered(gathered.as_ref().map_or(0, |gathered| gathered.parts), &single);
        // Large copies first: the device makes them while this thread writes the table of the others.
        if !single.is_empty() {
            let keep = SubmissionResources { storages: storages.clone(), ..self.keep() };
            self.copy_ranges(keep, &single)?;
        }
        if let Some(Gathered { ranges, table, .. }) = gathered {
            let keep = SubmissionResources { table: Some(table), storages, ..self.keep() };
            self.copy_ranges(keep, &ranges)?;
        }
        Ok(Carried::Whole)
    }

    /// Submits those of `ranges` that a kernel writes to where they have gaps. Gives the others back, those that no kernel writes as a
    /// range for each run.
    fn scatter_ranges(&self, ranges: Vec<CopyRange>, storages: &Storages) -> Result<Vec<CopyRange>> {
        let (mut others, mut by_kernel, mut scattered) = (Vec::new(), Vec::new(), Vec::new());
        for range in ranges {
            match (self.places_of(&range), self.job.leaves.get(range.leaf as usize)) {
                (Some(places), Some(leaf)) if places.by_kernel => {
                    scattered.push(range.scattered(leaf, &places.elements));
                    by_kernel.push(range);
                }
                (Some(places), _) => others.extend(range.to_runs(places)),
                (None, _) => others.push(range),
            }
        }
        if by_kernel.is_empty() {
            return Ok(others);
        }
        self.job.completion.metrics.count_gathered(by_kernel.len());
        let keep = SubmissionResources { storages: storages.clone(), scattered, ..self.keep() };
        // SAFETY: as in `copy_ranges`. What has gaps lies within memory of the caller (`Slot::check_strided`), and has as many bytes as
        // its leaf.
        let submission = unsafe {
            self.submit(&self.path.queue, keep, |keep| {
                let ranges = by_kernel.iter().zip(&keep.scattered);
                let ops = ranges.filter_map(|(range, elements)| {
                    let from = range.buffer(keep.sources().get(range.leaf as usize)?);
                    let to = keep.storages.get(range.to as usize)?.buffer();
                    Some(CopyOp::Scatter { from: ScatterFrom::Device(from), to, elements })
                });
                ops.collect()
            })
        };
        submission.map(|_| others)
    }

    /// Where the range goes, if it has gaps there. What has gaps is the only leaf of its chunk.
    fn places_of(&self, range: &CopyRange) -> Option<&'a Arc<StridedPlaces>> {
        match self.job.plan.routes().get(range.leaf as usize)? {
            Route::Alone { chunk, .. } => self.destinations.chunks.get(*chunk as usize)?.strided.as_ref(),
            _ => None,
        }
    }

    /// Submits `ranges`, whose destinations are those of `keep`.
    fn copy_ranges(&self, keep: SubmissionResources, ranges: &[CopyRange]) -> Result<()> {
        // SAFETY: `coalesce::ranges` reads leaves, which lie within their storages (`Scan::recognizes`, `Scan::look_at`), and
        // what lies between two of them or fills a granule. It writes chunks, which the plan has sized or which lie in memory of
        // the caller (`Preallocated::check`). `keep` holds all of these storages. The table was taken for all parts of these ranges
        // (`coalesce::split`).
        let submission = unsafe {
            self.submit(&self.path.queue, keep, |keep| {
                let mut ops = Vec::with_capacity(ranges.len());
                for ranges in ranges.chunk_by(|a, b| a.to == b.to) {
                    let to = ranges.first().and_then(|range| keep.storages.get(range.to as usize));
                    if let Some(to) = to {
                        self.add_ops(&mut ops, ranges, keep.sources(), to.buffer());
                    }
                }
                ops.into()
            })
        };
        submission.map(|_| ())
    }

    /// Adds the copies for `ranges`, which all go to `to`.
    fn add_ops<'k>(
        &self,
        ops: &mut Vec<CopyOp<'k>>,
        ranges: &[CopyRange],
        sources: &'k [Leaf],
        to: &'k dyn Buffer,
    ) {
        let backend = self.path.read_by(&self.job.target).backend();
        let gathers = self.path.kernels.strided.is_some();
        let ranges = ranges.iter().filter_map(|range| Some((range, sources.get(range.leaf as usize)?)));
        match (self.path.from.device(), &self.path.kind) {
            (None, _) => ops.extend(ranges.map(|(range, leaf)| {
                let from = host_side(leaf.storage.buffer(), range.begin.number(), backend);
                CopyOp::Upload { from, to, to_offset: range.to_offset, bytes: range.bytes }
            })),
            (Some(_), PathKind::Download) => {
                let to = host_side(to, 0, backend);
                match gathers {
                    false => ops.extend(ranges.map(|(range, leaf)| range.down(leaf, to, range.to_offset))),
                    true => ops.extend(
                        ranges.filter_map(|(range, leaf)| range.down_without_gaps(leaf, to, range.to_offset)),
                    ),
                }
            }
            (Some(_), _) if gathers => {
                ops.extend(ranges.filter_map(|(range, leaf)| range.between_without_gaps(leaf, to)));
            }
            (Some(_), _) => ops.extend(ranges.map(|(range, leaf)| range.between(leaf, to))),
        }
    }
}

impl CopyRange {
    /// A range for each run of `places`, in whose memory it begins behind the first element by as many bytes as it does in its leaf.
    fn to_runs(self, places: &StridedPlaces) -> impl Iterator<Item = Self> {
        let skip = self.to_offset - places.elements.offset;
        let mut done = 0;
        places.runs(skip, self.bytes).map(move |(to_offset, bytes)| {
            let begin = self.begin.advanced(done);
            done += bytes;
            Self { begin, to_offset, bytes, ..self }
        })
    }

    /// What a kernel copies that writes to where `to` says.
    fn scattered(&self, leaf: &Leaf, to: &Elements) -> Scattered {
        let (from, from_skip) = match (self.begin, leaf.gathered()) {
            (Begin::Behind(skip), Some(elements)) => (elements.clone(), skip),
            (begin, _) => (Elements::side_by_side(begin.number(), self.bytes), 0),
        };
        let to_skip = self.to_offset - to.offset;
        Scattered { from, from_skip, to: to.clone(), to_skip, bytes: self.bytes }
    }

    /// The copy out of `leaf` into a buffer of a device.
    #[inline]
    fn between<'k>(&self, leaf: &'k Leaf, to: &'k dyn Buffer) -> CopyOp<'k> {
        let &Self { begin, to_offset, bytes, .. } = self;
        let (from, from_offset) = (self.buffer(leaf), begin.number());
        CopyOp::Between { from, from_offset, to, to_offset, bytes }
    }

    /// The same where gaps may be left out.
    fn between_without_gaps<'k>(&self, leaf: &'k Leaf, to: &'k dyn Buffer) -> Option<CopyOp<'k>> {
        match self.begin {
            Begin::Behind(skip) => self.gather(leaf, skip, GatherTo::Device(to, self.to_offset)),
            _ => Some(self.between(leaf, to)),
        }
    }
}
