//! candle's `Tensor::to_device` for each tensor beside one copy of all, in turns: the time until the device has them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result, Tensor};
use transship_candle::start_copy;

pub(crate) fn all(name: &str, device: &Device) -> Result<()> {
    let small = (0..500).map(small).collect::<Result<Vec<_>>>()?;
    let large = vec![Tensor::zeros(256 << 20, DType::F32, &Device::Cpu)?];
    println!("{name}, us until usable (median): candle, transship, times");
    compare("500 small tensors, up", &small, device, device, 300)?;
    compare("1 GiB, up", &large, device, device, 10)?;
    let (small, large) = (each(&small, device)?, each(&large, device)?);
    device.synchronize()?;
    compare("500 small tensors, down", &small, &Device::Cpu, device, 300)?;
    compare("1 GiB, down", &large, &Device::Cpu, device, 10)
}

fn compare(what: &str, tree: &[Tensor], to: &Device, device: &Device, rounds: usize) -> Result<()> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    // The first rounds allocate what the others use again.
    for round in 0..rounds + 3 {
        let took = timed(device, || each(tree, to))?;
        let took_ours = timed(device, || Ok(start_copy(tree.to_vec(), to)?.wait()?))?;
        if round >= 3 {
            theirs.push(took);
            ours.push(took_ours);
        }
    }
    let [theirs, ours] = [theirs, ours].map(|mut all| {
        all.sort_unstable();
        all[all.len() / 2].as_secs_f64() * 1e6
    });
    println!("  {what:24} {theirs:10.1} {ours:10.1} {:6.2}", theirs / ours);
    Ok(())
}

/// Dropping the results is not counted.
fn timed(device: &Device, copy: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<Duration> {
    let start = Instant::now();
    let copies = copy()?;
    device.synchronize()?;
    let took = start.elapsed();
    drop(black_box(copies));
    device.synchronize()?;
    Ok(took)
}

fn each(tree: &[Tensor], to: &Device) -> Result<Vec<Tensor>> {
    tree.iter().map(|tensor| tensor.to_device(to)).collect()
}

/// From 1 to 97 elements, of four types.
fn small(number: usize) -> Result<Tensor> {
    let dtype = [DType::F32, DType::I64, DType::U8, DType::BF16][number % 4];
    Tensor::full(number as f32, number * 7 % 97 + 1, &Device::Cpu)?.to_dtype(dtype)
}
