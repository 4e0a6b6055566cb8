//! What only a CUDA device shows: that copies come in candle's order, and what they cost beside candle's own.
//!
//! `cargo run --release --features cuda --example on_cuda`; with `check`, the first part only.

mod check;
mod compare;

use candle_core::Device;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only_check = std::env::args().nth(1).as_deref() == Some("check");
    let devices =
        [("new_cuda", Device::new_cuda(0)?), ("new_cuda_with_stream", Device::new_cuda_with_stream(0)?)];
    for (name, device) in &devices {
        check::all(name, device)?;
    }
    check::between(&devices[0].1, &devices[1].1)?;
    check::between(&devices[1].1, &devices[0].1)?;
    println!("between the two: right");
    if only_check {
        return Ok(());
    }
    for (name, device) in &devices {
        compare::all(name, device)?;
    }
    Ok(())
}
