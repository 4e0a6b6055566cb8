//! 500 small tensors, and one of 64 MiB, to burn: `Tensor::from_data` each, against one copy of the structure; in turns.
//!
//! Microseconds from ordinary host memory until the device is done (`Device::sync`): medians. The number of rounds is the argument, 50
//! without one.

use std::error::Error;
use std::time::{Duration, Instant};

use burn_tensor::{Device, Tensor, TensorData};
use transship::CopyOptions;
use transship_burn::SharedDevice;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(50), |rounds| rounds.parse::<usize>())?.max(1);
    let gpu = SharedDevice::open(Device::wgpu_options())?;
    println!("{:?}, {rounds} rounds", gpu.device());
    let small: Vec<_> = (0..500).map(|number| vec![number as f32; 16 + number % 128]).collect();
    compare("500 small", &small, rounds, &gpu)?;
    compare("one of 64 MiB", &[vec![1.0; 16 << 20]], rounds.min(20), &gpu)
}

fn compare(what: &str, values: &[Vec<f32>], rounds: usize, gpu: &SharedDevice) -> Outcome<()> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..rounds + 2 {
        let (each, together) = (from_data(values, gpu)?, start_copy(values, gpu)?);
        // The first ones fill the pools.
        if round >= 2 {
            theirs.push(each);
            ours.push(together);
        }
    }
    println!("{what}: from_data {:.1} us, start_copy {:.1} us", median(theirs), median(ours));
    Ok(())
}

/// Both need their own vectors, which are made before the clock starts.
fn from_data(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<Duration> {
    let data: Vec<_> = values.iter().map(|values| TensorData::new(values.clone(), [values.len()])).collect();
    let start = Instant::now();
    let tensors: Vec<_> = data.into_iter().map(|data| Tensor::<1>::from_data(data, gpu.burn())).collect();
    gpu.burn().sync()?;
    let taken = start.elapsed();
    drop(tensors);
    Ok(taken)
}

fn start_copy(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<Duration> {
    let leaves: Vec<_> = values.iter().cloned().map(transship::Tensor::from).collect();
    let start = Instant::now();
    let copy = transship::start_copy(leaves, gpu.device(), CopyOptions::default())
        .map_err(transship::Error::from)?;
    let leaves = copy.wait().map_err(transship::Error::from)?;
    let tensors: Vec<_> =
        leaves.iter().map(|leaf| gpu.to_burn::<1, burn_tensor::Float>(leaf)).collect::<Result<_, _>>()?;
    gpu.burn().sync()?;
    let taken = start.elapsed();
    drop(tensors);
    Ok(taken)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
