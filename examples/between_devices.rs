//! Two devices copy into each other, whatever drives them: CUDA and wgpu in one program, for instance.
//!
//! `cargo run --release --features cuda,wgpu --example between_devices -- cuda:0 wgpu:0`

#[path = "common/detection.rs"]
mod detection;

use std::error::Error;
use std::process::ExitCode;

use detection::Sample;
use transship::prelude::*;
use transship::{Tensor, start_copy_to_all};

/// A batch of small tensors, and a large one.
type Cargo = (Vec<Sample>, Tensor);

const LARGE: usize = 64 << 20;

fn main() -> ExitCode {
    let names = std::env::args().skip(1).collect::<Vec<_>>();
    let result = match &names[..] {
        [one, other] => run(one, other),
        _ => Err("usage: between_devices DEVICE DEVICE".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(one: &str, other: &str) -> Result<(), Box<dyn Error>> {
    let (one, other) = (Device::open(one.parse()?)?, Device::open(other.parse()?)?);
    for device in [&one, &other] {
        println!("{}: {}", device.id(), device.description());
    }
    let sent =
        (detection::batch(0)?, Tensor::from((0..LARGE).map(|index| (index % 251) as u8).collect::<Vec<_>>()));

    // To both at once, then each to where the other is, at the same time, and down from there.
    let there = start_copy_to_all(sent.clone(), &[one.clone(), other.clone()], CopyOptions::default())?;
    let mut there = there.into_iter().map(CopyHandle::wait).collect::<Result<Vec<_>, _>>()?;
    let (from_other, from_one) = (there.pop().ok_or("no copy")?, there.pop().ok_or("no copy")?);
    let across = transship::start_copy(from_one, &other, CopyOptions::default())?;
    let back_across = transship::start_copy(from_other, &one, CopyOptions::default())?;
    for (copy, source) in [(across, &one), (back_across, &other)] {
        let (crossed, report) = copy.wait_with_report()?;
        println!("\nfrom {}: {report}", source.id());
        let down = transship::start_copy(crossed, &Device::host(), CopyOptions::default())?.wait()?;
        verify(&mut sent.clone(), down)?;
    }
    println!("\nverified: all {} bytes arrived both ways", detection::BYTES + LARGE);
    Ok(())
}

/// Checks type, shape and every byte of each tensor.
fn verify(sent: &mut Cargo, mut back: Cargo) -> Result<(), Box<dyn Error>> {
    let (mut expected, mut found) = (detection::leaves(&mut sent.0)?, detection::leaves(&mut back.0)?);
    expected.push(sent.1.clone());
    found.push(back.1);
    for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
        if expected.layout() != found.layout() || expected.as_bytes()? != found.as_bytes()? {
            return Err(format!("tensor {index} was {expected:?} and arrived as another, {found:?}").into());
        }
    }
    match expected.len() == found.len() {
        true => Ok(()),
        false => Err("tensors were lost".into()),
    }
}
