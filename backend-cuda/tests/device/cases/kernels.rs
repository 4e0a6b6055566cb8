//! Kernels over tensors, and tensors over what kernels have written.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream};
use transship_core::{CopyOptions, Device, Tensor, start_copy};
use transship_cuda::{CudaTensorView, cuda_view, device_ptr, stream_from_cudarc, tensor_from_cuda_slice};

use crate::bed::{self, bytes, down, numbers};
use crate::driver::{cudarc_context, memory_info};
use crate::kernel::AddOne;
use crate::stall::Stall;
use crate::suite::Outcome;

const ROUNDS: usize = 100;
const COUNT: usize = 10_000;

pub(crate) fn a_view_is_filled_before_its_kernel_runs() -> Outcome {
    let bench = Bench::new()?;
    let stream = stream_from_cudarc(&bench.device, &bench.stream)?;
    let mut results = bench.outputs(ROUNDS)?;
    for (round, to) in results.iter_mut().enumerate() {
        let source = Tensor::from(numbers(COUNT, round));
        let handle = start_copy(source, &bench.device, CopyOptions::default())?;
        // In turn: the stream waits as it is told to; the view makes it wait; the host waits.
        let tensor = match round % 3 {
            0 => handle.wait_on(&stream)?,
            1 => handle.wait_on(&bench.device.create_stream(Default::default())?)?,
            _ => handle.wait()?,
        };
        bench.add_one(&tensor, to)?;
    }
    bench.check(&results)
}

pub(crate) fn memory_is_not_reused_before_a_kernel_has_read_it() -> Outcome {
    let bench = Bench::new()?;
    let stream = stream_from_cudarc(&bench.device, &bench.stream)?;
    let mut results = bench.outputs(8)?;
    let copy = |seed| start_copy(Tensor::from(numbers(COUNT, seed)), &bench.device, CopyOptions::default());
    bench.add_one(&copy(0)?.wait()?, &mut results[0])?;
    let stall = Stall::on(&bench.device, bench.stream.cu_stream());
    let mut read = Vec::new();
    for (seed, to) in results.iter_mut().enumerate() {
        let tensor = if seed % 2 == 0 { copy(seed)?.wait_on(&stream)? } else { copy(seed)?.wait()? };
        bench.add_one(&tensor, to)?;
        read.push(device_ptr(&tensor)?);
        drop(tensor);
    }
    let mut elsewhere = Vec::new();
    for seed in 1000..1064 {
        let tensor = copy(seed)?.wait()?;
        elsewhere.push(device_ptr(&tensor)?);
    }
    let reused = elsewhere.iter().filter(|address| read.contains(address)).count();
    let distinct = elsewhere.iter().collect::<std::collections::BTreeSet<_>>().len();
    println!("64 copies went to {distinct} places; {reused} of them to one that a kernel still had to read");
    stall.release_after(Duration::from_millis(50));
    bench.check(&results)?;
    assert_eq!(reused, 0, "memory was handed out again before its kernel had run");
    assert!(distinct < 64, "no memory was reused at all: the case shows nothing");
    Ok(())
}

/// A view that is dropped keeps its memory until safe copies on other streams have read it. Mutant: it does not wait for them.
pub(crate) fn a_copy_of_a_view_on_another_stream_reads_what_was_there() -> Outcome {
    copies_on_another_stream(drop)
}

/// One that is forgotten keeps it for ever. Mutant: the view has no share of the memory.
pub(crate) fn forgets_views() -> Outcome {
    copies_on_another_stream(std::mem::forget)
}

fn copies_on_another_stream(end: impl Fn(CudaTensorView<f32>)) -> Outcome {
    let bench = Bench::new()?;
    let other = cudarc_context(&bench.device).new_stream()?;
    let copy = |seed| start_copy(Tensor::from(numbers(COUNT, seed)), &bench.device, CopyOptions::default());
    for round in 1..4 {
        let mut read = other.alloc_zeros::<f32>(COUNT)?;
        other.synchronize()?;
        let tensor = copy(round)?.wait()?;
        let place = device_ptr(&tensor)?;
        let stall = Stall::on(&bench.device, other.cu_stream());
        let view = cuda_view::<f32>(&tensor, &bench.stream)?;
        other.memcpy_dtod(&*view, &mut read)?;
        // The view needs the tensor no more.
        drop(tensor);
        end(view);
        let mut elsewhere = Vec::new();
        for seed in 1000..1064 {
            elsewhere.push(device_ptr(&copy(seed)?.wait()?)?);
        }
        assert!(!elsewhere.contains(&place), "memory was handed out again while a stream read it");
        stall.release();
        let found = other.clone_dtoh(&read)?;
        other.synchronize()?;
        assert!(found == numbers(COUNT, round), "round {round}: the copy read something else");
    }
    bench.stream.synchronize()?;
    Ok(())
}

pub(crate) fn a_slice_becomes_a_tensor() -> Outcome {
    let bench = Bench::new()?;
    for round in 0..ROUNDS {
        let from = bench.stream.clone_htod(&numbers(COUNT, round))?;
        let mut to = bench.stream.alloc_zeros::<f32>(COUNT)?;
        // A stalled stream every now and then: the copy waits for the kernel, on the device.
        let stall = (round % 10 == 0).then(|| Stall::on(&bench.device, bench.stream.cu_stream()));
        bench.kernel.launch(&bench.stream, &from.as_view(), &mut to);
        let tensor = tensor_from_cuda_slice(&bench.device, to, &[COUNT / 10, 10])?;
        assert_eq!(tensor.shape(), [COUNT / 10, 10]);
        let handle = start_copy(tensor, &Device::host(), CopyOptions::default())?;
        if let Some(stall) = stall {
            assert!(!handle.is_ready()?);
            stall.release();
        }
        assert_eq!(handle.wait()?.to_vec::<f32>()?, plus_one(round));
    }
    Ok(())
}

pub(crate) fn memory_of_a_slice_is_freed_with_the_last_tensor() -> Outcome {
    const BYTES: usize = 128 << 20;
    let device = bed::device(0);
    let stream = cudarc_context(&device).new_stream()?;
    device.synchronize()?;
    let (before, _) = memory_info(&device);
    let slice = stream.alloc_zeros::<u8>(BYTES)?;
    let tensor = tensor_from_cuda_slice(&device, slice, &[BYTES])?;
    let part = tensor.narrow(0, BYTES - 3, 3)?;
    assert_eq!(bytes(down(part.clone())), [[0, 0, 0]]);
    drop(tensor);
    device.synchronize()?;
    let (held, _) = memory_info(&device);
    drop(part);
    device.synchronize()?;
    let freed = bed::eventually(|| memory_info(&device).0 + BYTES / 2 > before);
    let (after, _) = memory_info(&device);
    println!("free bytes: {before} before, {held} with a tensor over {BYTES}, {after} after");
    assert!(held + BYTES / 2 < before, "a view must keep the memory of the slice");
    assert!(freed, "the memory of the slice is still held");
    Ok(())
}

struct Bench {
    device: Device,
    kernel: AddOne,
    stream: Arc<CudaStream>,
}

impl Bench {
    fn new() -> Result<Self, libtest_mimic::Failed> {
        let device = bed::warm_device(0);
        let context = cudarc_context(&device);
        let stream = context.new_stream()?;
        let kernel = AddOne::load(&context, &stream);
        Ok(Self { device, kernel, stream })
    }

    /// Where kernels write, allocated while nothing is stalled.
    fn outputs(&self, count: usize) -> Result<Vec<CudaSlice<f32>>, libtest_mimic::Failed> {
        let outputs = (0..count).map(|_| Ok(self.stream.alloc_zeros::<f32>(COUNT)?)).collect();
        self.stream.synchronize()?;
        outputs
    }

    fn add_one(&self, tensor: &Tensor, to: &mut CudaSlice<f32>) -> Outcome {
        let elements = cuda_view::<f32>(tensor, &self.stream)?;
        self.kernel.launch(&self.stream, &elements.view(), to);
        Ok(())
    }

    fn check(&self, results: &[CudaSlice<f32>]) -> Outcome {
        for (seed, result) in results.iter().enumerate() {
            let read = self.stream.clone_dtoh(result)?;
            // cudarc leaves it to the driver whether a copy into ordinary memory is done when the call returns.
            self.stream.synchronize()?;
            assert!(read == plus_one(seed), "kernel {seed} read something else");
        }
        Ok(())
    }
}

fn plus_one(seed: usize) -> Vec<f32> {
    numbers(COUNT, seed).into_iter().map(|number| number + 1.0).collect()
}
