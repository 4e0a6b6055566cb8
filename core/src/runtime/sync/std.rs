//! Ordinary locks, atomics, threads and the ordinary clock.

pub(crate) use std::sync::{OnceLock, atomic};
pub(crate) use std::time::Instant;
pub(crate) use std::{hint, thread, thread_local};

#[cfg(not(debug_assertions))]
#[expect(clippy::disallowed_types, reason = "the only place")]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(debug_assertions)]
pub(crate) use super::counting_mutex::{Condvar, Mutex, MutexGuard, locks_held};

/// Only debug builds count.
#[cfg(not(debug_assertions))]
pub(crate) fn locks_held() -> usize {
    0
}

/// Statics of the program.
macro_rules! statics {
    ($(static $name:ident: $type:ty = $init:expr;)+) => {
        $(static $name: $type = $init;)+
    };
}
pub(crate) use statics;
