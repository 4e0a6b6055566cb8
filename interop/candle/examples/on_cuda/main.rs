//! What only a CUDA device shows: that copies come in candle's order, and what they cost beside candle's own.
//!
//! `cargo run --release --features cuda --example on_cuda`; with `check`, the first part only; with `copies`, what of it launches no kernel
//! of candle's.

mod check;
mod compare;

use candle_core::Device;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let done = run(std::env::args().nth(1).as_deref());
    transship_candle::close_devices();
    done
}

fn run(part: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let devices =
        [("new_cuda", Device::new_cuda(0)?), ("new_cuda_with_stream", Device::new_cuda_with_stream(0)?)];
    for (name, device) in &devices {
        check::copies(device)?;
        println!("{name}: copies are right");
    }
    let [per_thread, own] = [&devices[0].1, &devices[1].1];
    check::between(per_thread, own)?;
    check::between(own, per_thread)?;
    check::writes_of_another_stream(own, &Device::new_cuda_with_stream(0)?)?;
    check::writes_of_another_stream(per_thread, own)?;
    println!("between the two: copies are right");
    match Device::new_cuda_with_stream(1) {
        Ok(other) => check::memory_of_another_gpu(own, &other)?,
        Err(error) => println!("not checked: memory of another GPU ({error})"),
    }
    if part == Some("copies") {
        return Ok(());
    }
    for (name, device) in &devices {
        check::with_kernels(device)?;
        println!("{name}: kernels are right");
    }
    if part == Some("check") {
        return Ok(());
    }
    for (name, device) in &devices {
        compare::all(name, device)?;
    }
    Ok(())
}
