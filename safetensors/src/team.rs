//! Threads that share out pieces of work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use transship_core::trace::Parent;

use crate::trace::span;

/// Threads of one call.
pub(crate) struct Team {
    /// How many there are at most, with the calling one.
    pub(crate) threads: usize,
    pub(crate) name: &'static str,
    /// What they do belongs to it.
    pub(crate) parent: Parent,
}

/// Calls `each` with every item of `work`, on the calling thread and on others of the team, no more than there are
/// items, each of which has a state of its own. After an error nothing is begun any more, and the first one comes back. Fewer threads do where the system has no more.
pub(crate) fn share_out<W: Send, S, E: Send>(
    team: &Team,
    work: impl ExactSizeIterator<Item = W> + Send,
    state: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, W) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = team.threads.min(work.len());
    let (work, first_error, stop) = (Mutex::new(work), Mutex::new(None), AtomicBool::new(false));
    let next = || {
        let stopped = stop.load(Ordering::Relaxed);
        if stopped { None } else { work.lock().unwrap_or_else(PoisonError::into_inner).next() }
    };
    let member = || {
        let mut state = state();
        while let Some(item) = next() {
            if let Err(error) = each(&mut state, item) {
                stop.store(true, Ordering::Relaxed);
                first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    let other = || {
        let _span = span!(in &team.parent, "carry");
        member();
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let named = thread::Builder::new().name(team.name.to_owned());
            if named.spawn_scoped(scope, other).is_err() {
                break;
            }
        }
        member();
    });
    first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
