//! Loads the tensors of a `.safetensors` file to a device.
//!
//! `cargo run --release --example load_safetensors [--device NAME] [FILE]`: without a device, to the best there is;
//! without a file, the small one that comes with the example. `--write PATH` writes that one.

mod load;
mod tiny;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use transship::Value;
use transship::prelude::*;

/// A copy that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_millis(300);
const REFRESH: Duration = Duration::from_millis(50);

const USAGE: &str = "usage: load_safetensors [--device NAME] [FILE], or load_safetensors --write PATH";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let (mut device, mut path) = (None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => {
                let path = arguments.next().ok_or(USAGE)?;
                return Ok(std::fs::write(path, tiny::file()?)?);
            }
            "--device" => device = Some(arguments.next().ok_or(USAGE)?),
            option if option.starts_with('-') => return Err(USAGE.into()),
            _ => path = Some(PathBuf::from(argument)),
        }
    }
    let device = match device {
        Some(name) => Device::open(name.parse()?)?,
        None => Device::best()?,
    };
    load_to(&device, path.as_deref().unwrap_or(Path::new(tiny::PATH)))
}

fn load_to(device: &Device, path: &Path) -> Result<(), Box<dyn Error>> {
    let loaded = load::open(path)?;
    println!("{} to {}: {}", path.display(), device.id(), device.description());

    // On the host the tensors could stay in the map; loading is to read them.
    let policy = if device.is_host() { CopyPolicy::Always } else { CopyPolicy::IfNeeded };
    let started = Instant::now();
    let handle = transship::start_copy(loaded.tensors, device, CopyOptions::default().policy(policy))?;
    let (count, allocations) = (handle.report().leaves, handle.report().chunks);
    let tensors = wait_showing_progress(handle)?;
    let seconds = started.elapsed().as_secs_f64();

    list(&tensors);
    if loaded.realigned > 0 {
        println!("{} tensors are not aligned in the file and were copied once more", loaded.realigned);
    }
    let rate = loaded.bytes as f64 / seconds / 1e9;
    println!(
        "{count} tensors, {} bytes, in {allocations} allocations, after {:.3} ms: {rate:.2} GB/s",
        loaded.bytes,
        seconds * 1e3
    );
    Ok(())
}

fn wait_showing_progress(mut handle: CopyHandle<Value>) -> transship::Result<Value> {
    let mut bar = None;
    let mut time = PATIENCE;
    loop {
        match handle.wait_timeout(time)? {
            TimedWait::Done(tensors) => return Ok(tensors),
            TimedWait::Pending(pending) => {
                let report = pending.report();
                let bar = bar.get_or_insert_with(|| progress_bar(report.payload_bytes));
                bar.set_position(report.copied_bytes + report.written_bytes);
                (handle, time) = (pending, REFRESH);
            }
        }
    }
}

/// The bar goes when it is dropped.
fn progress_bar(bytes: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{elapsed} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_style(style).with_finish(ProgressFinish::AndClear)
}

fn list(tensors: &Value) {
    for (name, value) in tensors.as_dict().into_iter().flatten() {
        if let (Some(name), Some(tensor)) = (name.as_str(), value.as_tensor()) {
            println!("  {name:32} {:10} {:?}", tensor.dtype().to_string(), tensor.shape());
        }
    }
}
