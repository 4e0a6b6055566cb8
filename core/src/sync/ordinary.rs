//! The ordinary ones.

pub(crate) use std::sync::{OnceLock, atomic};
pub(crate) use std::time::Instant;
pub(crate) use std::{hint, thread, thread_local};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, ReentrantMutex};

/// Statics of the program.
macro_rules! statics {
    ($(static $name:ident: $type:ty = $init:expr;)+) => {
        $(static $name: $type = $init;)+
    };
}
pub(crate) use statics;
