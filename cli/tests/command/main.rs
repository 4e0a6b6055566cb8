//! The command as it is run: on the host alone, and on stand-ins for drivers, sound and with faults.
//!
//! Without a stand-in its cases are shown as ignored, or fail where `TRANSSHIP_REQUIRE` names `cuda-sim` or `hip-sim`:
//! `cargo run -p driver-sim -- cargo test -p transship-cli --features cuda,hip`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod on_host;
mod on_stand_in;
mod run;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A stand-in calls its devices so.
const STAND_IN: &str = "driver-sim";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = on_host::trials();
    for driver in ["cuda", "hip"] {
        for (name, case) in on_stand_in::CASES {
            let reason = reason_to_ignore(driver);
            let runner = move || match reason {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => case(driver).map(|()| Completion::Completed).map_err(Failed::from),
            };
            trials.push(Trial::ignorable_test(format!("{driver}::{name}"), runner));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn reason_to_ignore(driver: &str) -> Option<String> {
    let required = std::env::var("TRANSSHIP_REQUIRE").unwrap_or_default();
    if required.split(',').any(|name| name == format!("{driver}-sim")) {
        return None;
    }
    let listing = run::Run::of(&["devices", "--json"]).json();
    let is_stand_in = |device: &serde_json::Value| {
        let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
        text("id").starts_with(driver) && text("name").contains(STAND_IN)
    };
    let there = listing["devices"].as_array().is_some_and(|devices| devices.iter().any(is_stand_in));
    (!there).then(|| format!("there is no stand-in for the driver of {driver}"))
}
