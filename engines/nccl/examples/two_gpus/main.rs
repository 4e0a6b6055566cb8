//! What only two GPUs with NCCL show: that the values are right, what a collective over a tree costs beside one over as many bytes, and
//! that the death of a process ends the other one.
//!
//! `cargo run --release --features cuda --example two_gpus [group|processes|killed]`; all three without a word.

#[path = "../../../../examples/common/detection.rs"]
#[allow(dead_code, reason = "the batch has more than floats")]
mod detection;
mod group;
mod measure;
mod processes;
mod raw;

use std::env;
use std::error::Error;

use transship::{DType, Device, Tensor};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            group::run()?;
            processes::run()?;
            processes::killed()
        }
        ["group"] => group::run(),
        ["processes"] => processes::run(),
        ["killed"] => processes::killed(),
        ["rank", rank, mode] => processes::rank(rank.parse()?, mode),
        _ => Err("say group, processes or killed".into()),
    }
}

fn device(ordinal: usize) -> Outcome<Device> {
    Ok(Device::open(format!("cuda:{ordinal}").parse()?)?)
}

/// The floats of the detector's batch, times a number.
fn floats(times: f32) -> Outcome<Vec<Tensor>> {
    let leaves = detection::leaves(&mut detection::batch(0)?)?;
    let floats = leaves.into_iter().filter(|tensor| tensor.dtype() == DType::F32);
    let scaled = floats.map(|tensor| {
        let values = tensor.to_vec::<f32>()?.into_iter().map(|value| value * times).collect();
        Tensor::from_vec(values, tensor.shape())
    });
    Ok(scaled.collect::<Result<_, _>>()?)
}

/// Fails unless `tree`, which lies anywhere, is `floats(times)`, whose products are exact.
fn check(tree: Vec<Tensor>, times: f32) -> Outcome {
    let host = transship::start_copy(tree, &Device::host(), Default::default())?.wait()?;
    let expected = floats(times)?;
    if host.len() != expected.len() {
        return Err("another number of tensors".into());
    }
    for (index, (tensor, expected)) in host.iter().zip(&expected).enumerate() {
        if tensor.shape() != expected.shape() || tensor.to_bytes()? != expected.to_bytes()? {
            return Err(format!("tensor {index} is wrong").into());
        }
    }
    Ok(())
}
