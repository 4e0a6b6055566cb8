//! Copies without staging.

use crate::backend::{Buffer, CopyOp};
use crate::error::Result;
use crate::job::leaf::Leaf;
use crate::job::transfer_path::PathKind;
use crate::staging::block::host_side;
use crate::transfer::coalesce;
use crate::transfer::coalesce::CopyRange;
use crate::transfer::segment_context::{Carried, SegmentCopy};
use crate::transfer::submission_resources::{Storages, SubmissionResources};
use crate::transfer::take_blocks::BlockSource;

impl<'a> SegmentCopy<'a> {
    /// Copies without staging.
    pub(crate) fn direct(&self, blocks: BlockSource<'_>) -> Result<Carried> {
        let mut storages = Storages::new();
        let chunks = Some(&*self.destinations.chunks);
        let ranges = coalesce::ranges(self.job, self.path, self.segment, chunks, &mut storages);
        let entry = self.path.gather(&self.job.target).filter(|_| !self.destinations.pageable);
        let (gathered, single) = coalesce::split(ranges, entry, |bytes| match blocks {
            BlockSource::SegmentBlocks(taken) => taken.table,
            BlockSource::Now(_) => self.grow_table(bytes),
        });
        if let Some((ranges, table)) = gathered {
            self.job.completion.metrics.count_gathered(ranges.len());
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
                    let to = ranges.first().and_then(|range| keep.storages.get(range.to));
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
        let ranges =
            ranges.iter().filter_map(|range| Some((range, sources.get(range.leaf)?.storage.buffer())));
        match (self.path.from.device(), &self.path.kind) {
            (None, _) => ops.extend(ranges.map(|(range, from)| {
                let &CopyRange { from_offset, to_offset, bytes, .. } = range;
                CopyOp::Upload { from: host_side(from, from_offset, backend), to, to_offset, bytes }
            })),
            (Some(_), PathKind::Download) => {
                let to = host_side(to, 0, backend);
                ops.extend(ranges.map(|(range, from)| range.down(from, to, range.to_offset)));
            }
            (Some(_), _) => ops.extend(ranges.map(|(range, from)| {
                let &CopyRange { from_offset, to_offset, bytes, .. } = range;
                CopyOp::Between { from, from_offset, to, to_offset, bytes }
            })),
        }
    }
}
