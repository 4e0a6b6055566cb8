//! Pinned blocks that results on the host lie in.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Buffer, Direction};
use crate::device::device::Device;
use crate::error::Result;
use crate::job::job::Job;
use crate::job::kernels::LARGEST_DOWN;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::runtime::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::runtime::sync::{Mutex, thread};
use crate::runtime::workers;
use crate::staging::block::Block;
use crate::staging::pool::StagingPool;

/// From so many bytes on, several threads page-lock new blocks: the first 200 results of 8 MB take 165 to 285 ms then, and 308 to 338
/// by one (H200).
const GROWN_TOGETHER: usize = 32 << 20;

/// How hard to try for pinned results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostResults {
    /// Idle blocks of the pool; never the driver.
    IdleOnly,
    /// New ones within the budget.
    Grow,
}

/// What the chunks of a copy down lie in.
pub(crate) enum HostBlocks {
    Pinned(Vec<Box<dyn Buffer>>),
    Pageable,
    Missing,
}

/// A block that is wanted.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    pool: &'a Arc<StagingPool>,
    bytes: usize,
    /// What `Backend::allocate_staging` takes: kernels write packed results, and copies alone what is too large for them.
    direction: Direction,
}

impl Wanted<'_> {
    /// An idle block. What kernels write serves copies as well: it may have been allocated beforehand (`Device::prepare`).
    fn try_take(&self) -> Option<Block> {
        let try_take = |direction| self.pool.try_take(self.bytes, direction);
        match self.direction {
            Direction::Upload => try_take(Direction::Upload),
            Direction::Download => try_take(Direction::Download).or_else(|| try_take(Direction::Upload)),
        }
    }
}

impl Job {
    /// Pinned blocks for results that come down from devices; `None` if the copy is of another kind.
    pub(crate) fn host_blocks(&self, host_results: HostResults) -> Result<Option<HostBlocks>> {
        if !self.paths.iter().any(|path| matches!(path.kind, PathKind::Download)) {
            return Ok(None);
        }
        // Mapped memory goes with its device, even while somebody reads it. And a mapped block is filled by one submission,
        // whatever the pace.
        let unmapped = !self.mapped_results || self.pace.is_some();
        let pinned = self.pinned && !(unmapped && self.paths.iter().any(TransferPath::fills_at_once));
        if !pinned || self.paths.iter().any(|path| !matches!(path.kind, PathKind::Download)) {
            return Ok(Some(HostBlocks::Pageable));
        }
        let wanted = self.plan.chunks().iter().filter_map(|chunk| {
            let path = self.paths.iter().find(|path| path.source == chunk.source)?;
            let by_kernels =
                chunk.order.len() > 1 || chunk.bytes <= LARGEST_DOWN || path.kernels.strided.is_some();
            let direction = if by_kernels { Direction::Upload } else { Direction::Download };
            Some(Wanted { pool: path.from.device().map(Device::results)?, bytes: chunk.bytes, direction })
        });
        let wanted: SmallVec<[Wanted<'_>; 4]> = wanted.collect();
        if let Some(pool) = pool_without_room(&wanted, host_results) {
            pool.note_fallback();
            return Ok(Some(HostBlocks::Pageable));
        }
        let blocks = match host_results {
            HostResults::IdleOnly => match take_idle(&wanted) {
                None => return Ok(Some(HostBlocks::Missing)),
                blocks => blocks,
            },
            HostResults::Grow => take_or_grow(&wanted),
        };
        let buffers = |blocks: Vec<Block>| {
            blocks.into_iter().zip(&wanted).map(|(block, wanted)| block.into_buffer(wanted.bytes)).collect()
        };
        Ok(Some(blocks.map_or(HostBlocks::Pageable, |blocks| HostBlocks::Pinned(buffers(blocks)))))
    }
}

/// A pool that cannot have all blocks that are wanted of it, so that none is page-locked in vain. A copy that makes do with idle blocks
/// asks the budget alone.
fn pool_without_room<'a>(wanted: &[Wanted<'a>], host_results: HostResults) -> Option<&'a Arc<StagingPool>> {
    let mut sums: SmallVec<[(&Arc<StagingPool>, usize); 2]> = SmallVec::new();
    for Wanted { pool, bytes, direction } in wanted {
        let class = pool.class(*bytes, *direction).bytes;
        match sums.iter_mut().find(|(known, _)| Arc::ptr_eq(known, pool)) {
            Some((_, sum)) => *sum = sum.saturating_add(class),
            None => sums.push((pool, class)),
        }
    }
    let has_room = |(pool, bytes): &(&Arc<StagingPool>, usize)| match host_results {
        HostResults::IdleOnly => *bytes <= pool.budget(),
        // Blocks whose copies are done may not have been given back yet.
        HostResults::Grow => {
            *bytes <= pool.unused() || (pool.settle_queues().is_ok() && *bytes <= pool.unused())
        }
    };
    sums.into_iter().find(|sum| !has_room(sum)).map(|(pool, _)| pool)
}

fn take_idle(wanted: &[Wanted<'_>]) -> Option<Vec<Block>> {
    wanted.iter().map(Wanted::try_take).collect()
}

/// Idle blocks, and new ones for the rest; `None` if one of them cannot be had: then the results are ordinary memory, and the report
/// says so.
fn take_or_grow(wanted: &[Wanted<'_>]) -> Option<Vec<Block>> {
    let grown = Growth {
        wanted,
        blocks: wanted.iter().map(|wanted| Mutex::new(wanted.try_take())).collect(),
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
    };
    let missing = || wanted.iter().zip(&grown.blocks).filter(|(_, block)| block.lock().is_none());
    let bytes = missing().map(|(wanted, _)| wanted.bytes).fold(0, usize::saturating_add);
    let helpers = if bytes < GROWN_TOGETHER { 0 } else { workers::most_threads().min(missing().count()) - 1 };
    thread::scope(|scope| {
        for _ in 0..helpers {
            // Without a thread the others do its part.
            let _ =
                thread::Builder::new().name("transship-growth".into()).spawn_scoped(scope, || grown.work());
        }
        grown.work();
    });
    grown.blocks.iter().map(|block| block.lock().take()).collect()
}

/// New blocks, shared out among threads.
struct Growth<'a> {
    wanted: &'a [Wanted<'a>],
    blocks: Vec<Mutex<Option<Block>>>,
    next: AtomicUsize,
    failed: AtomicBool,
}

impl Growth<'_> {
    /// Page-locks what is missing, one by one, until a thread fails.
    fn work(&self) {
        while !self.failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let (Some(wanted), Some(block)) = (self.wanted.get(index), self.blocks.get(index)) else {
                return;
            };
            if block.lock().is_some() {
                continue;
            }
            match wanted.pool.take_or_grow(wanted.bytes, wanted.direction) {
                Ok(Some(new)) => *block.lock() = Some(new),
                Ok(None) | Err(_) if self.failed.swap(true, Ordering::Relaxed) => return,
                Ok(None) | Err(_) => wanted.pool.note_fallback(),
            }
        }
    }
}
