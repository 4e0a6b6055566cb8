//! Children of `fork`: threads, locks and drivers of the parent did not come along.
//!
//! What would need them is refused, and what would go by way of them is leaked, without a lock: the child has a copy of whatever
//! state the locks were in.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// From now on [`is_child`] knows children of this process. Called before there is anything that they could not use.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(register);
}

/// Whether this process was forked from one that has opened devices, or has had threads of ours.
#[inline]
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Fails in such a process.
#[inline]
pub(crate) fn check() -> Result<()> {
    if is_child() { Err(Error::Forked) } else { Ok(()) }
}

/// Miri has no such function, and an execution of the model is no process. Elsewhere nothing forks.
#[cfg(all(unix, not(any(miri, shuttle))))]
fn register() {
    unsafe extern "C" fn in_child() {
        IS_CHILD.store(true, Ordering::Relaxed);
    }
    // SAFETY: `in_child` is a function of this program that writes one atomic. Where it cannot be registered, children are not
    // recognised.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(not(all(unix, not(any(miri, shuttle)))))]
fn register() {}
