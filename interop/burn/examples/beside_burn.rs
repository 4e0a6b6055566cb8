//! 500 small tensors, and a large one, to burn and back: one copy of the structure beside burn's own ways, in turns.
//!
//! `beside_burn [cuda|wgpu] [ROUNDS] [MIB]`: rounds (50; of the large one 20 at most), and the size of the large tensor (64). Prints medians in
//! microseconds: up from ordinary host memory until the device is done (`Device::sync`), down until the bytes are in host memory. Every
//! byte is compared, outside of the clock.

use std::error::Error;
use std::time::{Duration, Instant};

use burn_tensor::{Tensor, TensorData, Transaction};
use transship::{CopyOptions, Device};
use transship_burn::SharedDevice;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A way to copy: what took how long, and what came of it.
type Way<R> = fn(&[Vec<f32>], &SharedDevice) -> Outcome<(Duration, R)>;

const UP: [(&str, Way<Vec<Tensor<1>>>); 3] = [
    ("from_data each", from_data),
    ("start_copy, to_burn each", start_copy_to_each),
    ("start_copy, to_burn_all", start_copy_to_all),
];
const DOWN: [(&str, Way<Vec<Vec<f32>>>); 4] = [
    ("into_data each", into_data),
    ("Transaction", transaction),
    ("from_burn each, start_copy", start_copy_of_each),
    ("from_burn of all, start_copy", start_copy_of_all),
];

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let gpu = open(arguments.next().as_deref())?;
    let rounds = arguments.next().map_or(Ok(50), |rounds| rounds.parse::<usize>())?.max(1);
    let megabytes = arguments.next().map_or(Ok(64), |size| size.parse::<usize>())?.max(1);
    println!("{:?}, {rounds} rounds", gpu.device());
    let small: Vec<_> = (0..500).map(|number| numbers(16 + number % 128, number)).collect();
    compare("500 small", &small, rounds, &gpu)?;
    compare(&format!("one of {megabytes} MiB"), &[numbers(megabytes << 18, 7)], rounds.min(20), &gpu)
}

fn open(runtime: Option<&str>) -> Outcome<SharedDevice> {
    match runtime {
        #[cfg(feature = "cuda")]
        Some("cuda") => Ok(SharedDevice::open_cuda(0)?),
        #[cfg(feature = "wgpu")]
        None | Some("wgpu") => Ok(SharedDevice::open(burn_tensor::Device::wgpu_options())?),
        _ => Err("give cuda or wgpu, and build with the feature of that name".into()),
    }
}

fn compare(what: &str, values: &[Vec<f32>], rounds: usize, gpu: &SharedDevice) -> Outcome<()> {
    let arrived = |tensors: Vec<Tensor<1>>| tensors.into_iter().map(read).collect();
    run(&format!("{what}, up"), &UP, arrived, values, rounds, gpu)?;
    run(&format!("{what}, down"), &DOWN, Ok, values, rounds, gpu)
}

fn run<R>(
    what: &str,
    ways: &[(&str, Way<R>)],
    read: impl Fn(R) -> Outcome<Vec<Vec<f32>>>,
    values: &[Vec<f32>],
    rounds: usize,
    gpu: &SharedDevice,
) -> Outcome<()> {
    let mut taken = vec![Vec::new(); ways.len()];
    for round in 0..rounds + 2 {
        for ((name, way), taken) in ways.iter().zip(&mut taken) {
            // With `fusion` burn's thread still frees what the way before has dropped.
            gpu.burn().sync()?;
            let (time, result) = way(values, gpu)?;
            // The first ones fill the pools.
            if round >= 2 {
                taken.push(time);
            } else if read(result)? != values {
                return Err(format!("{what}, {name}: other bytes came out").into());
            }
        }
    }
    let medians = ways.iter().zip(taken).map(|((name, _), taken)| format!("{name} {:.1}", median(taken)));
    println!("{what}: {}", medians.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// All ways need vectors of their own, which are made before the clock starts.
fn from_data(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Tensor<1>>)> {
    let data: Vec<_> = values.iter().map(|values| data_of(values)).collect();
    let start = Instant::now();
    let tensors = data.into_iter().map(|data| Tensor::from_data(data, gpu.burn())).collect();
    gpu.burn().sync()?;
    Ok((start.elapsed(), tensors))
}

fn start_copy_to_each(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Tensor<1>>)> {
    up(values, gpu, |leaves| leaves.iter().map(|leaf| gpu.to_burn(leaf)).collect())
}

fn start_copy_to_all(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Tensor<1>>)> {
    up(values, gpu, |leaves| gpu.to_burn_all(leaves))
}

fn up(
    values: &[Vec<f32>],
    gpu: &SharedDevice,
    to_burn: impl Fn(&Vec<transship::Tensor>) -> transship_burn::Result<Vec<Tensor<1>>>,
) -> Outcome<(Duration, Vec<Tensor<1>>)> {
    let leaves: Vec<_> = values.iter().cloned().map(transship::Tensor::from).collect();
    let start = Instant::now();
    let copy = transship::start_copy(leaves, gpu.device(), gpu.copy_options());
    let leaves = copy.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    let tensors = to_burn(&leaves)?;
    gpu.burn().sync()?;
    Ok((start.elapsed(), tensors))
}

fn into_data(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Vec<f32>>)> {
    let tensors = there(values, gpu)?;
    let start = Instant::now();
    let data: Vec<_> = tensors.into_iter().map(Tensor::into_data).collect();
    let taken = start.elapsed();
    Ok((taken, to_vectors(data)?))
}

/// burn's own way for several.
fn transaction(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Vec<f32>>)> {
    let tensors = there(values, gpu)?;
    let start = Instant::now();
    let data = tensors.into_iter().fold(Transaction::default(), Transaction::register).execute();
    let taken = start.elapsed();
    Ok((taken, to_vectors(data)?))
}

fn start_copy_of_each(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Vec<f32>>)> {
    let tensors = there(values, gpu)?;
    let start = Instant::now();
    let leaves = tensors.into_iter().map(|tensor| gpu.from_burn(tensor)).collect::<Result<Vec<_>, _>>()?;
    down(leaves, start)
}

fn start_copy_of_all(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<(Duration, Vec<Vec<f32>>)> {
    let tensors = there(values, gpu)?;
    let start = Instant::now();
    down(gpu.from_burn(tensors)?, start)
}

fn down(leaves: Vec<transship::Tensor>, start: Instant) -> Outcome<(Duration, Vec<Vec<f32>>)> {
    let copy = transship::start_copy(leaves, &Device::host(), CopyOptions::default());
    let leaves = copy.and_then(|copy| copy.wait()).map_err(transship::Error::from)?;
    let taken = start.elapsed();
    Ok((taken, leaves.iter().map(transship::Tensor::to_vec).collect::<Result<_, _>>()?))
}

/// Tensors of burn's own making.
fn there(values: &[Vec<f32>], gpu: &SharedDevice) -> Outcome<Vec<Tensor<1>>> {
    Ok(from_data(values, gpu)?.1)
}

fn read(tensor: Tensor<1>) -> Outcome<Vec<f32>> {
    tensor.into_data().try_to_vec().map_err(|error| format!("{error:?}").into())
}

fn to_vectors(data: Vec<TensorData>) -> Outcome<Vec<Vec<f32>>> {
    data.into_iter().map(|data| data.try_to_vec().map_err(|error| format!("{error:?}").into())).collect()
}

fn data_of(values: &[f32]) -> TensorData {
    TensorData::new(values.to_vec(), [values.len()])
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + seed * 1009) % 10_007) as f32).collect()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
