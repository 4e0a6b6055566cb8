//! The fault sweep: for every n, the n-th call of the driver fails, and a small copy comes to an end all the same. And what the
//! driver says of the budgets.
//!
//! It needs the stand-in for libcuda: `cargo run -p driver-sim -- cargo test --features cuda --test faults`. Without it
//! every case is shown as ignored, or fails where `TRANSSHIP_REQUIRE` names `cuda-sim`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod budget;
#[path = "../support/required.rs"]
mod required;
mod stand_in;
mod sweep;
mod trip;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use transship::BackgroundWork;

use crate::stand_in::StandIn;
use crate::sweep::{Fault, Sweep};
use crate::trip::Direction;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share the devices, and the count of calls.
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, trials(&arguments));
    let unmet: Vec<_> = required::required().iter().filter_map(|device| device.check_kind().err()).collect();
    for reason in &unmet {
        println!("TRANSSHIP_REQUIRE: {reason}");
    }
    if unmet.is_empty() { conclusion.exit_code() } else { ExitCode::from(101) }
}

fn trials(arguments: &Arguments) -> Vec<Trial> {
    // First: it looks at the most that was ever pinned.
    let mut trials = vec![trial("pinned memory".to_owned(), budget::run, arguments)];
    for direction in Direction::ALL {
        for background in [BackgroundWork::Auto, BackgroundWork::Always] {
            for fault in Fault::ALL {
                let sweep = Sweep { direction, background, fault };
                trials.push(trial(sweep.to_string(), move |stand_in| sweep.run(stand_in), arguments));
            }
        }
    }
    trials
}

fn trial(
    name: String,
    body: impl FnOnce(&StandIn) -> Result<(), String> + Send + 'static,
    arguments: &Arguments,
) -> Trial {
    let reason = reason_to_ignore();
    let insisted = arguments.ignored || arguments.include_ignored;
    let flag = reason.is_some() && insisted;
    let runner = move || match reason.filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => Ok(body(&StandIn::load()?).map(|()| Completion::Completed)?),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

fn reason_to_ignore() -> Option<String> {
    let is_required = || required::required().iter().any(|device| device.id.driver() == "cuda");
    match StandIn::load() {
        Err(reason) if !is_required() => Some(reason),
        _ => None,
    }
}
