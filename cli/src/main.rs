//! The command `transship`: which devices there are, and what is wrong with them.

mod devices;
mod doctor;
mod drivers;
mod finding;
mod named;
mod sizes;
mod system;
mod within;

use std::fmt::{self, Display};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;
use transship::DeviceId;

use crate::devices::Listing;

/// What devices a machine has, and what is wrong with them.
///
/// The exit code is 0 if nothing is wrong, 1 if something is or the output cannot be written, and 2 for arguments that make no sense, such as a device of no driver.
#[derive(Parser)]
#[command(name = "transship", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists drivers, what is missing and why, devices, their memory, and which reach each other
    Devices {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// How long all of it may take, in seconds, from 1 to 3600; what has answered by then is printed
        #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
        timeout: u32,
    },
    /// Looks for what is wrong, copies to every device and back, and says what to do
    Doctor(Examination),
}

/// What `doctor` looks at.
#[derive(clap::Args)]
struct Examination {
    /// Devices that must be there, such as cuda (which is cuda:0) or wgpu:1; only these are copied to [default: all that are there]
    #[arg(value_parser = named::device)]
    devices: Vec<DeviceId>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// How much is copied each way, in MiB, from 1 to 4096; it must fit into what is free
    #[arg(long, allow_negative_numbers = true, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    mib: u32,
    /// How long all of it may take, in seconds, from 1 to 3600; what is found by then is printed
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Devices { json, timeout } => {
            let listing = Listing::of_this_machine_within(Duration::from_secs(timeout.into()));
            let code = print(&listing, json, listing.is_healthy());
            if listing.unanswered.is_empty() {
                return code;
            }
            let who = listing.unanswered.join(", ");
            fail(format_args!("not through after the {timeout} s of --timeout: no answer from {who}"))
        }
        Command::Doctor(examination) => {
            let json = examination.json;
            let report = doctor::examine(examination);
            print(&report, json, report.healthy)
        }
    }
}

fn print(what: &(impl Serialize + Display), json: bool, is_healthy: bool) -> ExitCode {
    let text = match json {
        true => serde_json::to_string_pretty(what).map(|text| text + "\n"),
        false => Ok(what.to_string()),
    };
    let written = text.map_err(std::io::Error::from).and_then(|text| write(text.as_bytes()));
    match written {
        Ok(()) if is_healthy => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => fail(format_args!("the output cannot be written: {error}")),
    }
}

/// Where this cannot be written either, nobody is left to tell.
fn fail(why: fmt::Arguments<'_>) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {why}");
    ExitCode::FAILURE
}

/// Who reads may stop whenever it likes.
fn write(text: &[u8]) -> std::io::Result<()> {
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
