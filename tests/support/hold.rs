//! Holding a call of a simulated device up, so that a test can do something else in the middle of it.

use std::thread::{self, ThreadId};

/// The call that is to be held up, if any.
#[derive(Debug, Default)]
pub(crate) struct Hold(Option<Next>);

#[derive(Debug)]
struct Next {
    /// Calls of this thread go on.
    but: ThreadId,
    /// So many others go on as well.
    after: usize,
    is_held: bool,
}

impl Hold {
    /// The call behind `after` others of any thread but this one.
    pub(crate) fn behind(after: usize) -> Self {
        Self(Some(Next { but: thread::current().id(), after, is_held: false }))
    }

    /// Whether a call is being held up.
    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|next| next.is_held)
    }

    /// Counts a call that is about to be made; whether it is the one to hold up.
    pub(crate) fn meets(&mut self) -> bool {
        let here = thread::current().id();
        let Some(next) = self.0.as_mut().filter(|next| !next.is_held && next.but != here) else {
            return false;
        };
        next.is_held = next.after == 0;
        next.after = next.after.saturating_sub(1);
        next.is_held
    }
}
