//! Where locks, conditions and the clock come from: under a model checker they are those of the model.

#[cfg(not(shuttle))]
pub(crate) use std::time::Instant;

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use transship_core::runtime::sync::{Condvar, Instant, Mutex, MutexGuard};
