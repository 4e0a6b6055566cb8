//! What only a HIP device can show: that nothing waits for a stalled stream, what a copy costs in calls of the runtime, the
//! caller's device, captured graphs, memory, views.
//!
//! Without a device every case is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=hip` makes them run, and fail;
//! `hip:1` in the list demands a second device as well, `hip-sim` a stand-in below. The cases that every driver of this kind shares are in
//! `tests/device` of the workspace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

#[path = "../../../tests/device/bed.rs"]
mod bed;
mod cases;
#[path = "../../../examples/common/detection.rs"]
mod detection;
mod driver;
#[path = "../../../tests/support/machine.rs"]
mod machine;
#[path = "../../../tests/support/required.rs"]
mod required;
#[path = "../../../tests/device/stall.rs"]
mod stall;
#[path = "../../../tests/device/suite.rs"]
mod suite;

use std::process::ExitCode;

use transship_hip::HipDriver;

fn main() -> ExitCode {
    suite::run(&HipDriver, cases::all())
}
