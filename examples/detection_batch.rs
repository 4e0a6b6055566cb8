//! The main job: a nested batch of 528 small tensors goes to the best device there is and comes back.
//!
//! `cargo run --release --example detection_batch [DEVICE]`, with `--features cuda` or `wgpu` for more devices; without a device named, the
//! best one is taken, which is the host where there is no other.

#[path = "common/detection.rs"]
mod detection;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use detection::Sample;
use transship::prelude::*;
use transship::{Result, Tensor};

/// So many copies are done before any is timed.
const WARM_UP: usize = 20;
const SAMPLES: usize = 200;
/// Fewer samples will do where a copy takes as long as on a graphics driver in software.
const LONGEST: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(std::env::args().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: Option<String>) -> Result<(), Box<dyn Error>> {
    list_drivers();
    let device = match name {
        Some(name) => Device::open(name.parse()?)?,
        None => Device::best()?,
    };
    println!("\ndevice     {}: {}", device.id(), device.description());
    println!("batch      {} tensors, {} bytes\n", detection::LEAVES, detection::BYTES);

    let batch = detection::batch(0)?;
    there_and_back(&batch, &device)?;
    compare(batch, &device)
}

/// Says what this program could use, and why it cannot use the rest.
fn list_drivers() {
    for driver in transship::drivers() {
        match driver.unavailable {
            None => println!("driver     {}: {} device(s)", driver.name, driver.devices),
            Some(reason) => println!("driver     {}: not available: {reason}", driver.name),
        }
    }
    for (name, compiled_in) in [("cuda", cfg!(feature = "cuda")), ("wgpu", cfg!(feature = "wgpu"))] {
        if !compiled_in {
            println!("driver     {name}: not compiled in; add --features {name}");
        }
    }
}

/// Copies the batch to the device and back, and checks every byte.
fn there_and_back(batch: &[Sample], device: &Device) -> Result<(), Box<dyn Error>> {
    let (there, up) = transship::start_copy(batch.to_vec(), device, options(device))?.wait_with_report()?;
    let host = Device::host();
    let (mut back, down) = transship::start_copy(there, &host, options(device))?.wait_with_report()?;
    println!("{up}\n\n{down}\n");
    verify(&mut batch.to_vec(), &mut back)?;
    println!("verified   all {} bytes came back as they were\n", detection::BYTES);
    Ok(())
}

/// Checks type, shape and every byte of each tensor.
fn verify(sent: &mut Vec<Sample>, back: &mut Vec<Sample>) -> Result<(), Box<dyn Error>> {
    let (sent, back) = (detection::leaves(sent)?, detection::leaves(back)?);
    assert_eq!(sent.len(), back.len());
    for (index, (sent, back)) in sent.iter().zip(&back).enumerate() {
        if sent.layout() != back.layout() || sent.as_bytes()? != back.as_bytes()? {
            return Err(format!("tensor {index} went as {sent:?} and came back as another, {back:?}").into());
        }
    }
    Ok(())
}

/// Times the whole batch against one copy for each tensor, taking turns.
fn compare(mut batch: Vec<Sample>, device: &Device) -> Result<(), Box<dyn Error>> {
    let leaves = detection::leaves(&mut batch)?;
    let (mut whole, mut each) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for round in 0..WARM_UP + SAMPLES {
        if !whole.is_empty() && begun.elapsed() > LONGEST {
            break;
        }
        let times = (time_whole(batch.clone(), device)?, time_each(leaves.clone(), device)?);
        if round >= WARM_UP {
            whole.push(times.0);
            each.push(times.1);
        }
    }
    let samples = whole.len();
    let (whole, each) = (median_us(whole), median_us(each));
    println!("median time from the call until the copy is done, of {samples}:");
    println!("  the whole batch          {whole:10.1} us");
    println!("  one copy for each tensor {each:10.1} us, {:.1} times as long", each / whole);
    Ok(())
}

fn time_whole(batch: Vec<Sample>, device: &Device) -> Result<Duration> {
    let started = Instant::now();
    let copied = transship::start_copy(batch, device, options(device))?.wait()?;
    let time = started.elapsed();
    drop(copied);
    Ok(time)
}

fn time_each(leaves: Vec<Tensor>, device: &Device) -> Result<Duration> {
    let mut copied = Vec::with_capacity(leaves.len());
    let started = Instant::now();
    for leaf in leaves {
        copied.push(transship::start_copy(leaf, device, options(device))?.wait()?);
    }
    Ok(started.elapsed())
}

/// Tensors that are on the host already would stay there: to have something to show, they are copied all the same.
fn options(device: &Device) -> CopyOptions {
    let policy = if device.is_host() { CopyPolicy::Always } else { CopyPolicy::IfNeeded };
    CopyOptions::default().policy(policy)
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
