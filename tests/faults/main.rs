//! For every n: the n-th call of the driver fails, and a small copy comes to an end all the same; or it is held up, and the copy
//! is given up meanwhile. And what the driver says of the budgets.
//!
//! It needs the stand-in for libcuda: `cargo run -p driver-sim -- cargo test --features cuda --test faults`, or `hip` for the
//! HIP backend over it. Without it every case is shown as ignored, or fails where `TRANSSHIP_REQUIRE` names `cuda-sim` or
//! `hip-sim`. With `TRANSSHIP_FAULTS=headline` it copies the batch of 528 tensors instead.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod budget;
#[path = "../../examples/common/detection.rs"]
mod detection;
mod in_place;
mod left;
mod lost;
mod questions;
#[cfg(feature = "cuda")]
mod recorded;
mod registered;
#[path = "../support/required.rs"]
mod required;
mod stand_in;
mod stop;
mod sweep;
mod through;
mod trip;
mod unproved;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::in_place::InPlace;
use crate::lost::Lost;
use crate::stand_in::StandIn;
use crate::stop::{End, Stop};
use crate::sweep::{Fault, Sweep};
use crate::through::Through;
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
    let mut trials = Vec::new();
    // First: it looks at the most that was ever pinned.
    if Through::all().contains(&Through::Cuda) {
        trials.push(trial("pinned memory".to_owned(), Through::Cuda, budget::run, arguments));
        trials.push(trial("cuda::registered".to_owned(), Through::Cuda, registered::run, arguments));
        #[cfg(feature = "cuda")]
        trials.push(trial("cuda::recorded".to_owned(), Through::Cuda, recorded::run, arguments));
    }
    for through in Through::all() {
        let run = move |stand_in: &StandIn| questions::run(through, stand_in);
        trials.push(trial(format!("{}::questions", through.name()), through, run, arguments));
        for direction in Direction::ALL {
            for background in direction.backgrounds() {
                for fault in Fault::ALL {
                    let sweep = Sweep { through, direction, background: *background, fault };
                    let run = move |stand_in: &StandIn| sweep.run(stand_in);
                    trials.push(trial(sweep.to_string(), through, run, arguments));
                }
            }
        }
        for fault in Fault::ALL {
            let in_place = InPlace { through, fault };
            trials.push(trial(
                in_place.to_string(),
                through,
                move |stand_in| in_place.run(stand_in),
                arguments,
            ));
        }
        for direction in Stop::DIRECTIONS {
            for end in End::ALL {
                let stop = Stop { through, direction, end };
                let run = move |stand_in: &StandIn| stop.run(stand_in);
                trials.push(trial(stop.to_string(), through, run, arguments));
            }
        }
        for direction in [Direction::Up, Direction::Down, Direction::Between, Direction::ColumnsBetween] {
            let name = format!("{}::{direction:?}::unproved", through.name());
            let run = move |stand_in: &StandIn| unproved::run(through, direction, stand_in);
            trials.push(trial(name, through, run, arguments));
        }
        for lost in Lost::ALL {
            let run = move |stand_in: &StandIn| lost.run(through, stand_in);
            trials.push(trial(format!("{}::lost::{lost:?}", through.name()), through, run, arguments));
        }
    }
    trials
}

fn trial(
    name: String,
    through: Through,
    run: impl FnOnce(&StandIn) -> Result<(), String> + Send + 'static,
    arguments: &Arguments,
) -> Trial {
    let reason = reason_to_ignore(through);
    let insisted = arguments.ignored || arguments.include_ignored;
    let flag = reason.is_some() && insisted;
    let runner = move || match reason.filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => Ok(run(&StandIn::load()?).map(|()| Completion::Completed)?),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

fn reason_to_ignore(through: Through) -> Option<String> {
    if required::required().iter().any(|device| device.id.driver() == through.name()) {
        return None;
    }
    StandIn::load().err().or_else(|| through.unavailable())
}
