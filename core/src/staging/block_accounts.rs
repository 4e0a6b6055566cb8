//! Which blocks a pool has and whom they serve: arithmetic, no driver.
//!
//! A block of the class that is asked for comes first, then a new one while there is room, then an idle larger one. Only
//! where there is none of these do other blocks make room: smaller ones of the same direction, then, where blocks have
//! directions (mapped ones), those by which the other direction is above its half. So allocations come to an end, whatever
//! sizes are asked for in turn: what goes makes room for something larger, and neither direction takes from the half of the
//! other.

use std::collections::VecDeque;

use std::collections::BTreeMap;

use crate::error::Result;
use crate::staging::size_class::{SMALL_CLASS, SizeClass};

/// The blocks of a pool, idle ones by class.
pub(crate) struct BlockAccounts<T> {
    idle: BTreeMap<SizeClass, VecDeque<T>>,
    /// How many of each class there are, in use or idle.
    blocks: BTreeMap<SizeClass, usize>,
    budget: usize,
    /// Bytes of all blocks, including those that are being freed and those that are leaked.
    held: usize,
    idle_bytes: usize,
    /// Bytes of blocks that are being allocated and will be idle.
    coming: usize,
    /// Bytes that are held for ever: a broken stream never proved to be done with them.
    leaked: usize,
    high_water: usize,
    /// Large classes leave an eighth of the budget to small ones, which would have to wait for them otherwise.
    spares_small: bool,
}

impl<T> BlockAccounts<T> {
    pub(crate) fn new(budget: usize, spares_small: bool) -> Self {
        Self {
            idle: BTreeMap::new(),
            blocks: BTreeMap::new(),
            budget,
            held: 0,
            idle_bytes: 0,
            coming: 0,
            leaked: 0,
            high_water: 0,
            spares_small,
        }
    }

    /// An idle block of `class`; where there is none and no room for one, the smallest that is larger.
    pub(crate) fn take(&mut self, class: SizeClass) -> Option<(SizeClass, T)> {
        let found = self.serving(class)?;
        let block = self.idle.get_mut(&found)?.pop_front()?;
        self.idle_bytes -= found.bytes;
        Some((found, block))
    }

    pub(crate) fn could_take(&self, class: SizeClass) -> bool {
        self.serving(class).is_some()
    }

    /// A block in use is idle again. If the pool is above its budget the block comes back as `Err`: the caller frees it, then
    /// calls [`freed`](Self::freed).
    pub(crate) fn put(&mut self, class: SizeClass, block: T) -> Result<(), T> {
        if self.held > self.budget {
            self.withdraw(class);
            return Err(block);
        }
        self.idle.entry(class).or_default().push_back(block);
        self.idle_bytes += class.bytes;
        Ok(())
    }

    /// Counts a block that is about to be allocated, if there is room for it.
    pub(crate) fn grow(&mut self, class: SizeClass) -> bool {
        let fits = self.fits(class);
        if fits {
            self.held += class.bytes;
            *self.blocks.entry(class).or_default() += 1;
            self.high_water = self.high_water.max(self.held);
        }
        fits
    }

    /// The same for a block that nobody waits for.
    pub(crate) fn grow_spare(&mut self, class: SizeClass) -> bool {
        let fits = self.grow(class);
        if fits {
            self.coming += class.bytes;
        }
        fits
    }

    /// It is no spare block any more: allocated, or to be [cancelled](Self::cancel).
    pub(crate) fn came(&mut self, class: SizeClass) {
        self.coming -= class.bytes;
    }

    /// Whether there is room for a new one.
    pub(crate) fn has_room(&self, class: SizeClass) -> bool {
        self.fits(class)
    }

    /// A block that was counted could not be allocated.
    pub(crate) fn cancel(&mut self, class: SizeClass) {
        self.withdraw(class);
        self.held -= class.bytes;
    }

    /// Takes out idle blocks in whose place there is room for one of `class`; `None` if they are not enough. They count
    /// until they are [freed](Self::freed).
    pub(crate) fn make_room(&mut self, class: SizeClass) -> Option<Vec<(SizeClass, T)>> {
        let (held, mut victims) = (self.held, Vec::new());
        while !self.fits(class) {
            let Some((victim, block)) = self.victim_for(class).and_then(|victim| self.remove(victim)) else {
                self.held = held;
                victims.into_iter().rev().for_each(|(class, block)| self.restore(class, block));
                return None;
            };
            // Counted out for this search alone.
            self.held -= victim.bytes;
            victims.push((victim, block));
        }
        self.held = held;
        Some(victims)
    }

    /// Blocks that were taken out are gone.
    pub(crate) fn freed(&mut self, bytes: usize) {
        self.held -= bytes;
    }

    /// A block in use never comes back.
    pub(crate) fn give_up(&mut self, class: SizeClass) {
        self.withdraw(class);
        self.leaked += class.bytes;
    }

    /// Takes out every idle block.
    pub(crate) fn drain(&mut self) -> Vec<(SizeClass, T)> {
        let mut all = Vec::new();
        while let Some(block) = self.remove_largest() {
            all.push(block);
        }
        all
    }

    /// Sets the budget; takes out idle blocks that are above it.
    pub(crate) fn set_budget(&mut self, bytes: usize) -> Vec<(SizeClass, T)> {
        self.budget = bytes;
        let (mut excess, mut surplus) = (self.held.saturating_sub(bytes), Vec::new());
        while excess > 0 {
            let Some((class, block)) = self.remove_largest() else { break };
            excess = excess.saturating_sub(class.bytes);
            surplus.push((class, block));
        }
        surplus
    }

    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    /// The budget without what is leaked.
    pub(crate) fn hope(&self) -> usize {
        self.budget.saturating_sub(self.leaked)
    }

    /// Its part of the statistics.
    pub(crate) fn statistics(&self) -> PoolUsage {
        PoolUsage {
            budget: self.budget,
            in_use: self.held - self.idle_bytes - self.coming,
            idle: self.idle_bytes + self.coming,
            high_water: self.high_water,
            ..PoolUsage::default()
        }
    }

    /// Whether there are blocks of `class`, in use or idle.
    pub(crate) fn has(&self, class: SizeClass) -> bool {
        self.blocks.get(&class).is_some_and(|count| *count > 0)
    }

    fn serving(&self, class: SizeClass) -> Option<SizeClass> {
        if self.has_idle(class) {
            return Some(class);
        }
        let larger = class..=SizeClass { bytes: usize::MAX, ..class };
        let mut larger = self.idle.range(larger).filter(|(_, blocks)| !blocks.is_empty());
        larger.next().map(|(larger, _)| *larger).filter(|_| !self.fits(class))
    }

    fn has_idle(&self, class: SizeClass) -> bool {
        self.idle.get(&class).is_some_and(|blocks| !blocks.is_empty())
    }

    fn fits(&self, class: SizeClass) -> bool {
        let within =
            |limit: usize, held: usize| held.checked_add(class.bytes).is_some_and(|sum| sum <= limit);
        let large = |known: &SizeClass| known.bytes > SMALL_CLASS;
        let spared = !self.spares_small || !large(&class) || {
            let held = self.sum(large);
            held == 0 || within(self.budget - self.budget / 8, held)
        };
        spared && within(self.budget, self.held)
    }

    /// The class of the idle block that is freed first where one of `class` is needed.
    fn victim_for(&self, class: SizeClass) -> Option<SizeClass> {
        let half = self.budget / 2;
        let own = |known: &SizeClass| known.direction == class.direction;
        let entitled = self.sum(own).saturating_add(class.bytes) <= half;
        let others = self.sum(|known| !own(known));
        let serves = |(known, count): (&SizeClass, &usize)| own(known) && *known >= class && *count > 0;
        let last_resort = !self.blocks.iter().any(serves);
        let idle =
            || self.idle.iter().filter(|(_, blocks)| !blocks.is_empty()).map(|(known, _)| *known).rev();
        let smaller = idle().find(|known| own(known) && *known < class);
        let above_half = |known: &SizeClass| entitled && others - known.bytes >= half;
        smaller.or_else(|| idle().find(|known| !own(known) && (above_half(known) || last_resort)))
    }

    fn remove_largest(&mut self) -> Option<(SizeClass, T)> {
        let idle = self.idle.iter().filter(|(_, blocks)| !blocks.is_empty());
        let largest = idle.map(|(class, _)| *class).max_by_key(|class| class.bytes)?;
        self.remove(largest)
    }

    fn remove(&mut self, class: SizeClass) -> Option<(SizeClass, T)> {
        let block = self.idle.get_mut(&class)?.pop_front()?;
        self.idle_bytes -= class.bytes;
        self.withdraw(class);
        Some((class, block))
    }

    fn restore(&mut self, class: SizeClass, block: T) {
        self.idle.entry(class).or_default().push_front(block);
        self.idle_bytes += class.bytes;
        *self.blocks.entry(class).or_default() += 1;
    }

    fn withdraw(&mut self, class: SizeClass) {
        if let Some(count) = self.blocks.get_mut(&class) {
            *count -= 1;
        }
    }

    fn sum(&self, of: impl Fn(&SizeClass) -> bool) -> usize {
        self.blocks.iter().filter(|(class, _)| of(class)).map(|(class, count)| class.bytes * count).sum()
    }
}

/// What a pool holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// The most it may hold.
    pub budget: usize,
    /// In use by copies or results.
    pub in_use: usize,
    /// Kept for the next use.
    pub idle: usize,
    /// The most it ever held.
    pub high_water: usize,
    /// How many copies wait for a block (a count, not bytes).
    pub waiting: usize,
    /// How often ordinary memory took the place of a block, because it would have been above the budget or could not be
    /// page-locked.
    pub fallbacks: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::backend::Direction;

    const MIB: usize = 1 << 20;

    fn up(bytes: usize) -> SizeClass {
        SizeClass::of(bytes, Direction::Upload)
    }

    fn down(bytes: usize) -> SizeClass {
        SizeClass::of(bytes, Direction::Download)
    }

    /// A block for `class`, as the pool goes about it; whether it was allocated.
    fn obtain(accounts: &mut BlockAccounts<()>, class: SizeClass) -> Option<(SizeClass, bool)> {
        if let Some((found, ())) = accounts.take(class) {
            return Some((found, false));
        }
        if !accounts.grow(class) {
            let bytes = accounts.make_room(class)?.iter().map(|(class, ())| class.bytes).sum();
            accounts.freed(bytes);
            assert!(accounts.grow(class), "what was made room for fits");
        }
        Some((class, true))
    }

    /// So many blocks of `class` in use at once, or as many as there are; how many were allocated.
    fn use_at_once(accounts: &mut BlockAccounts<()>, class: SizeClass, count: usize) -> usize {
        let taken: Vec<_> = (0..count).map_while(|_| obtain(accounts, class)).collect();
        assert!(!taken.is_empty(), "one can always be had");
        taken.iter().for_each(|(class, _)| accounts.put(*class, ()).unwrap());
        taken.iter().filter(|(_, allocated)| *allocated).count()
    }

    #[test]
    fn a_larger_block_serves_where_there_is_no_room_for_a_new_one() {
        let mut accounts = BlockAccounts::new(8 * MIB, false);
        assert_eq!(use_at_once(&mut accounts, up(4 * MIB), 2), 2);
        assert_eq!(obtain(&mut accounts, up(1)).unwrap(), (up(4 * MIB), false));
        assert!(accounts.take(down(1)).is_none(), "a block has a direction");
    }

    #[test]
    fn a_new_block_comes_first_while_there_is_room() {
        let mut accounts = BlockAccounts::new(8 * MIB, false);
        assert_eq!(use_at_once(&mut accounts, up(4 * MIB), 1), 1);
        assert_eq!(obtain(&mut accounts, up(1)).unwrap(), (up(1), true));
    }

    #[test]
    fn no_block_goes_where_that_would_not_be_enough() {
        let mut accounts = BlockAccounts::new(4 * MIB, false);
        assert_eq!(use_at_once(&mut accounts, up(MIB), 4), 4);
        let in_use = accounts.take(up(MIB)).unwrap();
        assert_eq!(obtain(&mut accounts, up(4 * MIB)), None);
        assert_eq!(accounts.statistics().idle, 3 * MIB);
        accounts.put(in_use.0, ()).unwrap();
        assert_eq!(obtain(&mut accounts, up(4 * MIB)).unwrap(), (up(4 * MIB), true));
    }

    #[test]
    fn a_block_that_is_being_allocated_for_nobody_is_not_in_use() {
        let mut accounts = BlockAccounts::new(2 * MIB, false);
        let class = up(MIB);
        let usage = |accounts: &BlockAccounts<()>| {
            let PoolUsage { in_use, idle, .. } = accounts.statistics();
            (in_use, idle)
        };
        assert!(accounts.grow(class) && accounts.grow_spare(class) && !accounts.grow_spare(class));
        assert_eq!(usage(&accounts), (MIB, MIB));
        accounts.came(class);
        accounts.put(class, ()).unwrap();
        assert_eq!(usage(&accounts), (MIB, MIB));
    }

    #[test]
    fn large_blocks_leave_room_for_small_ones() {
        let mut accounts = BlockAccounts::new(64 * MIB, true);
        assert_eq!(use_at_once(&mut accounts, up(4 * MIB), 100), 14);
        assert_eq!(use_at_once(&mut accounts, up(256 << 10), 32), 32);
    }

    #[test]
    fn what_is_lost_keeps_nobody_waiting() {
        let mut accounts = BlockAccounts::new(8 * MIB, true);
        let (lost, _) = obtain(&mut accounts, up(2 * MIB)).unwrap();
        accounts.give_up(lost);
        assert_eq!(use_at_once(&mut accounts, down(2 * MIB), 3), 3);
        assert_eq!(accounts.hope(), 6 * MIB);
        assert!(obtain(&mut accounts, up(4 * MIB)).is_some());
    }

    /// catches: 70-idle-blocks-freed-for-smaller-ones
    #[test]
    fn whatever_is_asked_for_in_turn_allocations_come_to_an_end() {
        let mut random = 7_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            let mut accounts = BlockAccounts::new([1, 3, 8, 64][below(4)] * MIB, below(2) == 0);
            // A larger one in each direction can be more than there is room for.
            let largest = accounts.budget() / 4;
            let mix: Vec<_> = (0..1 + below(8))
                .map(|_| {
                    let class = SizeClass::of(
                        (64 << 10) << below(7),
                        [Direction::Upload, Direction::Download][below(2)],
                    );
                    (SizeClass { bytes: class.bytes.min(1 << largest.ilog2()), ..class }, 1 + below(80))
                })
                .collect();
            let round = |accounts: &mut BlockAccounts<()>| -> usize {
                mix.iter().map(|(class, count)| use_at_once(accounts, *class, *count)).sum()
            };
            let calm = (0..100).find(|_| round(&mut accounts) == 0);
            assert!(calm.is_some() && round(&mut accounts) == 0, "{} MiB: {mix:?}", accounts.budget() / MIB);
            assert!(accounts.statistics().high_water <= accounts.budget());
        }
    }
}
