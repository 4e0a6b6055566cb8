//! Copies without staging.

use crate::backend::{Buffer, CopyOp, GatherTo};
use crate::error::Result;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::PathKind;
use crate::staging::block::host_side;
use crate::transfer::coalesce;
use crate::transfer::coalesce::{Begin, CopyRange};
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::submission_resources::{Storages, SubmissionResources};
use crate::transfer::take_blocks::BlockSource;

impl<'a> SegmentCopy<'a> {
    /// Copies without staging.
    pub(crate) fn direct(&self, blocks: BlockSource<'_>) -> Result<Carried> {
        let mut storages = Storages::new();
        let chunks = Some(&*self.destinations.chunks);
        let ranges = coalesce::ranges(self.job, self.path, self.segment, chunks, &mut storages);
        let table = |bytes| match blocks {
            BlockSource::SegmentBlocks(taken) => taken.table,
            BlockSource::Now(_) => self.grow_table(bytes),
        };
        let (gathered, single) = match self.destinations.pageable {
            true => (None, coalesce::without_kernels(self.job, ranges)?),
            false => coalesce::split(ranges, self.path.kernels, table),
        };
        self.count_gathered(gathered.as_ref().map_or(0, |(ranges, _)| ranges.len()), &single);
        if let Some((ranges, table)) = gathered {
            self.copy_ranges(
                SubmissionResources { table: Some(table), storages: storages.clone(), ..self.keep() },
                &ranges,
            )?;
        }
        if !single.is_empty() {
            self.copy_ranges(SubmissionResources { storages, ..self.keep() }, &single)?;
        }
        Ok(Carried::Whole)
    }

    /// Submits `ranges`, whose destinations are those of `keep`.
    fn copy_ranges(&self, keep: SubmissionResources, ranges: &[CopyRange]) -> Result<()> {
        // SAFETY: `coalesce::ranges` reads leaves, which lie within their storages (`Scan::recognizes`, `Scan::look_at`), and
        // what lies between two of them or fills a granule. It writes chunks, which the plan has sized or which lie in memory of
        // the caller (`Preallocated::check`). `keep` holds all of these storages. The table was taken for as many ranges
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
    /// The copy out of `leaf` into a buffer of a device.
    #[inline]
    fn between<'k>(&self, leaf: &'k Leaf, to: &'k dyn Buffer) -> CopyOp<'k> {
        let &Self { begin, to_offset, bytes, .. } = self;
        let (from, from_offset) = (leaf.storage.buffer(), begin.number());
        CopyOp::Between { from, from_offset, to, to_offset, bytes }
    }

    /// The same where gaps may be left out.
    fn between_without_gaps<'k>(&self, leaf: &'k Leaf, to: &'k dyn Buffer) -> Option<CopyOp<'k>> {
        match self.begin {
            Begin::At(_) => Some(self.between(leaf, to)),
            Begin::Behind(skip) => self.gather(leaf, skip, GatherTo::Device(to, self.to_offset)),
        }
    }
}
