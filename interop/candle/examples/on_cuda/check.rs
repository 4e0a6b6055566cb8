//! Each check compares values that candle computes on the device with those that it computes on the CPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::cuda::WrapErr;
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DriverError};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Result, Storage, Tensor, Var};
use transship_candle::{Error, start_copy};

/// Rounds of each check about order: a wrong one shows as soon as memory is used again.
const ROUNDS: usize = 50;

/// What launches no kernel.
pub(crate) fn copies(device: &Device) -> Result<()> {
    round_trip(device)?;
    packed_results_share_an_allocation(device)?;
    writes_come_behind_the_copy(device)?;
    large_tensors(device)?;
    handles_are_dropped(device)
}

/// What candle's kernels fill, and read.
pub(crate) fn with_kernels(device: &Device) -> Result<()> {
    views_of_the_device(device)?;
    results_are_used_at_once(device)?;
    sources_come_behind_what_fills_them(device)
}

/// Everything that a structure may hold, up and down.
fn round_trip(device: &Device) -> Result<()> {
    let base = Tensor::arange(0_f32, 24.0, &Device::Cpu)?.reshape((4, 6))?;
    let types = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ];
    let mut tree = BTreeMap::new();
    for dtype in types {
        let typed = base.to_dtype(dtype)?;
        let views = vec![
            typed.clone(),
            typed.t()?,
            typed.narrow(1, 1, 3)?,
            typed.narrow(0, 1, 1)?.broadcast_as((4, 6))?,
            typed,
        ];
        tree.insert(dtype.as_str(), views);
    }
    let expected: Vec<_> = tree.values().flatten().map(Tensor::contiguous).collect::<Result<_>>()?;
    let there = start_copy((tree, Tensor::new(7_i64, &Device::Cpu)?), device)?.wait()?;
    let back = start_copy(there, &Device::Cpu)?.wait()?;
    for (copy, expected) in back.0.values().flatten().zip(&expected) {
        equal("a round trip", copy, expected)?;
    }
    equal("a scalar", &back.1, &Tensor::new(7_i64, &Device::Cpu)?)
}

/// candle makes them contiguous.
fn views_of_the_device(device: &Device) -> Result<()> {
    let view = |device: &Device| Tensor::arange(0_f32, 12.0, device)?.reshape((3, 4))?.t()?.narrow(0, 1, 2);
    let down = start_copy(vec![view(device)?, view(device)?.t()?], &Device::Cpu)?.wait()?;
    equal("a view of the device", &down[0], &view(&Device::Cpu)?)?;
    equal("another view of the device", &down[1], &view(&Device::Cpu)?.t()?)
}

fn packed_results_share_an_allocation(device: &Device) -> Result<()> {
    let tree: Vec<_> =
        (1..40).map(|size| Tensor::ones(size, DType::F32, &Device::Cpu)).collect::<Result<_>>()?;
    let there = start_copy(tree, device)?.wait()?;
    let starts: Vec<_> = there.iter().map(|tensor| tensor.layout().start_offset()).collect();
    let last = starts.iter().max().copied().unwrap_or(0);
    let all: usize = (1..40).sum();
    if last + 39 < all - 39 {
        candle_core::bail!("39 tensors do not lie in one allocation: {starts:?}")
    }
    Ok(())
}

/// Kernels that are launched behind the copy find it done, while the memory of earlier results is used again.
fn results_are_used_at_once(device: &Device) -> Result<()> {
    for round in 0..ROUNDS {
        let tree: Vec<_> = (0..20)
            .map(|number| constant(round + number, 1 << (number % 20), &Device::Cpu))
            .collect::<Result<_>>()?;
        let there = start_copy(tree, device)?.wait()?;
        for (number, tensor) in there.iter().enumerate() {
            let sum = tensor.mean_all()?.to_scalar::<f32>()?;
            if sum != (round + number) as f32 {
                candle_core::bail!("tensor {number} of round {round} has the mean {sum}")
            }
        }
    }
    Ok(())
}

/// A copy down that starts behind slow kernels reads what they leave, and the sources may go at once.
fn sources_come_behind_what_fills_them(device: &Device) -> Result<()> {
    let matrix = (Tensor::eye(1024, DType::F32, device)? * 2.0)?;
    for round in 0..ROUNDS {
        let mut product = constant(round, 1 << 20, device)?.reshape((1024, 1024))?;
        for _ in 0..8 {
            product = product.matmul(&matrix)?;
        }
        let handle = start_copy(vec![product.clone(), product.narrow(0, 0, 3)?], &Device::Cpu)?;
        drop(product);
        // What it lay in may be used again.
        let _others = constant(999, 1 << 20, device)?;
        let down = handle.wait()?;
        let expected = round as f32 * 256.0;
        for tensor in &down {
            equal("a product", tensor, &Tensor::full(expected, tensor.dims(), &Device::Cpu)?)?;
        }
    }
    Ok(())
}

/// What candle writes after the call comes behind the copy.
fn writes_come_behind_the_copy(device: &Device) -> Result<()> {
    for round in 0..ROUNDS {
        let weight = Var::from_tensor(&constant(round, 4096, device)?)?;
        let handle = start_copy(vec![weight.as_tensor().clone()], &Device::Cpu)?;
        weight.set(&constant(777, 4096, device)?)?;
        equal("a snapshot", &handle.wait()?[0], &constant(round, 4096, &Device::Cpu)?)?;
    }
    Ok(())
}

/// Workers carry them out.
fn large_tensors(device: &Device) -> Result<()> {
    let source = Tensor::arange(0_u32, 16 << 20, &Device::Cpu)?;
    let there = start_copy(vec![source.clone(), constant(3, 99, &Device::Cpu)?], device)?.wait()?;
    let down = start_copy(there, &Device::Cpu)?.wait()?;
    if down[0].to_vec1::<u32>()? != source.to_vec1::<u32>()? {
        candle_core::bail!("64 MiB came back with other values")
    }
    equal("a small tensor beside it", &down[1], &constant(3, 99, &Device::Cpu)?)
}

fn handles_are_dropped(device: &Device) -> Result<()> {
    for round in 0..ROUNDS {
        let source = constant(round, 1 << 16, &Device::Cpu)?;
        drop(start_copy(vec![source.clone()], device)?);
        drop(start_copy(vec![constant(round, 1 << 16, device)?], &Device::Cpu)?);
        let there = start_copy(vec![source.clone()], device)?.wait()?;
        equal("a copy behind dropped ones", &there[0].to_device(&Device::Cpu)?, &source)?;
    }
    Ok(())
}

/// Two devices of candle's on one GPU, whose streams differ.
pub(crate) fn between(from: &Device, to: &Device) -> Result<()> {
    for round in 0..ROUNDS {
        let source = constant(round, 1 << 16, from)?;
        let there = start_copy(vec![source], to)?.wait()?;
        equal(
            "a copy within the GPU",
            &there[0].to_device(&Device::Cpu)?,
            &constant(round, 1 << 16, &Device::Cpu)?,
        )?;
    }
    Ok(())
}

/// A tensor that another stream than candle's still writes, as cudarc knows, copied from there to a device with a stream of its own.
///
/// Deliberate bug: the stream of the sources is waited for before it waits for the other one.
pub(crate) fn writes_of_another_stream(from: &Device, to: &Device) -> Result<()> {
    const ELEMENTS: usize = 1 << 20;
    let stream = from.as_cuda_device()?.cuda_stream().context().new_stream().w()?;
    for round in 0..ROUNDS {
        let written = written_slowly(&vec![round as f32; ELEMENTS], &stream).w()?;
        let there = start_copy(vec![over(written, from)?], to)?.wait()?;
        let expected = Tensor::full(round as f32, ELEMENTS, &Device::Cpu)?;
        equal("what another stream writes", &there[0].to_device(&Device::Cpu)?, &expected)?;
    }
    Ok(())
}

/// By copies on the device, the last of which has the values.
fn written_slowly(
    values: &[f32],
    stream: &Arc<CudaStream>,
) -> std::result::Result<CudaSlice<f32>, DriverError> {
    let (zeros, values) = (stream.alloc_zeros::<f32>(values.len())?, stream.clone_htod(values)?);
    let mut written = stream.alloc_zeros::<f32>(values.len())?;
    stream.synchronize()?;
    for _ in 0..20 {
        stream.memcpy_dtod(&zeros, &mut written)?;
    }
    stream.memcpy_dtod(&values, &mut written)?;
    Ok(written)
}

/// A tensor of one device over memory of another one's, which candle makes without a word.
///
/// Deliberate bug: the contexts are not compared.
pub(crate) fn memory_of_another_gpu(device: &Device, other: &Device) -> Result<()> {
    let slice = other.as_cuda_device()?.cuda_stream().clone_htod(&[1.0_f32; 8]).w()?;
    match start_copy(vec![over(slice, device)?], &Device::Cpu).map_err(Error::from) {
        Err(Error::OtherContext { expected: 0, actual: 1, .. }) => Ok(()),
        Err(error) => candle_core::bail!("memory of another GPU: {error}"),
        Ok(_) => candle_core::bail!("memory of another GPU was copied"),
    }
}

/// A tensor of `device` over `slice`.
fn over(slice: CudaSlice<f32>, device: &Device) -> Result<Tensor> {
    let elements = slice.len();
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.as_cuda_device()?.clone()));
    Ok(Tensor::from_storage(storage, elements, BackpropOp::none(), false))
}

fn constant(value: usize, elements: usize, device: &Device) -> Result<Tensor> {
    Tensor::full(value as f32, elements, &Device::Cpu)?.to_device(device)
}

fn equal(what: &str, actual: &Tensor, expected: &Tensor) -> Result<()> {
    let plain = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    if actual.dims() != expected.dims()
        || actual.dtype() != expected.dtype()
        || plain(actual)? != plain(expected)?
    {
        candle_core::bail!("{what} is {actual}, not {expected}")
    }
    Ok(())
}
