//! The conformance suite: every backend in this program against every case, listed at run time.
//!
//! A case of a backend whose device is missing is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=cuda` (a list
//! with commas) makes such cases run, and fail: then a case is ignored only for what the backend declares not to have
//! (`backends.rs`), or because there is one device only; `cuda:1` in the list demands the second one as well. A stand-in
//! for a driver is no device: `cuda-sim` demands the stand-in, `cuda` that there is none.
//! `TRANSSHIP_SEED` sets the seed of the random data.
//!
//! Cases run in parallel, in one process; those whose statement is about the whole process run in a child of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod backends;
mod bed;
mod cases;
mod data;
#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../support/required.rs"]
mod required;
mod suite;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    suite::run(&Arguments::from_args())
}
