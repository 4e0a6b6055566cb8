//! The share of a pool that a copy of many segments has.
//!
//! The copy uses its blocks again as soon as its own stream has read them, and need not wait in line for each. Copies that run at
//! the same time have equal shares. The waiting line of the pool is for what goes beyond a share.

use std::sync::Arc;
use std::time::Duration;

use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::staging::pool::{StagingPool, State};
use crate::staging::size_class::SMALLEST_BLOCK;

/// How long a thread waits for its own stream at a time, where few other copies run.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1);
/// Blocks are small enough that so many fit into a share: the device reads some while others are filled.
const FEWEST_BLOCKS: usize = 2;

/// While many copies run, larger blocks would be too few for each.
const BLOCK_OF_MANY: usize = 1 << 20;
/// A copy has no use for more blocks: the link is full, and new ones take milliseconds.
pub(crate) const MOST_BLOCKS: usize = 32;

/// What one copy holds of a pool.
pub(crate) struct CopyShare {
    pub(crate) pool: Arc<StagingPool>,
    /// The queue of the stream that reads the blocks.
    pub(crate) queue: Arc<SubmissionQueue>,
    /// Bytes of blocks that it fills or that are in flight.
    pub(crate) held: AtomicUsize,
    /// A thread of the copy asks the stream.
    pub(crate) asking: AtomicBool,
}

impl CopyShare {
    /// For a copy whose blocks are read on `queue`.
    pub(crate) fn new(pool: &Arc<StagingPool>, queue: &Arc<SubmissionQueue>) -> Arc<Self> {
        pool.state.lock().leases += 1;
        Arc::new(Self {
            pool: pool.clone(),
            queue: queue.clone(),
            held: AtomicUsize::new(0),
            asking: AtomicBool::new(false),
        })
    }

    pub(crate) fn pool(&self) -> &Arc<StagingPool> {
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

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for CopyShare {
    fn drop(&mut self) {
        self.pool.state.lock().leases -= 1;
    }
}

impl State {
    /// How many bytes each of the running copies may hold. An eighth of the budget stays for small copies.
    pub(crate) fn share(&self) -> usize {
        let budget = self.accounts.budget();
        (budget - budget / 8) / self.leases.max(1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::backend::Direction;
    use crate::device::device::Device;
    use crate::runtime::sync::Instant;
    use crate::staging::size_class::SizeClass;
    use crate::staging::waiting_line::Asker;
    use crate::staging::waiting_line::{FIRST_PATIENCE, PlaceInLine};

    const MIB: usize = 1 << 20;

    fn pool(budget: usize) -> Arc<StagingPool> {
        let pool = StagingPool::for_staging(Device::host().backend().clone(), None);
        pool.set_budget(budget);
        pool
    }

    fn may_serve(lease: &CopyShare, bytes: usize) -> bool {
        let asker = Asker { lease: Some(lease), waiting: None };
        lease.pool.state.lock().may_serve(SizeClass::of(bytes, Direction::Upload), asker)
    }

    /// Mutants: the share is not looked at; the first in the queue has all the time in the world.
    #[test]
    fn within_its_share_a_copy_need_not_line_up_until_the_first_has_waited_too_long() {
        let (pool, host) = (pool(8 * MIB), Device::host());
        let lease = CopyShare::new(&pool, &host.up().unwrap());
        let other = CopyShare::new(&pool, &host.up().unwrap());
        assert!(may_serve(&lease, 8 * MIB), "nobody waits");
        let first = PlaceInLine::behind_all(&pool);
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
        let mut leases: Vec<_> = (0..2).map(|_| CopyShare::new(&pool, &host.up().unwrap())).collect();
        assert_eq!(leases[0].largest_block(), 8 * MIB);
        leases.extend((0..62).map(|_| CopyShare::new(&pool, &host.up().unwrap())));
        assert_eq!(leases[0].largest_block(), 256 << 10);
        leases.truncate(1);
        assert_eq!((pool.leases(), leases[0].largest_block()), (1, 16 * MIB));
    }
}
