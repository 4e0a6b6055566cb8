//! What only a wgpu device can show: the program's own device and queue, order among its submissions and ours, a device
//! that is destroyed, errors and whose handler sees them, buffers of the program, stalls.
//!
//! Without an adapter every case is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=wgpu` makes them run, and fail.
//! Cases run one after the other: several look at counters of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod bed;
mod cases;
mod shader;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use transship_core::DeviceId;
use transship_core::backend::Driver;
use transship_wgpu::WgpuDriver;

use crate::cases::Case;

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet. On a processor the kernel that gathers does not pay, and would never run.
    unsafe { std::env::set_var("TRANSSHIP_WGPU_GATHER", "always") };
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = cases::all().into_iter().map(|case| trial(case, &arguments)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: Case, arguments: &Arguments) -> Trial {
    let reason = reason_to_ignore();
    let insisted = arguments.ignored || arguments.include_ignored;
    let (name, flag) = (case.name, reason.is_some() && insisted);
    let runner = move || match reason.or_else(case.lacks).filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run(&case).map(|()| Completion::Completed),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

fn run(case: &Case) -> Result<(), Failed> {
    let leaks = transship_core::runtime_stats().leaks;
    let body = case.body;
    let attempt =
        || std::thread::spawn(body).join().map_err(|panic| Failed::from(message(&*panic))).flatten();
    (1..case.tries).find(|_| attempt().is_ok()).map_or_else(attempt, |_| Ok(()))?;
    match transship_core::runtime_stats().leaks - leaks {
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

fn reason_to_ignore() -> Option<String> {
    let list = std::env::var("TRANSSHIP_REQUIRE").unwrap_or_default();
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut ids = names.map(|name| name.parse().unwrap_or_else(|error| panic!("TRANSSHIP_REQUIRE: {error}")));
    match ids.any(|id: DeviceId| id.driver() == "wgpu") {
        true => None,
        false => WgpuDriver.is_available().err().map(|error| error.to_string()),
    }
}
