//! Copies whose instructions `.ci/bench-guard` counts under callgrind: traversal, plan, staging, submission and rebuilding.
//!
//! Everything runs on one thread. The device is simulated (`late-backend`) and adds the same few calls to each copy, so that
//! the counts repeat on whatever machine. Inputs are kept, and results dropped outside of what is counted.

#[path = "../../../examples/common/detection.rs"]
mod detection;

use late_backend::LateConfig;
use transship::{
    BackgroundWork, CopyOptions, Device, Error, Result, Tensor, TensorTree, for_each_tensor, start_copy,
    start_copy_into,
};

const SMALL_LEAVES: usize = 10_000;
const HEAVY_TAIL: usize = 1_000;
/// What a kernel of real devices needs for each copy.
const TABLE_ENTRY: usize = 24;
const WARM_UP: usize = 3;

fn main() -> Result<()> {
    let _late = late_backend::install(LateConfig::new("late"))?;
    let _gathers = late_backend::install(LateConfig {
        gather: Some(TABLE_ENTRY),
        devices: 2,
        ..LateConfig::new("gathers")
    })?;
    let device = Device::open("late:0".parse()?)?;
    let batch = detection::batch(0)?;
    let gathers = [Device::open("gathers:0".parse()?)?, Device::open("gathers:1".parse()?)?];
    let results = scattered(batch.clone(), &gathers[0])?;
    let tail = (0..HEAVY_TAIL).map(|index| Tensor::from(vec![1_u8; bytes_of_tail(index)]));
    let tail = scattered(tail.collect::<Vec<_>>(), &gathers[0])?;
    let leaves = (0..SMALL_LEAVES).map(|index| Tensor::from(vec![index as f32; 16])).collect::<Vec<_>>();
    let mut held = copy(batch.clone(), &device)?;
    for _ in 0..WARM_UP {
        copy(batch.clone(), &device)?;
        held = copy_into(batch.clone(), held)?;
        copy(leaves.clone(), &device)?;
        copy(results.clone(), &Device::host())?;
        copy([tail.clone()], &gathers[1])?;
    }
    drop(counted_headline(batch.clone(), &device)?);
    drop(counted_small_leaves(leaves.clone(), &device)?);
    drop(counted_down(results.clone())?);
    drop(counted_into(batch.clone(), held)?);
    drop(counted_tail_between([tail.clone()], &gathers[1])?);
    Ok(())
}

/// 528 tensors of four types in a structure, 153,628 bytes.
#[inline(never)]
fn counted_headline(batch: Vec<detection::Sample>, device: &Device) -> Result<Vec<detection::Sample>> {
    copy(batch, device)
}

/// 10,000 tensors of 64 bytes in a list.
#[inline(never)]
fn counted_small_leaves(leaves: Vec<Tensor>, device: &Device) -> Result<Vec<Tensor>> {
    copy(leaves, device)
}

/// The 528 tensors back from a device, where each has memory of its own: one kernel makes all copies.
#[inline(never)]
fn counted_down(batch: Vec<detection::Sample>) -> Result<Vec<detection::Sample>> {
    // Named here: else it would be the same function as `counted_headline`, and the compiler keeps one of them.
    copy(batch, &Device::host())
}

/// The 528 tensors into the memory of an earlier batch.
#[inline(never)]
fn counted_into(
    batch: Vec<detection::Sample>,
    held: Vec<detection::Sample>,
) -> Result<Vec<detection::Sample>> {
    copy_into(batch, held)
}

/// 1,000 tensors with a heavy tail, 25 MB, from one device to another. Each has memory of its own.
#[inline(never)]
fn counted_tail_between(tail: [Vec<Tensor>; 1], device: &Device) -> Result<[Vec<Tensor>; 1]> {
    copy(tail, device)
}

/// Half of them have 512 bytes, half of the others four times as many, and so on up to 512 KiB.
fn bytes_of_tail(index: usize) -> usize {
    512 << (2 * (index + 1).trailing_zeros().min(5))
}

/// The tensors on `device`, each by a copy of its own.
fn scattered<S: TensorTree>(mut batch: S, device: &Device) -> Result<S> {
    for_each_tensor(&mut batch, |tensor| {
        *tensor = copy(tensor.clone(), device)?;
        Ok(())
    })?;
    Ok(batch)
}

fn copy<S: TensorTree>(value: S, device: &Device) -> Result<S> {
    start_copy(value, device, inline())?.wait().map_err(Error::from)
}

fn copy_into<S: TensorTree>(value: S, held: S) -> Result<S> {
    start_copy_into(value, held, inline())?.wait().map_err(Error::from)
}

fn inline() -> CopyOptions {
    CopyOptions::default().background(BackgroundWork::Never)
}
