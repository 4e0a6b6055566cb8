//! Two GPUs of one process.

use std::hint;
use std::time::{Duration, Instant};

use transship::{CopyOptions, CopyPolicy, DType, Device, Tensor, start_copy};
use transship_nccl::{Group, ReduceOp};

use crate::measure::row;
use crate::raw::Raw;
use crate::{Outcome, check, device, floats};

pub(crate) fn run() -> Outcome {
    let devices = [device(0)?, device(1)?];
    let group = Group::new(&devices)?;
    println!(
        "== one process, {} and {}, {:?}",
        devices[0].description(),
        devices[1].description(),
        group.nccl().map_err(Clone::clone)?
    );
    let on = |rank: usize, tree: Vec<Tensor>| {
        Ok::<_, Box<dyn std::error::Error>>(start_copy(tree, &devices[rank], copies())?.wait()?)
    };
    let trees = || Ok::<_, Box<dyn std::error::Error>>(vec![on(0, floats(1.0)?)?, on(1, floats(2.0)?)?]);

    for tree in group.all_reduce(trees()?, ReduceOp::Sum)? {
        check(tree, 3.0)?;
    }
    for to in [&devices[1], &Device::host()] {
        check(group.reduce(trees()?, ReduceOp::Sum, to)?, 3.0)?;
    }
    for tree in group.broadcast(trees()?.swap_remove(1))? {
        check(tree, 2.0)?;
    }
    println!("values: all_reduce, reduce and broadcast are right");
    large(&group, &devices)?;

    let kept = trees()?;
    let bytes: usize = kept[0].iter().map(Tensor::nbytes).sum();
    println!("{} tensors of float32, {bytes} bytes", kept[0].len());
    let copying = Group::of_copies(&devices)?;
    row("Group::all_reduce, until it returns", || {
        let (given, started) = (kept.clone(), Instant::now());
        let sums = group.all_reduce(given, ReduceOp::Sum)?;
        let took = started.elapsed();
        wait(&sums)?;
        Ok(took)
    })?;
    row("Group::all_reduce, until both devices are done", || {
        timed(|| wait(&group.all_reduce(kept.clone(), ReduceOp::Sum)?))
    })?;
    row("Group::of_copies, all_reduce, until both devices are done", || {
        timed(|| wait(&copying.all_reduce(kept.clone(), ReduceOp::Sum)?))
    })?;
    row("Group::broadcast, until both devices are done", || {
        timed(|| wait(&group.broadcast(kept[0].clone())?))
    })?;

    let raw = Raw::new(&devices)?;
    let zeros = |device, elements: usize| Tensor::zeros(&[elements], DType::F32, device);
    let one = [vec![zeros(&devices[0], bytes / 4)?], vec![zeros(&devices[1], bytes / 4)?]];
    // Each has memory of its own, and may be written: nobody else knows these.
    let each = [fresh(&kept[0], &devices[0])?, fresh(&kept[1], &devices[1])?];
    devices.iter().try_for_each(Device::synchronize)?;
    for (what, trees, one_group) in [
        ("by hand: one ncclAllReduce of as many bytes (the limit)", &one, true),
        ("by hand: an ncclAllReduce for each tensor, in one group", &each, true),
        ("by hand: an ncclAllReduce for each tensor, each in a group", &each, false),
    ] {
        row(what, || {
            timed(|| {
                raw.all_reduce(trees, one_group)?;
                raw.synchronize()
            })
        })?;
    }
    Ok(())
}

/// 256 MiB in one tensor: no packing, and out of place.
fn large(group: &Group, devices: &[Device; 2]) -> Outcome {
    let tree = |rank: usize| Tensor::zeros(&[64 << 20], DType::F32, &devices[rank]);
    let kept = vec![tree(0)?, tree(1)?];
    row("256 MiB: Group::all_reduce, until both devices are done", || {
        timed(|| wait(&[group.all_reduce(kept.clone(), ReduceOp::Sum)?]))
    })?;
    let raw = Raw::new(devices)?;
    let own = [vec![tree(0)?], vec![tree(1)?]];
    devices.iter().try_for_each(Device::synchronize)?;
    row("256 MiB: by hand, one ncclAllReduce in place", || {
        timed(|| {
            raw.all_reduce(&own, true)?;
            raw.synchronize()
        })
    })
}

fn fresh(tree: &[Tensor], device: &Device) -> Outcome<Vec<Tensor>> {
    Ok(tree
        .iter()
        .map(|tensor| Tensor::zeros(tensor.shape(), DType::F32, device))
        .collect::<Result<_, _>>()?)
}

fn copies() -> CopyOptions {
    CopyOptions::default().policy(CopyPolicy::Always)
}

/// All of a tree are filled by the same work of a stream.
fn wait(trees: &[Vec<Tensor>]) -> Outcome {
    for tensor in trees.iter().flatten() {
        while !tensor.is_ready()? {
            hint::spin_loop();
        }
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}
