//! The threads that carry a group of copies out together.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::copy::group::{Completions, Group, caught, conclude};
use crate::copy::transfer::{Filled, Supply};
use crate::copy::unit::Unit;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::{Error, Result};

/// The units of copies, shared by the threads that carry them out.
///
/// Blocks are filled by all, and submitted by one at a time, who takes all that are full by then: eight threads that
/// submit a block each wait for each other's locks (64 blocks of 256 KiB: 106 us each instead of 4, on an H200 machine).
pub(super) struct Crew {
    units: SmallVec<[Unit; 1]>,
    next: AtomicUsize,
    /// Units that are not carried, and blocks that are filled and not submitted.
    left: AtomicUsize,
    filled: Mutex<SmallVec<[Filled; 1]>>,
    submitting: Mutex<()>,
    stopped: AtomicBool,
    error: Mutex<Option<Error>>,
    completions: Completions,
    /// Let go of before its copies count as submitted: it owns the sources.
    group: Mutex<Option<Arc<Group>>>,
}

impl Crew {
    /// The crew for `units`, of which there are some.
    pub(super) fn new(group: Group, units: SmallVec<[Unit; 1]>) -> Self {
        Self {
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(units.len()),
            units,
            filled: Mutex::default(),
            submitting: Mutex::new(()),
            stopped: AtomicBool::new(false),
            error: Mutex::new(None),
            completions: group.completions(),
            group: Mutex::new(Some(Arc::new(group))),
        }
    }

    /// Carries units as long as there are some. Whoever ends the last one concludes the copies.
    pub(super) fn work(&self) {
        let mut unit = self.take();
        if unit.is_none() {
            return;
        }
        let mut group = self.group.lock().clone();
        while let Some(current) = unit {
            let submitted = group.as_ref().map_or(0, |group| self.carry(group, current));
            unit = self.take();
            if unit.is_none() {
                group = None;
            }
            let ended = submitted + 1;
            if self.left.fetch_sub(ended, Ordering::AcqRel) == ended {
                self.conclude();
            }
        }
    }

    fn take(&self) -> Option<&Unit> {
        self.units.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Carries a unit; returns how many blocks it has submitted on the way, of whichever units.
    fn carry(&self, group: &Group, unit: &Unit) -> usize {
        let mut submitted = 0;
        let outlet = &mut |filled| {
            self.left.fetch_add(1, Ordering::Relaxed);
            self.filled.lock().push(filled);
            submitted += self.submit_filled(group);
            Ok(())
        };
        self.attempt(group, || group.carry(unit, Supply::Now, outlet));
        submitted
    }

    /// Submits what is filled, unless another thread is at it: that one looks again before it leaves.
    fn submit_filled(&self, group: &Group) -> usize {
        let mut submitted = 0;
        while !self.filled.lock().is_empty() {
            let Some(_submitting) = self.submitting.try_lock() else { break };
            let filled = mem::take(&mut *self.filled.lock());
            submitted += filled.len();
            self.attempt(group, || group.copy_up(filled));
        }
        submitted
    }

    fn attempt(&self, group: &Group, step: impl FnOnce() -> Result<()>) {
        if self.stopped.load(Ordering::Relaxed) || !group.is_wanted() {
            return;
        }
        if let Err(error) = caught(step) {
            self.stopped.store(true, Ordering::Relaxed);
            self.error.lock().get_or_insert(error);
        }
    }

    fn conclude(&self) {
        let group = self.group.lock().take();
        if let Some(group) = &group {
            self.attempt(group, || group.each(|job| job.close()));
        }
        drop(group);
        conclude(&self.completions, self.error.lock().take());
    }
}
