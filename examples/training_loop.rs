//! A training-like loop: while the program computes on one batch, the next two are copied. At the end it says how long the program has
//! waited, and for what, and writes what each thread and stream did as a file that opens in Perfetto (<https://ui.perfetto.dev>).
//!
//! `cargo run --release --example training_loop [DEVICE [FILE]]`, with `--features cuda`, `hip` or `wgpu` for more devices; without a
//! device named, the best one is taken, which is the host where there is no other. `docs/draw_timeline.py FILE` draws the file as SVG.

#[path = "common/detection.rs"]
mod detection;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use detection::Sample;
use transship::prelude::*;
use transship::{Prefetch, PrefetchOptions, Result, Timeline};

/// 528 small tensors, and the images that they describe.
type Batch = (Vec<Sample>, Vec<Tensor>);

/// Before these, which the timeline shows, as many run unseen.
const STEPS: usize = 12;
const IMAGES: usize = 8;
const IMAGE: [usize; 3] = [1080, 1920, 3];
/// A thread that waits for the kernels of a step sleeps as well.
const COMPUTE: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match run(arguments.next(), arguments.next()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: Option<String>, file: Option<String>) -> Result<(), Box<dyn Error>> {
    let device = match device {
        Some(name) => Device::open(name.parse()?)?,
        None => Device::best()?,
    };
    let batch = batch()?;
    let bytes = detection::BYTES + IMAGES * IMAGE.iter().product::<usize>();
    println!("device     {}: {}", device.id(), device.description());
    println!("batch      {} tensors, {bytes} bytes", detection::LEAVES + IMAGES);

    // What the host would pass on without a copy is copied all the same: there would be nothing to see.
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    train(&device, &batch, options.clone())?;
    let timeline = Timeline::new();
    train(&device, &batch, options.timeline(&timeline))?;
    if let Some(file) = file {
        std::fs::write(&file, timeline.to_json())?;
        println!("timeline   {file}");
    }
    Ok(())
}

/// Some memory of the host that a loader would fill; clones share it.
fn batch() -> Result<Batch> {
    let pixels = |image: usize| (0..IMAGE.iter().product()).map(|at| (at ^ image) as u8).collect::<Vec<_>>();
    let images = (0..IMAGES).map(|image| Tensor::from_vec(pixels(image), &IMAGE));
    Ok((detection::batch(0)?, images.collect::<Result<_>>()?))
}

fn train(device: &Device, batch: &Batch, options: CopyOptions) -> Result<()> {
    let loader = (0..STEPS).map(|_| batch.clone());
    let begin = Instant::now();
    let mut batches = loader.prefetch(device, PrefetchOptions::default().copy(options));
    for batch in &mut batches {
        let (_samples, images) = batch?;
        assert_eq!(images[0].device_id()?, device.id());
        thread::sleep(COMPUTE);
    }
    println!("{STEPS} steps   {:.1} ms; {}", begin.elapsed().as_secs_f64() * 1e3, batches.stats());
    Ok(())
}
