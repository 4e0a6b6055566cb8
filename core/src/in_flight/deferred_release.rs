//! Memory that is given back once streams are done with it.

use std::mem;
use std::mem::ManuallyDrop;

use smallvec::SmallVec;

use crate::backend::{Buffer, Ticket};
use crate::in_flight::leaving_memory::Fate;
use crate::in_flight::memory_budget::Allocated;
use crate::runtime::leaks::count_leak;
use crate::runtime::reactor::{Asked, Pollable};
use crate::runtime::{foreign, lent_collector, reactor, workers};

/// Gives `memory` back once every ticket of `after` is reached, without blocking. What a broken stream may still use is leaked and
/// counted. `lent`: by the program, so that its destructor is the program's code.
pub(crate) fn release(memory: impl Into<Allocated>, after: SmallVec<[Ticket; 1]>, lent: bool) {
    let mut memory = memory.into();
    // One that cannot be asked is not reached: the memory is leaked then (`DeferredRelease`).
    let is_reached = |ticket: &Ticket| matches!(ticket.is_reached(), Ok(true));
    if (!lent && memory.buffer.release_after(&after)) || after.iter().all(is_reached) {
        return memory.free_behind(after, |buffer| drop_unused(buffer, lent));
    }
    let fate = memory.leave_later(&after);
    let unused = Unused { memory: Some(memory), lent, fate };
    // Without a reactor thread nothing watches it: then dropping it leaks the memory.
    let _ = reactor::watch(DeferredRelease { unused: ManuallyDrop::new(unused), after, reached: false });
}

/// Gives memory back that nobody uses any more.
pub(crate) fn drop_unused(memory: Box<dyn Buffer>, lent: bool) {
    match lent {
        true => lent_collector::let_go(memory),
        false => drop(memory),
    }
}

/// Memory that waits for uses of it on streams; leaked if it is dropped before they are known to be done.
struct DeferredRelease {
    unused: ManuallyDrop<Unused>,
    after: SmallVec<[Ticket; 1]>,
    reached: bool,
}

/// Memory that nobody uses any more. Given back when this is dropped.
struct Unused {
    memory: Option<Allocated>,
    /// Its destructor is the program's code.
    lent: bool,
    /// As its budget knows it.
    fate: Option<Fate>,
}

impl Pollable for DeferredRelease {
    /// Whether there is nothing to wait for: every use is done, or a stream is broken and will never tell.
    fn is_finished(&mut self, _: &mut Asked) -> bool {
        let mut broken = false;
        self.after.retain(|ticket| match ticket.is_reached() {
            Ok(reached) => !reached,
            Err(_) => {
                broken = true;
                true
            }
        });
        self.reached = self.after.is_empty();
        self.reached || broken
    }
}

impl Drop for DeferredRelease {
    fn drop(&mut self) {
        // SAFETY: this is `drop`, which runs once and does not touch the field again.
        let unused = unsafe { ManuallyDrop::take(&mut self.unused) };
        let bytes = unused.memory.as_ref().map_or(0, |memory| memory.buffer.bytes());
        let fate = unused.fate.clone();
        if !self.reached {
            mem::forget(unused);
        } else if workers::dispose(unused) {
            // A driver may block in the drop, and all devices wait for the reactor's thread.
            return;
        }
        count_leak(bytes);
        fate.iter().for_each(Fate::lost);
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let free = || memory.free_behind(SmallVec::new(), |buffer| drop_unused(buffer, self.lent));
        match foreign::caught(free) {
            Some(()) => self.fate.iter().for_each(Fate::dropped),
            None => self.fate.iter().for_each(Fate::lost),
        }
    }
}
