//! Staging blocks by size class: taken in turn, budgeted, counted.
//!
//! Blocks are taken in turn because a block that the copy engine has just read costs twice as much to write as one
//! that it has not (7.3 against 15.8 us for 155 KB on an H200). Page-locking costs milliseconds, so blocks are only
//! allocated where blocking is allowed, and kept: in a steady state, whatever the mix of sizes, none is (`stock.rs`).

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use crate::staging::size_class::{Class, class_of};
use crate::staging::waiting_line::{Asker, InQueue};

use crate::backend::{Backend, Direction, Staging};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::queue::Lane;
use crate::job::options::LARGEST_BLOCK;
use crate::job::unstage::Landings;
use crate::runtime::sync::atomic::AtomicBool;
use crate::runtime::sync::{Condvar, Instant, Mutex};
use crate::runtime::workers;
use crate::staging::block::Block;
use crate::staging::free_list::Stock;
use crate::staging::lease::Lease;

/// The smallest block, in bytes.
pub(crate) const SMALLEST_BLOCK: usize = 64 << 10;
/// So many blocks of a small class are allocated at once, so that they can be taken in turn.
const BLOCKS_IN_TURN: usize = 4;
/// Classes up to this size are small, in bytes.
pub(crate) const SMALL_CLASS: usize = 1 << 20;
/// Most pinned memory for staging, unless set otherwise, in bytes: 16 of the largest blocks, which fills the link.
const STAGING_BUDGET: usize = 16 * LARGEST_BLOCK;
/// So many copies at a time are a few.
const FEW_LEASES: usize = 2;
/// Most pinned memory for results on the host, unless set otherwise, in bytes.
const RESULT_BUDGET: usize = 256 << 20;

/// The staging blocks of one device for one purpose.
pub(crate) struct Pool {
    pub(crate) backend: ManuallyDrop<Arc<dyn Backend>>,
    pub(crate) state: Mutex<State>,
    pub(crate) returned: Condvar,
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Copies that are done may still have blocks, out of which their results must be copied.
    borrowers: Mutex<Vec<Weak<Landings>>>,
}

pub(crate) struct State {
    pub(crate) stock: Stock<Box<dyn Staging>>,
    /// What somebody needed at once in vain.
    short_of: Option<Class>,
    /// Who waits for a block, in order: only copies within their share are served before them, and that not for long.
    pub(crate) queue: VecDeque<u64>,
    /// Since when the first of them has been that.
    pub(crate) first_since: Option<Instant>,
    /// How many copies have a share.
    pub(crate) leases: usize,
    pub(crate) next_in_queue: u64,
    /// How often ordinary memory took the place of a block.
    fallbacks: u64,
}

/// What a pool holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// The most it may hold.
    pub budget: usize,
    /// In use by copies or results.
    pub in_use: usize,
    /// Kept for the next use.
    pub idle: usize,
    /// The most it ever held.
    pub high_water: usize,
    /// How many copies wait for a block, which is no number of bytes.
    pub waiting: usize,
    /// How often ordinary memory took the place of a block, because it would have been above the budget or could not be
    /// page-locked.
    pub fallbacks: u64,
}

impl Pool {
    /// Blocks that copies go through.
    pub(crate) fn for_staging(backend: Arc<dyn Backend>) -> Arc<Self> {
        Self::new(backend, Stock::new(STAGING_BUDGET, true))
    }

    /// Blocks that results on the host lie in.
    pub(crate) fn for_results(backend: Arc<dyn Backend>) -> Arc<Self> {
        Self::new(backend, Stock::new(RESULT_BUDGET, false))
    }

    fn new(backend: Arc<dyn Backend>, stock: Stock<Box<dyn Staging>>) -> Arc<Self> {
        let state = State {
            stock,
            short_of: None,
            queue: VecDeque::new(),
            first_since: None,
            leases: 0,
            next_in_queue: 0,
            fallbacks: 0,
        };
        Arc::new(Self {
            backend: ManuallyDrop::new(backend),
            state: Mutex::new(state),
            returned: Condvar::new(),
            lanes: Mutex::new(Vec::new()),
            borrowers: Mutex::default(),
        })
    }

    /// Blocks of this pool may be in flight on `lane`.
    pub(crate) fn serve(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock();
        lanes.retain(|known| known.strong_count() > 0);
        if !lanes.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(lane))) {
            lanes.push(Arc::downgrade(lane));
        }
    }

    /// `landings` have a block of this pool until they are landed.
    pub(crate) fn lend_to(&self, landings: &Arc<Landings>) {
        let mut borrowers = self.borrowers.lock();
        borrowers.retain(|known| known.strong_count() > 0);
        borrowers.push(Arc::downgrade(landings));
    }

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
        let (class, staging) = state.stock.take(class)?;
        Some(Block {
            staging: ManuallyDrop::new(staging),
            class,
            pool: Some(self.clone()),
            lease: None,
            given_up: AtomicBool::new(false),
        })
    }

    /// Somebody needed a block at once in vain: there shall be one more, even if one comes back meanwhile. Else there would
    /// be too few of them for ever.
    pub(crate) fn note_shortage(&self, bytes: usize, direction: Direction) {
        self.state.lock().short_of = Some(self.class(bytes, direction));
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
        self.settle_lanes()?;
        if let Some(block) = self.try_take_as(bytes, direction, asker) {
            return Ok(Some(block));
        }
        let Some(block) = self.grow(class)? else {
            return Ok(None);
        };
        if class.bytes <= SMALL_CLASS {
            for _ in 1..BLOCKS_IN_TURN {
                // Spare blocks are a matter of speed: without them the copy goes on all the same.
                if !self.state.lock().stock.grow(class) || self.allocate(class).is_err() {
                    break;
                }
            }
        }
        Ok(Some(block))
    }

    /// As [`take_or_grow`](Self::take_or_grow), but waits for one: within the share of `lease` for the next of its own, beyond it
    /// in a queue for other copies to give one back. For workers.
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: usize,
        direction: Direction,
        lease: Option<&Arc<Lease>>,
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
        lease: Option<&Arc<Lease>>,
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
        // While nobody waits there is no queue: many workers find an idle block each, or page-lock one, at the same time.
        if let Some(block) = self.take_or_grow(bytes, direction)? {
            return Ok(block);
        }
        let waiting = InQueue::behind_all(self);
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

    /// One more block of a class that there was too little of. The first ones are allocated as always.
    fn end_shortage(self: &Arc<Self>, class: Class) -> Result<Option<Block>> {
        let mut state = self.state.lock();
        let short = state.short_of.take_if(|short| *short == class).is_some();
        let grown = short
            && state.may_serve(class, Asker::default())
            && state.stock.has(class)
            && state.stock.grow(class);
        drop(state);
        grown.then(|| self.allocate(class)).transpose()
    }

    /// Fails if a block of `class` bytes will never be within the budget.
    fn check_hope(&self, class: usize) -> Result<()> {
        let (budget, free) = {
            let state = self.state.lock();
            (state.stock.budget(), state.stock.hope())
        };
        if class > budget {
            return Err(Error::TooLarge {
                device: self.device(),
                kind: "staging",
                requested: class,
                limit: budget,
            });
        }
        if class > free {
            return Err(Error::OutOfMemory {
                device: self.device(),
                kind: "staging",
                requested: class,
                free,
                total: budget,
            });
        }
        Ok(())
    }

    /// How many copies have a share of it.
    pub(crate) fn leases(&self) -> usize {
        self.state.lock().leases
    }

    /// Whether those are more than a few: then each thread leaves processors and driver to the others where it has to wait.
    pub(crate) fn is_shared_by_many(&self) -> bool {
        self.leases() > FEW_LEASES
    }

    /// Ordinary memory in the place of a block that cannot be had.
    pub(crate) fn fall_back(&self, bytes: usize) -> Result<Block> {
        self.note_fallback();
        Block::pageable(bytes)
    }

    pub(crate) fn note_fallback(&self) {
        self.state.lock().fallbacks += 1;
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

    /// Frees idle blocks; returns how many bytes that were. May block in the driver.
    pub(crate) fn trim(&self) -> usize {
        let idle = self.state.lock().stock.drain();
        let freed = free(idle);
        // Only what is freed counts as free: the budget is a promise about pinned memory, not about intentions.
        self.state.lock().stock.freed(freed);
        freed
    }

    /// Sets the budget, and has idle blocks above it freed by a worker.
    pub(crate) fn set_budget(self: &Arc<Self>, bytes: usize) {
        let surplus = self.state.lock().stock.set_budget(bytes);
        if !surplus.is_empty() {
            let surplus = surplus.into_iter().map(|(class, staging)| self.surplus(class, staging));
            workers::dispose(surplus.collect::<Vec<_>>());
        }
    }

    pub(crate) fn budget(&self) -> usize {
        self.state.lock().stock.budget()
    }

    pub(crate) fn statistics(&self) -> PoolStatistics {
        let state = self.state.lock();
        PoolStatistics { waiting: state.queue.len(), fallbacks: state.fallbacks, ..state.stock.statistics() }
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.backend.device()
    }

    /// The class that serves `bytes`. Only mapped blocks have a direction; others serve both, so that what one direction has
    /// grown is there for the other.
    pub(crate) fn class(&self, bytes: usize, direction: Direction) -> Class {
        match self.backend.limits().mapped_staging {
            true => Class::of(bytes, direction),
            false => Class::of(bytes, Direction::Upload),
        }
    }

    /// Allocates one block within the budget, if need be in the place of idle ones.
    fn grow(self: &Arc<Self>, class: Class) -> Result<Option<Block>> {
        let fits = self.state.lock().stock.grow(class);
        match fits || self.make_room(class) {
            true => self.allocate(class).map(Some),
            false => Ok(None),
        }
    }

    /// Frees idle blocks in whose place there is room for one of `class`, and counts that.
    fn make_room(&self, class: Class) -> bool {
        let Some(victims) = self.state.lock().stock.make_room(class) else { return false };
        let freed = free(victims);
        let mut state = self.state.lock();
        state.stock.freed(freed);
        state.stock.grow(class)
    }

    /// Allocates a block that is counted already.
    fn allocate(self: &Arc<Self>, class: Class) -> Result<Block> {
        let reserved = Reservation { pool: self, class };
        let allocate = || self.backend.allocate_staging(class.bytes, class.direction);
        let staging = match allocate() {
            // What lies idle may be what is missing.
            Err(Error::OutOfMemory { .. }) if self.trim() > 0 => allocate()?,
            result => result?,
        };
        std::mem::forget(reserved);
        Ok(Block {
            staging: ManuallyDrop::new(staging),
            class,
            pool: Some(self.clone()),
            lease: None,
            given_up: AtomicBool::new(false),
        })
    }

    /// Blocks whose copies are done come back, if the driver says so. Another device that reads blocks of this one may be
    /// broken, which is no failure of this one.
    pub(crate) fn settle_lanes(&self) -> Result<()> {
        for lane in self.busy_lanes() {
            let polled = lane.poll();
            if lane.is_of(&self.backend) {
                polled?;
            }
        }
        Ok(())
    }

    /// What its device says, if it is broken.
    pub(crate) fn failure(&self) -> Option<Error> {
        let lanes: SmallVec<[_; 8]> = self.lanes.lock().iter().filter_map(Weak::upgrade).collect();
        let mut own = lanes.iter().filter(|lane| lane.is_of(&self.backend));
        own.find_map(|lane| lane.stream().reached().err())
    }

    /// Takes the blocks of copies that are done; whether there were some.
    fn settle_borrowers(&self) -> bool {
        let mut borrowers = std::mem::take(&mut *self.borrowers.lock());
        let mut settled = false;
        borrowers.retain(|landings| {
            let Some(landings) = landings.upgrade() else { return false };
            settled |= landings.settle();
            !landings.is_empty()
        });
        self.borrowers.lock().append(&mut borrowers);
        settled
    }

    /// Waits until it may be worth while to ask once more: the first in the queue for a copy or a block, the others for their
    /// turn.
    fn wait_for_return(&self, class: Class, asker: Asker<'_>) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(1);
        let mut state = self.state.lock();
        if !state.may_serve(class, asker) {
            self.returned.wait_for(&mut state, PATIENCE);
            return Ok(());
        }
        drop(state);
        let lanes = self.busy_lanes();
        let patience = PATIENCE / u32::try_from(lanes.len()).unwrap_or(u32::MAX).max(1);
        for lane in lanes {
            match lane.wait_for_oldest(patience) {
                Ok(true) => return Ok(()),
                Err(error) if lane.is_of(&self.backend) => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        let mut state = self.state.lock();
        if !state.stock.could_take(class) {
            self.returned.wait_for(&mut state, PATIENCE);
        }
        Ok(())
    }

    /// The lanes that blocks may come back from.
    fn busy_lanes(&self) -> SmallVec<[Arc<Lane>; 8]> {
        let mut lanes: SmallVec<[_; 8]> = self.lanes.lock().iter().filter_map(Weak::upgrade).collect();
        // Without the lock: what goes with the last reference to a lane may come back here.
        lanes.retain(|lane| !lane.is_idle());
        lanes
    }

    pub(crate) fn give_back(self: &Arc<Self>, staging: Box<dyn Staging>, class: Class) {
        let kept = self.state.lock().stock.put(class, staging);
        if let Err(staging) = kept {
            workers::dispose(self.surplus(class, staging));
        }
        self.returned.notify_all();
    }

    fn surplus(self: &Arc<Self>, class: Class, staging: Box<dyn Staging>) -> Surplus {
        Surplus { staging: Some(staging), bytes: class.bytes, pool: self.clone() }
    }
}

/// Frees blocks; returns how many bytes that were.
fn free(blocks: Vec<(Class, Box<dyn Staging>)>) -> usize {
    blocks.iter().map(|(class, _)| class.bytes).sum()
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = self.state.get_mut().stock.drain();
        // SAFETY: the field is not touched again.
        let backend = unsafe { ManuallyDrop::take(&mut self.backend) };
        // The backend must outlive its blocks, and the last reference to it may block when it goes.
        workers::dispose((idle, backend));
    }
}

/// A block above a budget that was lowered; it counts until it is freed.
struct Surplus {
    staging: Option<Box<dyn Staging>>,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Drop for Surplus {
    fn drop(&mut self) {
        drop(self.staging.take());
        self.pool.state.lock().stock.freed(self.bytes);
    }
}

struct Reservation<'a> {
    pool: &'a Pool,
    class: Class,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().stock.cancel(self.class);
    }
}
