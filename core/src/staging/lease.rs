//! The share of a pool that a copy of many units has.
//!
//! It uses its blocks again itself, as soon as its own stream has read them, and need not line up for each. Copies that run at the
//! same time have equal shares. The queue of the pool is for what goes beyond them.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Direction;
use crate::error::Result;
use crate::in_flight::queue::Lane;
use crate::runtime::backoff::Naps;
use crate::runtime::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::runtime::sync::{Instant, thread};
use crate::staging::block::Block;
use crate::staging::pool::{Pool, SMALLEST_BLOCK, State};
use crate::staging::waiting_line::Asker;

/// How long it asks in one go where hardly anybody else copies.
const PATIENCE: Duration = Duration::from_millis(1);
/// So many blocks are within a share: the device reads some while others are filled.
const FEWEST_BLOCKS: usize = 2;

/// While many copies run, larger blocks would be too few for each.
const BLOCK_OF_MANY: usize = 1 << 20;
/// A copy has no use for more blocks: the link is full, and new ones take milliseconds.
const MOST_BLOCKS: usize = 32;

/// What one copy holds of a pool.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    /// What the blocks are read on.
    lane: Arc<Lane>,
    /// Bytes of blocks that it fills or that are in flight.
    held: AtomicUsize,
    /// A thread of the copy asks the stream.
    asking: AtomicBool,
}

impl Lease {
    /// For a copy whose blocks are read on `lane`.
    pub(crate) fn new(pool: &Arc<Pool>, lane: &Arc<Lane>) -> Arc<Self> {
        pool.state.lock().leases += 1;
        Arc::new(Self {
            pool: pool.clone(),
            lane: lane.clone(),
            held: AtomicUsize::new(0),
            asking: AtomicBool::new(false),
        })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The largest block of which several are within its share: a power of two.
    pub(crate) fn largest_block(&self) -> usize {
        let share = self.pool.state.lock().share();
        let largest = (share / FEWEST_BLOCKS).checked_ilog2().map_or(0, |log| 1 << log).max(SMALLEST_BLOCK);
        if self.pool.is_shared_by_many() { largest.min(BLOCK_OF_MANY) } else { largest }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts `block` as one of its own until it is given back.
    pub(crate) fn hold(self: &Arc<Self>, mut block: Block) -> Block {
        self.held.fetch_add(block.bytes(), Ordering::Relaxed);
        block.lease = Some(self.clone());
        block
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A block within the share: an idle one, a new one, or the next that its own stream is done with. `None` if it has no part
    /// in the pool at the moment, and has to wait as others do.
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
                wants_more && state.may_serve(class, asker) && state.stock.has_room(class)
            };
            if room && let Some(block) = self.pool.take_or_grow_as(bytes, direction, asker)? {
                return Ok(Some(block));
            }
            if self.held() == 0 || self.lane.is_idle() || !self.may_wait() {
                return Ok(None);
            }
            self.wait(*since.get_or_insert_with(Instant::now))?;
        }
    }

    /// Whether what comes back next is its own.
    fn may_wait(&self) -> bool {
        let state = self.pool.state.lock();
        state.queue.is_empty() || (self.held() <= state.share() && !state.is_first_impatient())
    }

    /// Until a block may have come back.
    fn wait(&self, since: Instant) -> Result<()> {
        if self.asking.swap(true, Ordering::Acquire) {
            Naps::AMONG_MANY.sleep(since);
            return Ok(());
        }
        let _asking = Asking(&self.asking);
        if self.pool.is_shared_by_many() {
            Naps::AMONG_MANY.sleep(since);
            return self.lane.poll();
        }
        if !self.lane.wait_for_oldest(PATIENCE)? {
            // Another thread may be just about to submit it.
            thread::yield_now();
        }
        Ok(())
    }
}

/// Others may ask when it is dropped.
struct Asking<'a>(&'a AtomicBool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.state.lock().leases -= 1;
    }
}

impl State {
    /// What each of the copies that run may hold: small copies have a part of their own.
    pub(crate) fn share(&self) -> usize {
        let budget = self.stock.budget();
        (budget - budget / 8) / self.leases.max(1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::device::device::Device;
    use crate::staging::size_class::Class;
    use crate::staging::waiting_line::{FIRST_PATIENCE, InQueue};

    const MIB: usize = 1 << 20;

    fn pool(budget: usize) -> Arc<Pool> {
        let pool = Pool::for_staging(Device::host().backend().clone());
        pool.set_budget(budget);
        pool
    }

    fn may_serve(lease: &Lease, bytes: usize) -> bool {
        let asker = Asker { lease: Some(lease), waiting: None };
        lease.pool.state.lock().may_serve(Class::of(bytes, Direction::Upload), asker)
    }

    /// Mutants: the share is not looked at; the first in the queue has all the time in the world.
    #[test]
    fn within_its_share_a_copy_need_not_line_up_until_the_first_has_waited_too_long() {
        let (pool, host) = (pool(8 * MIB), Device::host());
        let lease = Lease::new(&pool, host.up());
        let other = Lease::new(&pool, host.up());
        assert!(may_serve(&lease, 8 * MIB), "nobody waits");
        let first = InQueue::behind_all(&pool);
        // However slow the machine is.
        let patient = Instant::now() + Duration::from_secs(3600);
        pool.state.lock().first_since = Some(patient);
        // The half of what small copies leave.
        assert!(may_serve(&lease, 2 * MIB) && !may_serve(&lease, 4 * MIB));
        let block = pool.take(2 * MIB, Direction::Upload, Some(&lease)).unwrap();
        assert!(!may_serve(&lease, 2 * MIB) && may_serve(&other, 2 * MIB), "it has its share");
        drop(block);
        assert!(may_serve(&lease, 2 * MIB), "it has given it back");
        pool.state.lock().first_since = Instant::now().checked_sub(2 * FIRST_PATIENCE);
        assert!(!may_serve(&lease, MIB), "the first comes first");
        drop(first);
        assert!(may_serve(&lease, MIB), "nobody waits any more");
    }

    /// Mutant: copies that are over are counted for ever.
    #[test]
    fn the_more_copies_there_are_the_smaller_are_their_blocks() {
        let (pool, host) = (pool(64 * MIB), Device::host());
        let mut leases: Vec<_> = (0..2).map(|_| Lease::new(&pool, host.up())).collect();
        assert_eq!(leases[0].largest_block(), 8 * MIB);
        leases.extend((0..62).map(|_| Lease::new(&pool, host.up())));
        assert_eq!(leases[0].largest_block(), 256 << 10);
        leases.truncate(1);
        assert_eq!((pool.leases(), leases[0].largest_block()), (1, 16 * MIB));
    }
}
