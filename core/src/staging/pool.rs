//! Staging blocks by size class: taken in turn, budgeted, counted.
//!
//! Blocks are taken in turn because a block that the copy engine has just read costs twice as much to write as one
//! that it has not (7.3 against 15.8 us for 155 KB on an H200). Page-locking costs milliseconds, so blocks are only
//! allocated where blocking is allowed, and kept: in a steady state, whatever the mix of sizes, none is (`block_accounts.rs`).

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::backend::{Backend, Direction, Staging};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::{Condvar, Instant, Mutex};
use crate::runtime::topology::Node;
use crate::runtime::{host_memory, near_node, workers};
use crate::staging::block_accounts::{BlockAccounts, PoolUsage};
use crate::staging::size_class::{LARGEST_BLOCK, SMALLEST_BLOCK, SizeClass};

/// Most pinned memory for staging, unless set otherwise, in bytes: 16 of the largest blocks, which fills the link.
const STAGING_BUDGET: usize = 16 * LARGEST_BLOCK;
/// The same where blocks are mapped: they take longer to come back, since the host gets access to each by a call.
const MAPPED_STAGING_BUDGET: usize = 2 * STAGING_BUDGET;
/// More copies at a time than these are many.
const FEW_LEASES: usize = 2;
/// Most pinned memory for results on the host, unless set otherwise: this share of what the process may use. Eight devices have a quarter
/// of it then.
const RESULT_SHARE: usize = 32;
/// The same in bytes, where nobody knows how much the process may use.
const RESULT_BUDGET: usize = 256 << 20;

/// The staging blocks of one device for one purpose.
pub(crate) struct StagingPool {
    pub(crate) backend: ManuallyDrop<Arc<dyn Backend>>,
    /// Where new blocks lie on the host.
    node: Option<&'static Node>,
    users: Users,
    pub(crate) state: Mutex<State>,
    pub(crate) returned: Condvar,
    queues: Mutex<Vec<Weak<SubmissionQueue>>>,
    /// Copies that are done may still have blocks, out of which their results must be copied.
    borrowers: Mutex<Vec<Weak<dyn Borrower>>>,
}

/// A holder of blocks of a pool that are not in flight any more.
pub(crate) trait Borrower: Send + Sync {
    /// Gives them back if they are not needed any more; whether there were some. Never waits for a device.
    fn give_back(&self) -> bool;

    /// Whether it still has some. Waits for a thread that is giving them back.
    fn has_blocks(&self) -> bool;
}

/// What uses the blocks of a pool.
#[derive(Clone, Copy)]
enum Users {
    /// Kernels and copies.
    Kernels,
    /// Copies down; kernels as well, where that is asked for.
    Results,
    /// Copies alone.
    Copies,
}

pub(crate) struct State {
    pub(crate) accounts: BlockAccounts<Box<dyn Staging>>,
    /// The class of a block that a copy needed at once and did not get.
    pub(crate) short_of: Option<SizeClass>,
    /// The waiting line, in order. Only copies within their share are served before it, and not for long.
    pub(crate) line: VecDeque<u64>,
    /// Since when the first in line has been the first.
    pub(crate) first_since: Option<Instant>,
    /// How many copies have a share.
    pub(crate) leases: usize,
    pub(crate) next_in_line: u64,
    /// How often ordinary memory took the place of a block.
    fallbacks: u64,
}

impl StagingPool {
    /// Blocks that copies go through.
    pub(crate) fn for_staging(backend: Arc<dyn Backend>, node: Option<&'static Node>) -> Arc<Self> {
        let budget = if backend.limits().mapped_staging { MAPPED_STAGING_BUDGET } else { STAGING_BUDGET };
        Self::new(backend, node, Users::Kernels, BlockAccounts::new(budget, true))
    }

    /// Blocks that results on the host lie in.
    pub(crate) fn for_results(backend: Arc<dyn Backend>, node: Option<&'static Node>) -> Arc<Self> {
        Self::new(backend, node, Users::Results, BlockAccounts::new(result_budget(), false))
    }

    /// Blocks that the program fills itself: beside those of copies, which none of them holds up.
    pub(crate) fn for_filling(
        backend: Arc<dyn Backend>,
        node: Option<&'static Node>,
        budget: usize,
    ) -> Arc<Self> {
        Self::new(backend, node, Users::Copies, BlockAccounts::new(budget, false))
    }

    fn new(
        backend: Arc<dyn Backend>,
        node: Option<&'static Node>,
        users: Users,
        accounts: BlockAccounts<Box<dyn Staging>>,
    ) -> Arc<Self> {
        let state = State {
            accounts,
            short_of: None,
            line: VecDeque::new(),
            first_since: None,
            leases: 0,
            next_in_line: 0,
            fallbacks: 0,
        };
        Arc::new(Self {
            backend: ManuallyDrop::new(backend),
            node,
            users,
            state: Mutex::new(state),
            returned: Condvar::new(),
            queues: Mutex::new(Vec::new()),
            borrowers: Mutex::default(),
        })
    }

    /// Blocks of this pool may be in flight on `queue`.
    pub(crate) fn serve(&self, queue: &Arc<SubmissionQueue>) {
        let mut queues = self.queues.lock();
        queues.retain(|known| known.strong_count() > 0);
        if !queues.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue))) {
            queues.push(Arc::downgrade(queue));
        }
    }

    /// `borrower` has a block of this pool until it gives it back.
    pub(crate) fn lend_to(&self, borrower: Weak<dyn Borrower>) {
        let mut borrowers = self.borrowers.lock();
        borrowers.retain(|known| known.strong_count() > 0);
        borrowers.push(borrower);
    }

    /// A copy needed a block at once and did not get it. One more is to be allocated, even if one comes back meanwhile: otherwise
    /// there would be too few of them for ever.
    pub(crate) fn note_shortage(&self, bytes: usize, direction: Direction) {
        self.state.lock().short_of = Some(self.class(bytes, direction));
    }

    /// How many copies have a share of it.
    pub(crate) fn leases(&self) -> usize {
        self.state.lock().leases
    }

    /// Whether many copies have a share. Then a thread that has to wait leaves the processors and the driver to the others.
    pub(crate) fn is_shared_by_many(&self) -> bool {
        self.leases() > FEW_LEASES
    }

    pub(crate) fn note_fallback(&self) {
        self.state.lock().fallbacks += 1;
    }

    /// Frees idle blocks; returns how many bytes that were. May block in the driver.
    pub(crate) fn trim(&self) -> usize {
        let idle = self.state.lock().accounts.drain();
        let freed = free(idle);
        // Blocks count until they are freed: the budget limits the memory that is pinned now.
        self.state.lock().accounts.freed(freed);
        freed
    }

    /// Sets the budget, and has idle blocks above it freed by a worker.
    pub(crate) fn set_budget(self: &Arc<Self>, bytes: usize) {
        let surplus = self.state.lock().accounts.set_budget(bytes);
        if !surplus.is_empty() {
            let surplus = surplus.into_iter().map(|(class, staging)| self.surplus(class, staging));
            workers::dispose(surplus.collect::<Vec<_>>());
        }
    }

    pub(crate) fn budget(&self) -> usize {
        self.state.lock().accounts.budget()
    }

    /// How many bytes it could hand out: idle blocks, and new ones within the budget.
    pub(crate) fn unused(&self) -> usize {
        let usage = self.state.lock().accounts.statistics();
        usage.budget.saturating_sub(usage.in_use)
    }

    pub(crate) fn statistics(&self) -> PoolUsage {
        let state = self.state.lock();
        PoolUsage { waiting: state.line.len(), fallbacks: state.fallbacks, ..state.accounts.statistics() }
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.backend.device()
    }

    /// The class that serves `bytes`. Only mapped blocks have a direction. Of others, those of staging serve both, so that a block that
    /// was allocated for one direction is there for the other; elsewhere `Download` says that copies alone use the block
    /// ([`Backend::allocate_staging`]).
    pub(crate) fn class(&self, bytes: usize, direction: Direction) -> SizeClass {
        let direction = match (self.users, self.backend.limits().mapped_staging) {
            (Users::Results, true) | (Users::Copies, false) => Direction::Download,
            (Users::Kernels, false) => Direction::Upload,
            (Users::Results, false) | (_, true) => direction,
        };
        SizeClass::of(bytes, direction)
    }

    /// Blocks whose copies are done come back, if the driver says so. Another device that reads blocks of this one may be
    /// broken, which is no failure of this one. Nor is a stream that is lost: its blocks are leaked, and others go on.
    pub(crate) fn settle_queues(&self) -> Result<()> {
        for queue in self.busy_queues() {
            let polled = queue.poll();
            if queue.is_of(&self.backend) && queue.check().is_ok() {
                polled?;
            }
        }
        Ok(())
    }

    /// What its device says, if it is broken.
    pub(crate) fn failure(&self) -> Option<Error> {
        let queues: SmallVec<[_; 8]> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let mut own = queues.iter().filter(|queue| queue.is_of(&self.backend));
        own.find_map(|queue| queue.stream().reached().err())
    }

    /// Takes the blocks of copies that are done; whether there were some.
    pub(crate) fn settle_borrowers(&self) -> bool {
        let mut borrowers = std::mem::take(&mut *self.borrowers.lock());
        let mut settled = false;
        borrowers.retain(|borrower| {
            let Some(borrower) = borrower.upgrade() else { return false };
            settled |= borrower.give_back();
            borrower.has_blocks()
        });
        self.borrowers.lock().append(&mut borrowers);
        settled
    }

    /// The queues that blocks may come back from.
    pub(crate) fn busy_queues(&self) -> SmallVec<[Arc<SubmissionQueue>; 8]> {
        let mut queues: SmallVec<[_; 8]> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        // Without the lock: dropping the last reference to a queue may call this pool.
        queues.retain(|queue| !queue.is_idle());
        queues
    }

    /// A new block of the device. May block for milliseconds.
    pub(crate) fn allocate_staging(&self, class: SizeClass) -> Result<Box<dyn Staging>> {
        near_node::prefer(self.node, || self.backend.allocate_staging(class.bytes, class.direction))
    }

    pub(crate) fn give_back(self: &Arc<Self>, staging: Box<dyn Staging>, class: SizeClass) {
        self.put(staging, class, |_| ());
    }

    /// A block is idle, once `count` has changed what is counted.
    pub(crate) fn put(
        self: &Arc<Self>,
        staging: Box<dyn Staging>,
        class: SizeClass,
        count: impl FnOnce(&mut BlockAccounts<Box<dyn Staging>>),
    ) {
        let mut state = self.state.lock();
        count(&mut state.accounts);
        let kept = state.accounts.put(class, staging);
        drop(state);
        if let Err(staging) = kept {
            workers::dispose(self.surplus(class, staging));
        }
        self.returned.notify_all();
    }

    fn surplus(self: &Arc<Self>, class: SizeClass, staging: Box<dyn Staging>) -> Surplus {
        Surplus { staging: Some(staging), bytes: class.bytes, pool: self.clone() }
    }
}

fn result_budget() -> usize {
    host_memory::bytes().map_or(RESULT_BUDGET, |bytes| (bytes / RESULT_SHARE).max(SMALLEST_BLOCK))
}

/// Frees blocks; returns how many bytes that were.
pub(crate) fn free(blocks: Vec<(SizeClass, Box<dyn Staging>)>) -> usize {
    blocks.iter().map(|(class, _)| class.bytes).sum()
}

impl Drop for StagingPool {
    fn drop(&mut self) {
        let idle = self.state.get_mut().accounts.drain();
        // SAFETY: this is `drop`, which runs once and does not touch the field again.
        let backend = unsafe { ManuallyDrop::take(&mut self.backend) };
        // The backend must outlive its blocks, and dropping the last reference to it may block.
        workers::dispose((idle, backend));
    }
}

/// A block above a budget that was lowered; it counts until it is freed.
struct Surplus {
    staging: Option<Box<dyn Staging>>,
    bytes: usize,
    pool: Arc<StagingPool>,
}

impl Drop for Surplus {
    fn drop(&mut self) {
        drop(self.staging.take());
        self.pool.state.lock().accounts.freed(self.bytes);
    }
}
