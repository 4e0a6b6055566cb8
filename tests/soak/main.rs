//! The soak: threads that copy, cancel, drop, forget, time out and trim at random over the same devices, for as many steps or
//! minutes as it is told. Every byte is verified, and at the end nothing is left.
//!
//! They behave badly, as the seed says: structures change their order, owners of memory and wakers lock what others hold,
//! sleep, panic, copy and await, threads copy when they end, and budgets are below what is wanted.
//!
//! `cargo test --features cuda --test soak -- [NAME] [--steps N | --minutes N] [--seed N] [--threads N]`; the name of a
//! backend alone runs that one. What has no device here is shown as ignored, or fails where `TRANSSHIP_REQUIRE` names it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

mod arena;
#[allow(dead_code, reason = "shared with the conformance suite, which uses more of it")]
#[path = "../conformance/data.rs"]
mod data;
#[path = "../support/hostile.rs"]
mod hostile;
mod item;
#[path = "../support/required.rs"]
mod required;
mod settings;
mod strangers;
mod tally;
mod tree;
mod watchdog;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::arena::Arena;
use crate::required::required;
use crate::settings::Settings;
use crate::tally::Tally;
use crate::watchdog::Watchdog;
use crate::worker::Worker;

fn main() -> ExitCode {
    let (settings, rest) = Settings::from_args(std::env::args());
    let mut arguments = Arguments::from_iter(rest);
    // Each has the machine to itself.
    arguments.test_threads = Some(1);
    strangers::hush_deliberate_panics();
    let trials = backends().map(|name| trial(name, settings, &arguments)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let unmet: Vec<_> = required().iter().filter_map(|device| device.check_kind().err()).collect();
    for reason in &unmet {
        println!("TRANSSHIP_REQUIRE: {reason}");
    }
    if arguments.list || unmet.is_empty() { conclusion.exit_code() } else { ExitCode::from(101) }
}

/// The host, simulated devices, and every driver that is compiled in.
fn backends() -> impl Iterator<Item = &'static str> {
    let drivers =
        [("cuda", cfg!(feature = "cuda")), ("hip", cfg!(feature = "hip")), ("wgpu", cfg!(feature = "wgpu"))];
    let compiled_in = drivers.into_iter().filter_map(|(name, there)| there.then_some(name));
    ["host", "late", "late-map", "late-far"].into_iter().chain(compiled_in)
}

fn trial(name: &'static str, settings: Settings, arguments: &Arguments) -> Trial {
    let reason = arena::reason_to_ignore(name);
    let insisted = arguments.ignored || arguments.include_ignored;
    let flag = reason.is_some() && insisted;
    let runner = move || match reason.filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => soak(name, settings).map(|()| Completion::Completed),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

fn soak(name: &'static str, settings: Settings) -> Result<(), Failed> {
    println!("soak of {name}: {settings}");
    let arena = Arc::new(Arena::open(name, settings.seed)?);
    let watchdog = Watchdog::start(arena.clone(), settings.threads);
    let begin = Instant::now();
    let threads: Vec<_> = (0..settings.threads)
        .map(|number| {
            let mut worker = Worker::new(number, arena.clone(), settings.seed);
            let place = watchdog.place(number);
            thread::spawn(move || worker.run(settings.bound, &place))
        })
        .collect();
    let tallies: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    let mut sum = Tally::default();
    for (number, tally) in tallies.into_iter().enumerate() {
        match tally {
            Ok(tally) => sum.add(&tally),
            Err(_) => return Err(format!("thread {number} panicked ({settings})").into()),
        }
    }
    println!("soak of {name}: {sum} in {:.1} s", begin.elapsed().as_secs_f64());
    sum.check(name)?;
    arena.finish()?;
    watchdog.stop();
    arena::close(arena)
}
