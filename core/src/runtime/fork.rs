//! Children of `fork`: threads, locks and drivers of the parent did not come along.
//!
//! What would need them is refused, and what would go by way of them is leaked, without a lock: the child has a copy of whatever
//! state the locks were in.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{Error, Result};

/// There is something that children must not use, whoever has made it.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// How many forks lie between this process and the first one that has asked.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// From now on [`is_child`] knows children of this process. Called before there is anything that they could not use.
pub(crate) fn watch() {
    IS_WATCHED.store(true, Ordering::Relaxed);
    register_once();
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

/// How many forks lie behind a process: what was made at another count is the parent's, and a child must not use it. To compare it is no call of the system.
///
/// Children are known that come by the `fork` of the C library, which is that of Python and of nearly all there is, on Unix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkCount(u32);

impl ForkCount {
    /// That of this process.
    pub fn now() -> Self {
        register_once();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process has it, and is no child of the one that had.
    #[inline]
    pub fn is_now(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

fn register_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(register);
}

/// Miri has no such function, and an execution of the model is no process. Elsewhere nothing forks.
#[cfg(all(unix, not(any(miri, shuttle))))]
fn register() {
    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        if IS_WATCHED.load(Ordering::Relaxed) {
            IS_CHILD.store(true, Ordering::Relaxed);
        }
    }
    // SAFETY: `in_child` is a function of this program that reads and writes atomics alone. Where it cannot be registered, children are not
    // recognised.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(not(all(unix, not(any(miri, shuttle)))))]
fn register() {}
