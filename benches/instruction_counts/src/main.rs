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
/// What a kernel of real devices needs for each copy.
const TABLE_ENTRY: usize = 24;
const WARM_UP: usize = 3;

fn main() -> Result<()> {
    let _late = late_backend::install(LateConfig::new("late"))?;
    let _gathers =
        late_backend::install(LateConfig { gather: Some(TABLE_ENTRY), ..LateConfig::new("gathers") })?;
    let device = Device::open("late:0".parse()?)?;
    let batch = detection::batch(0)?;
    let results = scattered(batch.clone(), &Device::open("gathers:0".parse()?)?)?;
    let leaves = (0..SMALL_LEAVES).map(|index| Tensor::from(vec![index as f32; 16])).collect::<Vec<_>>();
    let mut held = copy(batch.clone(), &device)?;
    for _ in 0..WARM_UP {
        copy(batch.clone(), &device)?;
        held = copy_into(batch.clone(), held)?;
        copy(leaves.clone(), &device)?;
        copy(results.clone(), &Device::host())?;
    }
    drop(counted_headline(batch.clone(), &device)?);
    drop(counted_small_leaves(leaves.clone(), &device)?);
    drop(counted_down(results.clone())?);
    drop(counted_into(batch.clone(), held)?);
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

/// The batch on `device`, each tensor by a copy of its own.
fn scattered(mut batch: Vec<detection::Sample>, device: &Device) -> Result<Vec<detection::Sample>> {
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
