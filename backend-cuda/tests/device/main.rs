//! What only a CUDA device can show: that nothing waits for a stalled stream, what a copy costs in calls of the driver,
//! kernels over tensors, contexts, captured graphs, memory.
//!
//! Without a device every case is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=cuda` makes them run, and fail;
//! `cuda:1` in the list demands a second device as well, `cuda-sim` the stand-in for libcuda. The cases that every driver of
//! this kind shares are in `tests/device` of the workspace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

#[path = "../../../tests/device/bed.rs"]
mod bed;
mod cases;
#[path = "../../../examples/common/detection.rs"]
mod detection;
mod driver;
mod kernel;
#[path = "../../../tests/support/machine.rs"]
mod machine;
#[path = "../../../tests/support/required.rs"]
mod required;
#[path = "../../../tests/device/stall.rs"]
mod stall;
#[path = "../../../tests/device/suite.rs"]
mod suite;

use std::process::ExitCode;

use transship_cuda::CudaDriver;

fn main() -> ExitCode {
    suite::run(&CudaDriver, cases::all())
}
