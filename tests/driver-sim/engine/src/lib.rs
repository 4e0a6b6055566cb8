//! Simulated devices behind the stand-ins for driver libraries: memory, streams, events, pools, contexts, captures.
//!
//! A stand-in exports the functions of a vendor and does each of them through [`call`]. Work that is submitted to a
//! stream is done as late as it may be, in any order that the rules of streams allow, and whatever no driver promises to
//! put up with is recorded, printed and makes the process fail at its end. See the README beside this crate.

mod allocate;
mod capture;
mod context;
mod control;
mod copies;
mod counters;
mod entries;
mod event;
mod failure;
mod faults;
mod graph;
#[path = "../../../support/hold.rs"]
mod hold;
mod kernels;
mod launch;
mod memory;
mod pages;
mod pool;
mod random;
mod report;
mod run;
mod schedule;
mod settings;
mod shared;
mod sim;
mod stream;
mod submit;
mod user_object;

pub use allocate::Place;
pub use capture::{CaptureMode, exchange_capture_mode};
pub use control::{control, query};
pub use copies::Return;
pub use failure::Failure;
pub use kernels::Grid;
pub use pool::PoolFigure;
pub use sim::{Sim, call};
pub use submit::PRIORITIES;

/// What each simulated device is called. Programs that must not take a stand-in for a device look for this.
pub const DEVICE_NAME: &str = "transship driver-sim";
