//! How much memory of a device tensors may have, and how much they have.
//!
//! Bytes are reserved before memory is allocated, and given back when it is free again: at once, or when the streams that it was freed
//! behind have come by. What is leaked stays counted. Copies that find no room stand in line, and get it from whoever gives enough back. Where the
//! first in line needs more than there is, no copy behind it takes that, unless the first stands aside. What never waits does.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Buffer, Ticket};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::in_flight::leaving_memory::{Fate, LeavingMemory};
use crate::in_flight::line_for_room::{Line, Standing};
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicUsize, Ordering};
use crate::runtime::{reactor, workers};

/// The budget where none was set.
const NONE: usize = usize::MAX;

/// The memory that tensors have on one device.
pub(crate) struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// What was freed behind streams that have not come by.
    leaving: Mutex<LeavingMemory>,
    line: Line,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) budget: usize,
    pub(crate) used: usize,
    /// What of `used` is freed already, behind streams that have not come by.
    pub(crate) leaving: usize,
}

impl Exceeded {
    /// Whether `bytes` bytes more fit where so many are used.
    pub(crate) fn fits(&self, bytes: usize, used: usize) -> bool {
        used.checked_add(bytes).is_some_and(|sum| sum <= self.budget)
    }

    pub(crate) fn error(self, device: DeviceId, requested: usize) -> Error {
        let Self { budget, used, leaving } = self;
        Error::OverBudget { device, requested, used, leaving, budget }
    }
}

/// A place in the line of those who wait for room; given up when this is dropped.
pub(crate) struct InLine {
    budget: Arc<MemoryBudget>,
    device: DeviceId,
    bytes: usize,
    turn: u64,
}

/// Bytes that count as used until this is dropped. Whoever leaks the memory forgets this.
pub(crate) struct Reservation {
    /// `None` for no bytes.
    budget: Option<Arc<MemoryBudget>>,
    bytes: usize,
}

/// Memory with what it counts for.
pub(crate) struct Allocated {
    pub(crate) buffer: Box<dyn Buffer>,
    /// `None` for what no budget counts. Given back behind the buffer.
    reserved: Option<Reservation>,
}

impl MemoryBudget {
    pub(crate) fn unlimited() -> Arc<Self> {
        let (limit, used) = (AtomicUsize::new(NONE), AtomicUsize::new(0));
        Arc::new(Self { limit, used, leaving: Mutex::default(), line: Line::default() })
    }

    /// What is used already stays.
    pub(crate) fn set(&self, bytes: usize) {
        // As `used`, before those who wait are looked at: who comes meanwhile sees the one or is seen (`line_for_room.rs`).
        self.limit.store(bytes, Ordering::SeqCst);
        self.serve_line();
    }

    /// `None` if there is no limit.
    pub(crate) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != NONE)
    }

    pub(crate) fn used(&self) -> usize {
        self.settle();
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` bytes as used, if they are within the budget: before they are allocated, so that no two threads find the same room.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, Exceeded> {
        while !self.take(bytes) {
            self.settle();
            let exceeded = self.exceeded();
            if !exceeded.fits(bytes, exceeded.used) {
                return Err(exceeded);
            }
        }
        Ok(Reservation { budget: Some(self.clone()), bytes })
    }

    /// Whether somebody stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.line.is_waited_in()
    }

    /// Whether somebody stands in line for whom there may be room when what is in flight has come to its end.
    pub(crate) fn is_waited_for_in_line(&self) -> bool {
        self.line.has_who_stands_in_it()
    }

    /// Whether somebody waits for room that the program makes.
    pub(crate) fn is_waited_for_by_deadline(&self) -> bool {
        self.line.has_who_waits_for_the_program()
    }

    /// A place behind those who wait for room of `device` already. It is served at once if there is none of them, and room. Whoever stands
    /// there `until_deadline` may [step aside](InLine::step_aside). The copy of this `name`, if it is one, is [roused](reactor::rouse) when
    /// it is served, or the first.
    pub(crate) fn stand_in_line(
        self: &Arc<Self>,
        device: DeviceId,
        bytes: usize,
        until_deadline: bool,
        name: Option<usize>,
    ) -> InLine {
        let turn = self.line.enter(bytes, until_deadline, name);
        let mut told = self.line.serve(|bytes| self.take(bytes));
        // It looks itself.
        told.retain(|told| Some(*told) != name);
        reactor::rouse(told.into_iter());
        InLine { budget: self.clone(), device, bytes, turn }
    }

    /// How many pieces of memory were freed behind streams so far.
    pub(crate) fn left(&self) -> u64 {
        self.leaving.lock().entered()
    }

    /// Whether the first `left` pieces of memory that were freed behind streams are free, or lost, as far as [`settle`](Self::settle) has
    /// found out.
    pub(crate) fn are_free(&self, left: u64) -> bool {
        self.leaving.lock().are_over(left)
    }

    fn take(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit || bytes == 0);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, within).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            self.serve_line();
        }
    }

    /// Who is served goes on by the reactor, or by himself. No thread that gives memory back does it: that may be under any lock of ours.
    fn serve_line(&self) {
        // Without a reactor thread whoever waits asks.
        reactor::rouse(self.line.serve(|bytes| self.take(bytes)).into_iter());
    }

    pub(crate) fn exceeded(&self) -> Exceeded {
        // Bytes go from both at once, under this lock.
        let leaving = self.leaving.lock();
        Exceeded {
            budget: self.limit.load(Ordering::Relaxed),
            used: self.used.load(Ordering::Relaxed),
            leaving: leaving.bytes(),
        }
    }

    /// Gives back what streams have come by. `true` if nothing is left to ask about.
    pub(crate) fn settle(&self) -> bool {
        let mut leaving = self.leaving.lock();
        let (freed, over) = leaving.take_over();
        self.give_back(freed);
        let is_empty = leaving.is_empty();
        drop(leaving);
        if !over.is_empty() {
            // With the last ticket a stream may go, and its owner.
            workers::dispose(over);
        }
        is_empty
    }

    /// Gives `bytes` bytes back when every ticket of `behind` is reached, and the memory is dropped whose `fate` this is.
    fn give_back_behind(self: &Arc<Self>, bytes: usize, behind: SmallVec<[Ticket; 1]>, fate: Option<Fate>) {
        let is_first = self.leaving.lock().add(bytes, behind, fate);
        if is_first {
            // Without a reactor thread whoever reserves asks.
            let _ = reactor::watch(Arc::clone(self));
        }
    }
}

/// Whoever reserves asks as well. This keeps no stream longer than it works.
impl Pollable for Arc<MemoryBudget> {
    fn is_finished(&mut self, _: &mut Asked) -> bool {
        self.settle()
    }
}

impl InLine {
    pub(crate) fn standing(&self) -> Standing {
        self.budget.line.standing(self.turn)
    }

    /// Whether there was room, which is reserved for it now.
    pub(crate) fn is_served(&self) -> bool {
        self.standing() == Standing::Served
    }

    /// It waits on for what the program frees, and holds up nobody who does not. `false` if it did already.
    pub(crate) fn step_aside(&self) -> bool {
        let told = self.budget.line.step_aside(self.turn);
        let is_new = told.is_some();
        reactor::rouse(told.unwrap_or_default().into_iter());
        is_new
    }

    /// Why there is no room for it, if it still waits for some.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let is_over = matches!(self.standing(), Standing::Served | Standing::Left);
        (!is_over).then(|| self.budget.exceeded().error(self.device, self.bytes))
    }

    /// Gives the place up; returns the room if there was some, or is.
    pub(crate) fn leave(&self) -> Option<Reservation> {
        let (has_room, told) = self.budget.line.leave(self.turn, |bytes| self.budget.take(bytes))?;
        reactor::rouse(told.into_iter());
        if has_room {
            return Some(Reservation { budget: Some(self.budget.clone()), bytes: self.bytes });
        }
        // There may be room for those behind it.
        self.budget.serve_line();
        None
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Reservation {
    pub(crate) fn nothing() -> Self {
        Self { budget: None, bytes: 0 }
    }

    /// Takes `bytes` bytes out of it, or what is left.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: self.budget.clone(), bytes }
    }

    /// The memory was given back to its device behind `behind`.
    fn end_behind(mut self, behind: SmallVec<[Ticket; 1]>) {
        if behind.iter().any(|ticket| ticket.stream.check().is_err()) {
            // What a lost stream may still use is leaked.
            mem::forget(self);
        } else if let Some(budget) = &self.budget
            && !behind.is_empty()
            && budget.limit().is_some()
        {
            budget.give_back_behind(mem::take(&mut self.bytes), behind, None);
        }
    }

    /// The memory will be given back once `behind` is reached, by whoever holds what this returns. `None` where nothing is counted until then.
    fn end_later(&mut self, behind: &SmallVec<[Ticket; 1]>) -> Option<Fate> {
        let budget = self.budget.as_ref().filter(|budget| budget.limit().is_some())?;
        let fate = Fate::default();
        budget.give_back_behind(mem::take(&mut self.bytes), behind.clone(), Some(fate.clone()));
        Some(fate)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.give_back(self.bytes);
        }
    }
}

impl Allocated {
    pub(crate) fn new(buffer: Box<dyn Buffer>, reserved: Reservation) -> Self {
        Self { buffer, reserved: Some(reserved) }
    }

    /// It is dropped once `behind` is reached, by whoever holds what this returns; it counts as leaving from now on.
    pub(crate) fn leave_later(&mut self, behind: &SmallVec<[Ticket; 1]>) -> Option<Fate> {
        self.reserved.as_mut()?.end_later(behind)
    }

    /// The buffer goes by `free`, which gives its memory back behind `behind`.
    pub(crate) fn free_behind(self, behind: SmallVec<[Ticket; 1]>, free: impl FnOnce(Box<dyn Buffer>)) {
        free(self.buffer);
        if let Some(reserved) = self.reserved {
            reserved.end_behind(behind);
        }
    }
}

impl From<Box<dyn Buffer>> for Allocated {
    fn from(buffer: Box<dyn Buffer>) -> Self {
        Self { buffer, reserved: None }
    }
}

impl<B: Buffer> From<Box<B>> for Allocated {
    fn from(buffer: Box<B>) -> Self {
        Self { buffer, reserved: None }
    }
}
