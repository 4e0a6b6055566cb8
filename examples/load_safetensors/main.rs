//! Loads `.safetensors` files to a device, and takes the time of that and of a memory map with one copy for each tensor.
//!
//! `cargo run --release --features safetensors --example load_safetensors [-- --device NAME] [PATH]`: without a device, to the best
//! there is; the path is a file, an index of a sharded model, or a folder; without one, the small file that comes with the
//! example. `--write PATH` writes that one.

mod mapped;
mod tiny;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use transship::prelude::*;
use transship::safetensors::{LoadError, LoadOptions, Progress, Tensors, load};

/// What takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_millis(300);
const REFRESH: Duration = Duration::from_millis(50);

const USAGE: &str = "usage: load_safetensors [--device NAME] [PATH], or load_safetensors --write PATH";

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
    println!("{} to {}: {}", path.display(), device.id(), device.description());
    let started = Instant::now();
    let tensors = load_showing_progress(device, path)?;
    let time = started.elapsed();

    for (name, tensor) in tensors.iter() {
        println!("  {name:32} {:10} {:?}", tensor.dtype().to_string(), tensor.shape());
    }
    let bytes = tensors.iter().map(|(_, tensor)| tensor.nbytes()).sum::<usize>();
    println!("{} tensors, {bytes} bytes, after {}", tensors.len(), rate(bytes, time));
    if let [file] = tensors.files() {
        let started = Instant::now();
        mapped::load(file.path(), device)?;
        println!("by a memory map and one copy for each after {}", rate(bytes, started.elapsed()));
    }
    Ok(())
}

fn load_showing_progress(device: &Device, path: &Path) -> Result<Tensors, LoadError> {
    let progress = Arc::new(Progress::default());
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| show(&progress, is_done));
        // The bar ends when this is dropped.
        let _done = done;
        load(path, device, LoadOptions::default().progress(&progress))
    })
}

fn show(progress: &Progress, is_done: mpsc::Receiver<()>) {
    let (mut bar, mut time) = (None, PATIENCE);
    while is_done.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
        bar.get_or_insert_with(|| progress_bar(progress.total_bytes())).set_position(progress.read_bytes());
        time = REFRESH;
    }
}

/// The bar goes when it is dropped.
fn progress_bar(bytes: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{elapsed} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_style(style).with_finish(ProgressFinish::AndClear)
}

fn rate(bytes: usize, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    format!("{:.3} ms: {:.2} GB/s", seconds * 1e3, bytes as f64 / seconds / 1e9)
}
