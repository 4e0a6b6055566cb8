//! Keeps copies of the next items of a source in flight while the program works on the current one.

pub(crate) mod ahead;
pub(crate) mod error;
pub(crate) mod in_turn;
pub(crate) mod iterator;
pub(crate) mod lent;
pub(crate) mod options;
pub(crate) mod polled;
pub(crate) mod pulled;
pub(crate) mod reuse;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod to_all;
pub(crate) mod way;
