//! The command `transship`: which devices there are, and what is wrong with them.

mod devices;
mod doctor;
mod drivers;
mod finding;
mod named;
mod sizes;
mod system;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use transship::DeviceId;

/// What devices a machine has, and what is wrong with them.
///
/// The exit code is 0 if nothing is wrong, 1 if something is, and 2 for arguments that make no sense, such as a device of no driver.
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
    /// How much is copied each way, in MiB; it must fit into what is free
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    mib: u32,
    /// How long all of it may take, in seconds; what is found by then is printed
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Devices { json } => {
            let listing = devices::Listing::of_this_machine();
            print(&listing, json, listing.is_healthy())
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
        _ => ExitCode::FAILURE,
    }
}

/// Who reads may stop whenever it likes.
fn write(text: &[u8]) -> std::io::Result<()> {
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
