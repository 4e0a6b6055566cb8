//! The batch of a multi-camera detector, on every device there is: whole, one copy for each tensor, and by hand.
//!
//! `cargo bench --bench headline [--features cuda,wgpu] [-- [--device NAME] [--iterations N]]`
//!
//! Everything that is compared takes turns in one process: in each turn some runs to warm the caches up, and one that is
//! timed. Inputs are kept alive unless a row says otherwise; shapes change from one round to the next; device memory is
//! allocated anew for each copy and given back outside of the time.
#![allow(missing_docs, reason = "a benchmark has no documentation but this")]

mod copies;
#[cfg(feature = "cuda")]
mod cuda;
#[path = "../../examples/common/detection.rs"]
mod detection;
mod sampling;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::error::Error;
use std::process::ExitCode;

use sampling::{Contender, Input};
use transship::{Device, DeviceId};

const ITERATIONS: usize = 1000;
const USAGE: &str = "usage: headline [--device NAME] [--iterations N]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    for driver in transship::drivers() {
        if let Some(reason) = driver.unavailable {
            println!("{}: not available: {reason}", driver.name);
        }
    }
    let devices = settings.device.map_or_else(Device::list, |device| vec![device]);
    let inputs = Input::variants()?;
    for id in devices {
        let device = Device::open(id)?;
        println!("\n{id}: {}", device.description());
        println!("{} tensors, {} bytes\n", detection::LEAVES, detection::BYTES);
        let mut contenders = contenders(&device)?;
        sampling::sample(&mut contenders, &inputs, settings.iterations)?;
        sampling::print_table(&contenders);
    }
    Ok(())
}

fn contenders(device: &Device) -> Result<Vec<Contender>, Box<dyn Error>> {
    #[cfg_attr(
        not(any(feature = "cuda", feature = "wgpu")),
        allow(unused_mut, reason = "rivals need a driver")
    )]
    let mut contenders = copies::contenders(device);
    #[cfg(feature = "cuda")]
    if device.id().driver() == "cuda" {
        contenders.extend(cuda::rivals(device.id().ordinal())?);
    }
    #[cfg(feature = "wgpu")]
    if device.id().driver() == "wgpu" {
        contenders.extend(wgpu::rivals(device)?);
    }
    Ok(contenders)
}

struct Settings {
    device: Option<DeviceId>,
    iterations: usize,
}

impl Settings {
    /// `cargo bench` passes `--bench`; without it, or with `--test`, every contender runs once.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let (mut device, mut iterations, mut bench, mut test) = (None, None, false, false);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--device" => device = Some(arguments.next().ok_or(USAGE)?.parse()?),
                "--iterations" => iterations = Some(arguments.next().ok_or(USAGE)?.parse()?),
                "--bench" => bench = true,
                "--test" => test = true,
                _ => return Err(USAGE.into()),
            }
        }
        let usual = if bench && !test { ITERATIONS } else { 1 };
        Ok(Self { device, iterations: iterations.unwrap_or(usual) })
    }
}
