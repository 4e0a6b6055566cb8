//! Taking blocks: idle ones, new ones, or those that come back.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Direction;
use crate::error::Result;
use crate::runtime::backoff::Backoff;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::runtime::sync::{Instant, thread};
use crate::staging::block::Block;
use crate::staging::copy_share::{CopyShare, MOST_BLOCKS, PATIENCE};
use crate::staging::pool::StagingPool;
use crate::staging::size_class::{SMALL_CLASS, SizeClass, class_of};
use crate::staging::waiting_line::{Asker, PlaceInLine};

impl StagingPool {
    /// An idle block of at least `bytes`, if nobody waits for one: a larger one only if there is no room for a new one.
    /// Never allocates, never waits.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: usize, direction: Direction) -> Option<Block> {
        self.try_take_as(bytes, direction, Asker::default())
    }

    pub(crate) fn try_take_as(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
        asker: Asker<'_>,
    ) -> Option<Block> {
        let class = self.class(bytes, direction);
        let mut state = self.state.lock();
        if !state.may_serve(class, asker) {
            return None;
        }
        let (class, staging) = state.accounts.take(class)?;
        Some(Block {
            staging: ManuallyDrop::new(staging),
            class,
            pool: Some(self.clone()),
            lease: None,
            given_up: AtomicBool::new(false),
        })
    }

    /// An idle block of at least `bytes`, or a new one within the budget; `None` if the budget is used up or others wait
    /// for it. May block for milliseconds in the driver, but not for other copies.
    pub(crate) fn take_or_grow(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
    ) -> Result<Option<Block>> {
        self.take_or_grow_as(bytes, direction, Asker::default())
    }

    pub(crate) fn take_or_grow_as(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
        asker: Asker<'_>,
    ) -> Result<Option<Block>> {
        if let Some(block) = self.try_take_as(bytes, direction, asker) {
            return Ok(Some(block));
        }
        let class = self.class(bytes, direction);
        if !self.state.lock().may_serve(class, asker) {
            return Ok(None);
        }
        self.settle_queues()?;
        if let Some(block) = self.try_take_as(bytes, direction, asker) {
            return Ok(Some(block));
        }
        let Some(block) = self.grow(class)? else {
            return Ok(None);
        };
        if class.bytes <= SMALL_CLASS {
            for _ in 1..BLOCKS_IN_TURN {
                // Spare blocks only save time: without them the copy goes on.
                if !self.add_spare(class) {
                    break;
                }
            }
        }
        Ok(Some(block))
    }

    /// As [`take_or_grow`](Self::take_or_grow), but waits for one: within the share of `lease` for the next block of its own,
    /// beyond the share in the waiting line for a block of any copy. For workers.
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
        lease: Option<&Arc<CopyShare>>,
    ) -> Result<Block> {
        let block = self.wait_for_block(bytes, direction, lease)?;
        Ok(match lease {
            Some(lease) => lease.hold(block),
            None => block,
        })
    }

    fn wait_for_block(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
        lease: Option<&Arc<CopyShare>>,
    ) -> Result<Block> {
        let class = self.class(bytes, direction);
        self.check_hope(class.bytes)?;
        if let Some(block) = self.end_shortage(class)? {
            return Ok(block);
        }
        if let Some(lease) = lease
            && let Some(block) = lease.take(bytes, direction)?
        {
            return Ok(block);
        }
        // While nobody waits there is no line: many workers find an idle block each, or page-lock one, at the same time.
        if let Some(block) = self.take_or_grow(bytes, direction)? {
            return Ok(block);
        }
        let waiting = PlaceInLine::behind_all(self);
        loop {
            self.check_hope(class.bytes)?;
            if let Some(block) = self.take_or_grow_as(bytes, direction, waiting.asker())? {
                return Ok(block);
            }
            if !self.settle_borrowers() {
                self.wait_for_return(class, waiting.asker())?;
            }
        }
    }

    /// Ordinary memory in the place of a block that cannot be allocated.
    pub(crate) fn fall_back(&self, bytes: usize) -> Result<Block> {
        self.note_fallback();
        Block::pageable(bytes)
    }

    /// Allocates blocks until `bytes` in blocks of at most `largest` are idle, as far as the budget goes.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        bytes: usize,
        largest: usize,
        direction: Direction,
    ) -> Result<()> {
        let class = class_of(bytes.min(largest));
        let wanted = if class <= SMALL_CLASS { BLOCKS_IN_TURN } else { bytes.div_ceil(class) };
        let mut taken = Vec::new();
        while taken.len() < wanted {
            match self.take_or_grow(class, direction)? {
                Some(block) => taken.push(block),
                None => break,
            }
        }
        Ok(())
    }

    /// Waits until another attempt may succeed: the first in the waiting line for the end of a copy or for a block, the others
    /// for their turn.
    fn wait_for_return(&self, class: SizeClass, asker: Asker<'_>) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(1);
        let mut state = self.state.lock();
        if !state.may_serve(class, asker) {
            self.returned.wait_for(&mut state, PATIENCE);
            return Ok(());
        }
        drop(state);
        let queues = self.busy_queues();
        let patience = PATIENCE / u32::try_from(queues.len()).unwrap_or(u32::MAX).max(1);
        for queue in queues {
            match queue.wait_for_oldest(patience) {
                Ok(true) => return Ok(()),
                Err(error) if queue.is_of(&self.backend) && queue.check().is_ok() => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        let mut state = self.state.lock();
        if !state.accounts.could_take(class) {
            self.returned.wait_for(&mut state, PATIENCE);
        }
        Ok(())
    }
}

impl CopyShare {
    /// Counts `block` as one of its own until it is given back.
    pub(crate) fn hold(self: &Arc<Self>, mut block: Block) -> Block {
        self.held.fetch_add(block.bytes(), Ordering::Relaxed);
        block.lease = Some(self.clone());
        block
    }

    /// A block within the share: an idle one, a new one, or the next that its own stream is done with. `None` if no block of its
    /// own will come back first: then it waits in line as others do.
    pub(crate) fn take(&self, bytes: usize, direction: Direction) -> Result<Option<Block>> {
        let asker = Asker { lease: Some(self), waiting: None };
        let mut since = None;
        loop {
            if let Some(block) = self.pool.try_take_as(bytes, direction, asker) {
                return Ok(Some(block));
            }
            let class = self.pool.class(bytes, direction);
            let room = {
                let state = self.pool.state.lock();
                let wants_more = self.held() < MOST_BLOCKS * class.bytes;
                wants_more && state.may_serve(class, asker) && state.accounts.has_room(class)
            };
            if room && let Some(block) = self.pool.take_or_grow_as(bytes, direction, asker)? {
                return Ok(Some(block));
            }
            if self.held() == 0 || self.queue.is_idle() || !self.may_wait() {
                return Ok(None);
            }
            self.wait(*since.get_or_insert_with(Instant::now))?;
        }
    }

    /// Whether the copy may wait for the next block of its own, out of line.
    fn may_wait(&self) -> bool {
        let state = self.pool.state.lock();
        state.line.is_empty() || (self.held() <= state.share() && !state.is_first_impatient())
    }

    /// Waits until a block may have come back.
    fn wait(&self, since: Instant) -> Result<()> {
        if self.asking.swap(true, Ordering::Acquire) {
            Backoff::AMONG_MANY.sleep(since);
            return Ok(());
        }
        let _asking = Asking(&self.asking);
        if self.pool.is_shared_by_many() {
            Backoff::AMONG_MANY.sleep(since);
            return self.queue.poll();
        }
        if !self.queue.wait_for_oldest(PATIENCE)? {
            // Another thread may be just about to submit it.
            thread::yield_now();
        }
        Ok(())
    }
}

/// So many blocks of a small class are allocated at once, so that they can be taken in turn.
const BLOCKS_IN_TURN: usize = 4;

/// A thread asks the stream while this lives. Another one may ask when it is dropped.
struct Asking<'a>(&'a AtomicBool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
