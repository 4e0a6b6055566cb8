//! Threads that share out pieces of work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `each` with every item of `work`, on the calling thread and up to `threads - 1` others (no more than there are
/// items) of this name, each of which has a state of its own. After an error nothing is begun any more, and the first one comes back. Fewer threads do where the system has no more.
pub(crate) fn share_out<W: Send, S, E: Send>(
    threads: usize,
    name: &str,
    work: impl ExactSizeIterator<Item = W> + Send,
    state: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, W) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = threads.min(work.len());
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
    thread::scope(|scope| {
        for _ in 1..threads {
            let named = thread::Builder::new().name(name.to_owned());
            if named.spawn_scoped(scope, member).is_err() {
                break;
            }
        }
        member();
    });
    first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
