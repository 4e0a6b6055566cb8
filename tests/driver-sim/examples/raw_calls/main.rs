//! Prints what calls of `libcuda.so.1`, right ones and wrong ones, come to: run it over a driver and over its stand-in, and
//! compare.
//!
//! Each group of calls has a process of its own, so that one that ends it does not take the others along.
#![allow(non_snake_case, reason = "the names are NVIDIA's")]

mod captures;
mod contexts;
mod copies;
mod cuda;
mod devices;
mod events;
mod kernels;
mod memory;
mod pools;
mod streams;

use std::env;
use std::fmt::Display;
use std::process::{Command, ExitCode};

use cuda::Cuda;

type Group = (&'static str, unsafe fn(&Cuda));

/// The risky ones last.
const GROUPS: &[Group] = &[
    ("before cuInit", devices::before_init),
    ("devices", devices::questions),
    ("no context", contexts::without),
    ("primary contexts", contexts::primary),
    ("stack of contexts", contexts::stack),
    ("events", events::all),
    ("streams", streams::all),
    ("handles without their context", streams::without_context),
    ("memory", memory::all),
    ("registered memory", memory::registered),
    ("kinds of pointers", memory::kinds),
    ("pools", pools::all),
    ("copies", copies::right),
    ("kernels", kernels::all),
    ("captures by mode", captures::by_mode),
    ("captures by another thread", captures::by_another_thread),
    ("captures", captures::life),
    ("captures and events", captures::events),
    ("captures and the default stream", captures::default_stream),
    ("ends of other kinds", copies::wrong_kinds),
    ("freed memory", copies::freed),
    ("over the end", copies::over_the_end),
    ("null handles", streams::null_handles),
    ("null properties of pools", pools::null_properties),
    ("null contexts", contexts::null),
    ("after the primary context", contexts::after_primary),
];

fn main() -> ExitCode {
    let Some(wanted) = env::args().nth(1) else { return run_all() };
    let Some((_, group)) = GROUPS.iter().find(|(name, _)| *name == wanted) else { return ExitCode::FAILURE };
    match Cuda::load() {
        // SAFETY: this is the only group of the process, before the driver was initialised.
        Ok(cuda) => unsafe { group(&cuda) },
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run_all() -> ExitCode {
    for (name, _) in GROUPS {
        println!("# {name}");
        // What the wrong uses leave behind is not what is asked for here.
        let ended = env::current_exe()
            .and_then(|program| Command::new(program).arg(name).env("DRIVER_SIM_LEAKS", "allow").status());
        match ended {
            Ok(status) if status.code() == Some(1) => return ExitCode::FAILURE,
            Ok(status) if status.code().is_some() => {}
            Ok(status) => println!("ended: {status}"),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Prints what a call has returned.
fn say(label: &str, code: i32) {
    println!("{label}: {code}");
}

/// Prints what a call has returned, and a value if it went well.
fn show(label: &str, code: i32, value: impl Display) {
    match code {
        0 => println!("{label}: 0 = {value}"),
        _ => println!("{label}: {code}"),
    }
}
