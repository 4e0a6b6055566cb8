//! Locks in children of `fork`: one that a thread of the parent's had is held for ever.

use std::process;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// The process that has imported this module.
static IMPORTED_BY: OnceLock<u32> = OnceLock::new();
/// None of these locks is held for as long as that, but by who did not come along.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// From now on children are known as such.
pub fn watch() {
    IMPORTED_BY.get_or_init(process::id);
}

fn is_child() -> bool {
    IMPORTED_BY.get().is_some_and(|parent| *parent != process::id())
}

/// Locks it; `None` in a child, if nobody is there who would let go of it.
pub fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    lock_or(mutex, || {
        (0..TRIES).find_map(|_| {
            thread::sleep(PAUSE);
            mutex.try_lock()
        })
    })
}

/// The same; `None` in a child at once, if another thread has it.
pub fn lock_at_once<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    lock_or(mutex, || None)
}

/// The process is asked for where somebody has the lock alone: that is a call of the system.
fn lock_or<'a, T>(
    mutex: &'a Mutex<T>,
    in_child: impl FnOnce() -> Option<MutexGuard<'a, T>>,
) -> Option<MutexGuard<'a, T>> {
    if let Some(guard) = mutex.try_lock() {
        return Some(guard);
    }
    if is_child() { in_child() } else { Some(mutex.lock()) }
}
