//! Copying down into blocks.

use std::sync::Arc;

use smallvec::smallvec;

use crate::backend::{Buffer, CopyOp, Direction, HostSide};
use crate::error::{Error, Result};
use crate::in_flight::metrics::Phase;
use crate::in_flight::queue::{Keep, Lane, Storages};
use crate::job::unstage::Landing;
use crate::staging::block::Block;
use crate::transfer::coalesce;
use crate::transfer::coalesce::Run;
use crate::transfer::segment_copy::{Outlet, Supply, Taken, Transfer};

impl Transfer<'_> {
    /// Copies down into a staging block, and from there into ordinary memory: at once, or when the copy is done.
    pub(crate) fn drain(&self, supply: Supply<'_>, outlet: Outlet<'_>) -> Result<()> {
        let (job, flow, lane) = (self.job, self.flow, &self.flow.lane);
        let landing = |block| Landing::new(job, flow, self.destinations, self.unit, block);
        let source = flow.origin.device().ok_or(Error::NotReady)?;
        match supply {
            Supply::Taken(Taken { block, table }) => {
                let block = Arc::new(block.ok_or(Error::NotReady)?);
                self.read_down(lane, &block, |_| table)?;
                job.landings().push(landing(block));
                source.staging().lend_to(job.landings());
                Ok(())
            }
            Supply::Now(_) => {
                let Some(block) = self.take(source.staging(), Direction::Download, None)? else {
                    return self.carry_halves(None, outlet);
                };
                let landing = landing(self.copy_down(lane, block)?);
                // SAFETY: `copy_down` has waited; the chunks are not used before the whole copy is done.
                job.completion.figures.time(Phase::Stage, || unsafe { landing.land() })
            }
        }
    }

    /// Copies the unit into a block of the source and waits for it.
    pub(crate) fn copy_down(&self, lane: &Arc<Lane>, block: Block) -> Result<Arc<Block>> {
        let block = Arc::new(block);
        if let Some(position) = self.read_down(lane, &block, |bytes| self.grow_table(bytes))? {
            lane.wait(position, None)?;
        }
        Ok(block)
    }

    /// Copies the unit into a block of the source; the position behind that, unless there is nothing to copy.
    fn read_down(
        &self,
        lane: &Arc<Lane>,
        block: &Arc<Block>,
        table: impl FnOnce(usize) -> Option<Block>,
    ) -> Result<Option<u64>> {
        let runs = coalesce::runs(self.job, self.flow, self.unit, None, &mut Storages::new());
        self.job.completion.figures.count_staged(self.unit.bytes(), block.staging().is_pinned());
        let (gathered, single) = coalesce::split(runs, self.flow.gather(&self.job.target), table);
        let mut last = None;
        if let Some((runs, table)) = gathered {
            self.job.completion.figures.count_gathered(runs.len());
            last = Some(self.copy_runs_down(lane, block, Some(table), &runs)?);
        }
        if !single.is_empty() {
            last = Some(self.copy_runs_down(lane, block, None, &single)?);
        }
        Ok(last)
    }

    fn copy_runs_down(
        &self,
        lane: &Arc<Lane>,
        block: &Arc<Block>,
        table: Option<Block>,
        runs: &[Run],
    ) -> Result<u64> {
        let keep = Keep { shared_blocks: smallvec![block.clone()], table, ..self.keep() };
        // SAFETY: as in `copy_runs`; the block has room for the whole unit.
        unsafe {
            self.submit(lane, keep, |keep| {
                let mut ops = Vec::with_capacity(runs.len());
                if let Some(block) = keep.shared_blocks.first() {
                    let (to, sources) = (block.host_side(0), keep.sources());
                    let down = |run: &Run| {
                        let from = sources.get(run.leaf)?.storage.buffer();
                        Some(run.down(from, to, run.to_offset - self.unit.start))
                    };
                    ops.extend(runs.iter().filter_map(down));
                }
                ops.into()
            })
        }
    }
}

impl Run {
    /// The copy out of `from` to a place in host memory.
    #[inline]
    pub(crate) fn down<'k>(&self, from: &'k dyn Buffer, to: HostSide<'k>, offset: usize) -> CopyOp<'k> {
        CopyOp::Download { from, from_offset: self.from_offset, to: to.at(offset), bytes: self.bytes }
    }
}
