//! burn and transship on one wgpu device: Mesa's lavapipe is enough.
//!
//! Without an adapter every case is shown as ignored, never as passed. `TRANSSHIP_REQUIRE=wgpu` makes them run, and fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;

use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Trial};
use transship_burn::SharedDevice;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Several look at counters of the device.
    arguments.test_threads = Some(1);
    let trials = cases::all().into_iter().map(|(name, case)| trial(name, case)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// burn's runtime starts once in a process.
fn opened() -> &'static Result<SharedDevice, String> {
    static GPU: OnceLock<Result<SharedDevice, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        SharedDevice::open(burn_tensor::Device::wgpu_options()).map_err(|error| error.to_string())
    })
}

fn trial(name: &'static str, case: fn(&SharedDevice) -> cases::Outcome) -> Trial {
    Trial::ignorable_test(name, move || match opened() {
        Ok(gpu) => case(gpu).map(|()| Completion::Completed).map_err(|error| error.to_string().into()),
        Err(reason) if std::env::var("TRANSSHIP_REQUIRE").is_ok_and(|list| list.contains("wgpu")) => {
            Err(reason.into())
        }
        Err(reason) => Ok(Completion::ignored_with(reason.clone())),
    })
}
