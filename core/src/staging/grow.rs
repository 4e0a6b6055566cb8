//! New blocks within the budget.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::runtime::sync::atomic::AtomicBool;
use crate::staging::block::Block;
use crate::staging::pool::{StagingPool, free};
use crate::staging::size_class::SizeClass;
use crate::staging::waiting_line::Asker;

impl StagingPool {
    /// One more block of `class`, if a copy was short of one. The first blocks of a class are not allocated here.
    pub(crate) fn end_shortage(self: &Arc<Self>, class: SizeClass) -> Result<Option<Block>> {
        let mut state = self.state.lock();
        let short = state.short_of.take_if(|short| *short == class).is_some();
        let grown = short
            && state.may_serve(class, Asker::default())
            && state.accounts.has(class)
            && state.accounts.grow(class);
        drop(state);
        grown.then(|| self.allocate(class)).transpose()
    }

    /// Fails if a block of `class` bytes will never be within the budget.
    pub(crate) fn check_hope(&self, class: usize) -> Result<()> {
        let (budget, free) = {
            let state = self.state.lock();
            (state.accounts.budget(), state.accounts.hope())
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

    /// Allocates one block within the budget, if need be in the place of idle ones.
    pub(crate) fn grow(self: &Arc<Self>, class: SizeClass) -> Result<Option<Block>> {
        let fits = self.state.lock().accounts.grow(class);
        match fits || self.make_room(class) {
            true => self.allocate(class).map(Some),
            false => Ok(None),
        }
    }

    /// Frees idle blocks in whose place there is room for one of `class`, and counts that.
    fn make_room(&self, class: SizeClass) -> bool {
        let Some(victims) = self.state.lock().accounts.make_room(class) else { return false };
        let freed = free(victims);
        let mut state = self.state.lock();
        state.accounts.freed(freed);
        state.accounts.grow(class)
    }

    /// Allocates an idle block, if there is room for it; whether it could be had.
    pub(crate) fn add_spare(self: &Arc<Self>, class: SizeClass) -> bool {
        if !self.state.lock().accounts.grow_spare(class) {
            return false;
        }
        let spare = Spare(Reservation { pool: self, class });
        let Ok(staging) = self.allocate_staging(class) else { return false };
        std::mem::forget(spare);
        self.put(staging, class, |accounts| accounts.came(class));
        true
    }

    /// Allocates a block that is counted already.
    pub(crate) fn allocate(self: &Arc<Self>, class: SizeClass) -> Result<Block> {
        let reserved = Reservation { pool: self, class };
        let staging = match self.allocate_staging(class) {
            // Idle blocks may hold the memory that is missing.
            Err(Error::OutOfMemory { .. }) if self.trim() > 0 => self.allocate_staging(class)?,
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
}

struct Reservation<'a> {
    pool: &'a StagingPool,
    class: SizeClass,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().accounts.cancel(self.class);
    }
}

/// A block that is being allocated and that nobody waits for.
struct Spare<'a>(Reservation<'a>);

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        self.0.pool.state.lock().accounts.came(self.0.class);
    }
}
