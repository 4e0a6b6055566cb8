//! A CUDA graph that is captured once, and launched on inputs that are copied to where it reads them: a ring of two slots, of which one
//! is filled while the graph of the other one runs.
//!
//! `cargo run --release -p transship-cuda --example cuda_graph`

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, LaunchConfig, PushKernelArg};
use transship_core::backend::Driver;
use transship_core::{CopyOptions, DType, Device, Stream, Tensor, start_copy, start_copy_into};
use transship_cuda::{CudaDriver, device_ptr, stream_from_cudarc};

const COUNT: usize = 1 << 20;
const STEPS: usize = 100;

/// `to[i] = from[i] + 1`.
const ADD_ONE: &str = "
.version 7.0
.target sm_70
.address_size 64

.visible .entry add_one(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f1, [%rd6];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd7], %f2;
DONE:
    ret;
}
";

fn main() -> ExitCode {
    if let Err(reason) = CudaDriver.is_available() {
        println!("skipped: {reason}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = Device::open("cuda:0".parse()?)?;
    println!("device   {}: {}", gpu.id(), gpu.description());
    let context = CudaContext::new(0)?;
    let theirs = context.new_stream()?;
    let compute = stream_from_cudarc(&gpu, &theirs)?;
    let add_one = context.load_module(ADD_ONE.into())?.load_function("add_one")?;

    let inputs = Tensor::zeros(&[2, COUNT], DType::F32, &gpu)?;
    let outputs = Tensor::zeros(&[2, COUNT], DType::F32, &gpu)?;
    // Memory that is there before the capture need not be waited for inside of it.
    gpu.synchronize()?;
    let [even, odd] = two(inputs.split(0, &[1, 1])?)?;
    let outputs = two(outputs.split(0, &[1, 1])?)?;
    let graphs = [
        capture(&add_one, (&theirs, &compute), (&even, &outputs[0]))?,
        capture(&add_one, (&theirs, &compute), (&odd, &outputs[1]))?,
    ];

    let mut filling = start_copy_into(batch(0)?, even, CopyOptions::default())?;
    let mut idle = odd;
    for step in 0..STEPS {
        let filled = filling.wait_on(&compute)?;
        // Behind the graphs that were launched so far, beside the one of this step.
        filling = start_copy_into(batch(step + 1)?, idle, CopyOptions::default())?;
        graphs[step % 2].launch()?;
        idle = filled;
        let result =
            start_copy(outputs[step % 2].clone(), &Device::host(), CopyOptions::default())?.wait()?;
        let expected = batch(step)?;
        let mut pairs = result.as_slice::<f32>()?.iter().zip(expected.as_slice::<f32>()?);
        if !pairs.all(|(result, input)| *result == *input + 1.0) {
            return Err(format!("step {step}: the graph has read something else").into());
        }
    }
    // Nothing is freed before the last launch is done: the tensors know the stream.
    drop((filling, idle, outputs));
    println!("{STEPS} launches of two graphs, each on what was copied to where it reads: verified");
    Ok(theirs.synchronize()?)
}

/// Captures the kernel. The graph has the addresses alone: the tensors outlive it, and whoever uses them from now on comes behind
/// its launches on this stream.
fn capture(
    add_one: &CudaFunction,
    (theirs, compute): (&Arc<CudaStream>, &Stream),
    (input, output): (&Tensor, &Tensor),
) -> Result<CudaGraph, Box<dyn Error>> {
    input.record_stream(compute)?;
    output.record_stream(compute)?;
    // The driver may load code at the first launch.
    launch(add_one, theirs, (input, output))?;
    theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    launch(add_one, theirs, (input, output))?;
    let graph =
        theirs.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    graph.ok_or_else(|| "nothing was captured".into())
}

fn launch(
    add_one: &CudaFunction,
    stream: &Arc<CudaStream>,
    (input, output): (&Tensor, &Tensor),
) -> Result<(), Box<dyn Error>> {
    let (from, to, count) = (device_ptr(input)?, device_ptr(output)?, COUNT as u32);
    let mut launch = stream.launch_builder(add_one);
    launch.arg(&from).arg(&to).arg(&count);
    // SAFETY: both have `count` floats, and live until the stream is done with the last launch, captured ones included.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
    Ok(())
}

fn batch(step: usize) -> transship_core::Result<Tensor> {
    Tensor::from_vec((0..COUNT).map(|index| ((index + step) % 1009) as f32).collect(), &[1, COUNT])
}

fn two(parts: Vec<Tensor>) -> Result<[Tensor; 2], Box<dyn Error>> {
    parts.try_into().map_err(|_| "there are two parts".into())
}
