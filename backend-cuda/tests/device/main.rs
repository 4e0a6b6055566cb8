//! What only a CUDA device can show: that nothing waits for a stalled stream, what a copy costs in calls of the driver,
//! kernels over tensors, contexts, captured graphs, memory.
//!
//! Without a device every case is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=cuda` makes them run, and fail;
//! `cuda:1` in the list demands a second device as well. Cases run one after the other: several look at counters of the
//! whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod bed;
mod cases;
#[path = "../../../examples/common/detection.rs"]
mod detection;
mod driver;
mod kernel;
mod stall;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use transship_core::DeviceId;
use transship_core::backend::Driver;
use transship_cuda::CudaDriver;

use crate::cases::Case;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = cases::all().into_iter().map(|case| trial(case, &arguments)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: Case, arguments: &Arguments) -> Trial {
    let reason = reason_to_ignore(case.devices);
    let insisted = arguments.ignored || arguments.include_ignored;
    let (name, flag) = (case.name, reason.is_some() && insisted);
    let runner = move || match reason.filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run(&case).map(|()| Completion::Completed),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

/// Runs the case on a thread of its own, which has no current context yet.
fn run(case: &Case) -> Result<(), Failed> {
    let leaks = transship_core::statistics().leaks;
    let body = case.body;
    let outcome = std::thread::spawn(body).join();
    outcome.map_err(|panic| message(&*panic))??;
    match transship_core::statistics().leaks - leaks {
        0 => Ok(()),
        given_up if case.may_leak => {
            println!("{}: memory in flight was given up {given_up} times", case.name);
            Ok(())
        }
        given_up => Err(format!("memory in flight was given up {given_up} times").into()),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Why a case that needs so many devices does not run here, if it does not.
fn reason_to_ignore(devices: usize) -> Option<String> {
    let required = required();
    if required.is_some_and(|ordinal| ordinal + 1 >= devices) {
        return None;
    }
    match (CudaDriver.is_available(), CudaDriver.device_count()) {
        (Err(error), _) if required.is_none() => Some(error.to_string()),
        (Ok(()), 0) if required.is_none() => Some("there is no CUDA device here".to_owned()),
        (_, count) if count < devices && devices > 1 => Some("needs two devices".to_owned()),
        _ => None,
    }
}

/// The highest CUDA device that `TRANSSHIP_REQUIRE` names.
fn required() -> Option<usize> {
    let list = std::env::var("TRANSSHIP_REQUIRE").unwrap_or_default();
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let ids = names.map(|name| name.parse().unwrap_or_else(|error| panic!("TRANSSHIP_REQUIRE: {error}")));
    ids.filter(|id: &DeviceId| id.driver() == "cuda").map(|id| id.ordinal()).max()
}
