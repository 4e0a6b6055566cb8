//! The end of the process: drivers take themselves down then, and nobody may be inside of one.

use std::ffi::c_int;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use crate::runtime::{fork, reactor, workers};

/// How long the end of the process waits at the most for threads of this crate: a driver may never come back.
const PATIENCE: Duration = Duration::from_secs(2);

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Sees to it that the process ends only when nothing is in flight and no thread of this crate is inside of a driver, or after
/// two seconds. Called
/// by whoever starts such a thread: drivers that are loaded by then clean up behind this.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    fork::watch();
    // Miri has no such function, and an execution of the model is no process.
    if !cfg!(any(miri, shuttle)) {
        ONCE.call_once(|| {
            // SAFETY: the handler is a function of this program, and does not unwind. Where it cannot be registered, the
            // end is as it would be without it.
            let _ = unsafe { atexit(settle) };
        });
    }
}

/// Whether nothing is in flight and no thread of this crate has anything to do.
pub(crate) fn is_idle() -> bool {
    reactor::is_idle() && workers::are_idle()
}

extern "C" fn settle() {
    // The threads are the parent's.
    if fork::is_child() {
        return;
    }
    // What is in flight comes to its end, and what it holds goes, as far as the devices answer.
    wait_until(PATIENCE, is_idle);
    reactor::stop();
    workers::stop();
    wait_until(PATIENCE / 10, || reactor::is_at_rest() && workers::are_at_rest());
}

fn wait_until(patience: Duration, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() && begin.elapsed() < patience {
        thread::sleep(Duration::from_micros(200));
    }
}
