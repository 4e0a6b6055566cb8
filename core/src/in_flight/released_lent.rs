//! Memory that the program has lent and a copy has released. The thread that waits for the copy drops it, and no other while
//! there is a handle.

use crate::runtime::fork;
use crate::runtime::lent_collector::Collected;
use crate::runtime::sync::Mutex;

/// Memory that the program has lent to a copy, which uses it no more. In a child of `fork` its lock may be held for ever, and is
/// never taken.
#[derive(Default)]
pub(crate) struct Retired {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many handles may still take it.
    handles: usize,
    lent: Collected,
}

impl Retired {
    /// One more handle may take it.
    pub(crate) fn join(&self) {
        self.state.lock().handles += 1;
    }

    /// A handle is gone. The last one leaves what there is to the threads for owners.
    pub(crate) fn leave(&self) {
        if fork::is_child() {
            return;
        }
        let mut state = self.state.lock();
        state.handles = state.handles.saturating_sub(1);
        let left = (state.handles == 0).then(|| std::mem::take(&mut state.lent));
        drop(state);
        drop(left);
    }

    /// Keeps `lent` for a handle, if there is one.
    pub(crate) fn keep(&self, lent: Collected) {
        if fork::is_child() {
            return lent.let_go();
        }
        let mut state = self.state.lock();
        if state.handles > 0 {
            return state.lent.append(lent);
        }
        drop(state);
        lent.let_go();
    }

    /// What was kept so far.
    pub(crate) fn take(&self) -> Collected {
        if fork::is_child() {
            return Collected::default();
        }
        std::mem::take(&mut self.state.lock().lent)
    }
}
