//! burn and transship on one device: Mesa's lavapipe is enough for wgpu, and the stand-in for CUDA's driver for what needs no kernel of
//! burn's.
//!
//! Without a device its cases are shown as ignored, never as passed. `TRANSSHIP_REQUIRE=wgpu,cuda` makes them run, and fail;
//! `TRANSSHIP_REQUIRE=cuda-sim` those that run on the stand-in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;

use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Trial};
use transship_burn::SharedDevice;

use crate::cases::{Case, Needs};

/// What the devices of the stand-in call themselves.
#[cfg(feature = "cuda")]
const STAND_IN: &str = "transship driver-sim";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Several look at counters of the device.
    arguments.test_threads = Some(1);
    let trials =
        RUNTIMES.iter().flat_map(|runtime| cases::all().into_iter().map(|case| trial(runtime, case)));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// One of burn's.
struct Runtime {
    name: &'static str,
    opened: fn() -> &'static Result<Opened, String>,
}

struct Opened {
    gpu: SharedDevice,
    /// Whether it runs what burn compiles.
    has_kernels: bool,
}

const RUNTIMES: &[Runtime] = &[
    #[cfg(feature = "wgpu")]
    Runtime { name: "wgpu", opened: wgpu },
    #[cfg(feature = "cuda")]
    Runtime { name: "cuda", opened: cuda },
];

/// burn's runtime starts once in a process.
#[cfg(feature = "wgpu")]
fn wgpu() -> &'static Result<Opened, String> {
    static GPU: OnceLock<Result<Opened, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        let gpu = SharedDevice::open(burn_tensor::Device::wgpu_options());
        gpu.map(|gpu| Opened { gpu, has_kernels: true }).map_err(|error| error.to_string())
    })
}

#[cfg(feature = "cuda")]
fn cuda() -> &'static Result<Opened, String> {
    static GPU: OnceLock<Result<Opened, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        let gpu = SharedDevice::open_cuda(0).map_err(|error| error.to_string())?;
        let has_kernels = gpu.device().backend().properties().is_ok_and(|known| known.name != STAND_IN);
        Ok(Opened { gpu, has_kernels })
    })
}

fn trial(runtime: &'static Runtime, (name, needs, case): Case) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", runtime.name), move || {
        let opened = match (runtime.opened)() {
            Ok(opened) => opened,
            Err(reason)
                if required().any(|name| name.strip_suffix("-sim").unwrap_or(&name) == runtime.name) =>
            {
                return Err(reason.into());
            }
            Err(reason) => return Ok(Completion::ignored_with(reason.clone())),
        };
        if needs == Needs::Kernels && !opened.has_kernels {
            let reason = "the stand-in runs no kernels of burn's";
            return match required().any(|name| name == runtime.name) {
                true => Err(reason.into()),
                false => Ok(Completion::ignored_with(reason)),
            };
        }
        case(&opened.gpu).map(|()| Completion::Completed).map_err(|error| error.to_string().into())
    })
}

/// What may not be ignored; with `-sim`, the cases that need no kernel alone.
fn required() -> impl Iterator<Item = String> {
    let list = std::env::var("TRANSSHIP_REQUIRE").unwrap_or_default();
    list.split(',').map(str::to_owned).collect::<Vec<_>>().into_iter()
}
