//! Where locks, atomics, threads and the clock come from: the one place that names them.
//!
//! Ordinarily they are re-exported and nothing more. With `--cfg shuttle` and the feature of that name they are those of a
//! model checker (`model/`), which runs threads in whatever order it likes. Counters that nobody decides by stay with
//! `std`: each access would be one more point at which threads may be switched, and orders that do not matter would hide those
//! that do.

#[cfg(all(debug_assertions, not(shuttle)))]
mod counting_mutex;
#[cfg(shuttle)]
mod model;
#[cfg(not(shuttle))]
mod std;

#[cfg(shuttle)]
pub use model::*;
#[cfg(not(shuttle))]
pub(crate) use std::*;
