//! Streams of cudarc, and contexts that are not the primary one.

use std::sync::Arc;

use cudarc::driver::DevicePtr;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use transship_core::backend::{MemoryKind, RawMemory};
use transship_core::{Cast, CopyOptions, DType, Error, Tensor, start_copy, start_copy_into};
use transship_cuda::{cu_stream, stream_from_cudarc, stream_from_raw, tensor_from_cuda_slice};

use super::streams;
use crate::bed;
use crate::driver::{OtherContext, RawStream, cudarc_context};
use crate::suite::Outcome;

pub(crate) fn copies_run_on_the_streams_of_cudarc() -> Outcome {
    let device = bed::warm_device(0);
    let context = cudarc_context(&device);
    for stream in [context.new_stream()?, context.default_stream()] {
        let adopted = stream_from_cudarc(&device, &stream)?;
        assert_eq!(cu_stream(&adopted)?, stream.cu_stream());
        streams::there_and_back(&device, &adopted)?;
        // What the tensors of a copy hold on to goes with them.
        stream.synchronize()?;
    }
    Ok(())
}

/// Whoever drops a tensor would record its use on a stream of his own.
pub(crate) fn the_default_stream_of_each_thread_is_refused() -> Outcome {
    let device = bed::device(0);
    let stream = cudarc_context(&device).per_thread_stream();
    let refused = stream_from_cudarc(&device, &stream);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn a_stream_of_another_context_is_refused() -> Outcome {
    let device = bed::device(0);
    let other = OtherContext::create();
    let raw = RawStream::create(other.0);
    // SAFETY: the stream outlives the call, which refuses it.
    let refused = unsafe { stream_from_raw(&device, raw.handle) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

/// What stays on the device keeps no stream. Mutant: a use holds its stream.
pub(crate) fn a_stream_of_cudarc_for_each_request_goes_with_it() -> Outcome {
    let device = bed::warm_device(0);
    let context = cudarc_context(&device);
    let weights = bed::up(Tensor::from(vec![3_u8; 5000]), &device);
    let mut streams = Vec::new();
    for request in 0..100_u8 {
        let theirs = context.new_stream()?;
        let stream = stream_from_cudarc(&device, &theirs)?;
        let tree = vec![weights.clone(), Tensor::from(vec![request; 100])];
        let copied = start_copy(tree, &device, CopyOptions::default())?.wait_on(&stream)?;
        stream.synchronize()?;
        drop((copied, stream));
        streams.push(Arc::downgrade(&theirs));
    }
    let held = || streams.iter().filter(|stream| stream.strong_count() > 0).count();
    assert!(bed::eventually(|| held() <= 16), "{} streams are held", held());
    assert_eq!(bed::bytes(bed::down(weights)), [[3; 5000]]);
    Ok(())
}

/// Mutant: a stream that is captured counts as broken.
pub(crate) fn a_capture_of_cudarcs_stream_gives_memory_back() -> Outcome {
    const BYTES: usize = 4 << 20;
    let device = bed::warm_device(0);
    let context = cudarc_context(&device);
    let theirs = context.new_stream()?;
    let stream = stream_from_cudarc(&device, &theirs)?;
    let mut held = Vec::new();
    for _ in 0..20 {
        let tensor = bed::up(Tensor::from(vec![1_u8; BYTES]), &device);
        tensor.record_stream(&stream)?;
        theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        drop(tensor);
        drop(theirs.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?);
        stream.synchronize()?;
        held.push(device.counters().device_bytes);
    }
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(most - least <= 4 * BYTES as u64, "the device holds more and more: {held:?}");
    Ok(())
}

/// It is out of the driver's default pool, which nobody has opened to the other device: copies of the driver reach it, and kernels
/// do not. What has gaps, or is cast, its own device reads, and writes to the other one. Mutants: kernels read what the program has
/// allocated on another device, or scatter it, one by one or by a table.
pub(crate) fn memory_of_cudarc_goes_to_another_device() -> Outcome {
    let (from, to) = (bed::device(0), bed::device(1));
    let stream = cudarc_context(&from).new_stream()?;
    let bytes: Vec<u8> = (0..20_000).map(|index| (index % 251) as u8).collect();
    let matrix = tensor_from_cuda_slice(&from, stream.clone_htod(&bytes)?, &[200, 100])?;
    let mut tensors = Vec::new();
    for _ in 0..12 {
        tensors.push(tensor_from_cuda_slice(&from, stream.clone_htod(&bytes[..500])?, &[500])?);
    }
    tensors.push(matrix.narrow(1, 10, 30)?);
    let found = bed::bytes(bed::down(bed::up(tensors, &to)));
    let columns = Tensor::from(bytes.clone()).reshape(&[200, 100])?.narrow(1, 10, 30)?;
    assert!(found[..12].iter().all(|small| *small == bytes[..500]));
    assert_eq!(found[12], columns.to_bytes()?);

    let widened = CopyOptions::default().cast(Cast::new(DType::U8, DType::F32));
    let there = start_copy(matrix.narrow(1, 10, 30)?, &to, widened)?.wait()?;
    let expected = columns.to_vec::<u8>()?.into_iter().map(f32::from).collect::<Vec<_>>();
    assert_eq!(bed::down(there).to_vec::<f32>()?, expected);
    // So many that a table would pay.
    let many = (0..12).map(|first| matrix.narrow(1, first, 30)).collect::<Result<Vec<_>, _>>()?;
    let found = bed::bytes(bed::down(bed::up(many, &to)));
    let all = Tensor::from(bytes.clone()).reshape(&[200, 100])?;
    for (first, found) in found.iter().enumerate() {
        assert_eq!(*found, all.narrow(1, first, 30)?.to_bytes()?, "{first}");
    }
    // Columns into columns: a launch for each row.
    let held = bed::up(Tensor::from(vec![0_u8; 10_000]).reshape(&[200, 50])?, &to).narrow(1, 5, 30)?;
    let filled = start_copy_into(matrix.narrow(1, 10, 30)?, held, CopyOptions::default())?.wait()?;
    assert_eq!(bed::bytes(bed::down(filled)), [columns.to_bytes()?]);

    let small = tensor_from_cuda_slice(&from, stream.clone_htod(&bytes[..500])?, &[50, 10])?;
    let held = bed::up(Tensor::from(vec![0_u8; 1000]).reshape(&[50, 20])?, &to).narrow(1, 5, 10)?;
    let filled = start_copy_into(small, held, CopyOptions::default())?.wait()?;
    assert_eq!(bed::bytes(bed::down(filled)), [&bytes[..500]]);
    Ok(())
}

/// The same the other way: what lies there is written by its own device. Mutant: kernels write to what the program has allocated on
/// another device.
pub(crate) fn memory_of_cudarc_is_filled_from_another_device() -> Outcome {
    const ROWS: usize = 5000;
    let (from, to) = (bed::device(0), bed::device(1));
    let matrix = Tensor::from(bed::numbers(ROWS * 100, 3)).reshape(&[ROWS, 100])?;
    let there = bed::up(matrix.clone(), &from);
    let stream = cudarc_context(&to).new_stream()?;
    let slice = stream.alloc_zeros::<f32>(ROWS * 30)?;
    stream.synchronize()?;
    let memory = RawMemory::new(slice.device_ptr(&stream).0, slice.num_bytes(), MemoryKind::Device);
    // SAFETY: nobody else uses the slice, which the tensor holds.
    let held = unsafe { Tensor::from_raw_mut(memory, Box::new(slice), &[ROWS, 30], DType::F32, &to)? };
    let filled = start_copy_into(there.narrow(1, 10, 30)?, held, CopyOptions::default())?.wait()?;
    assert_eq!(bed::bytes(bed::down(filled.clone())), [matrix.narrow(1, 10, 30)?.to_bytes()?]);

    // Many tensors, which kernels of the target read: those of the source may not write there.
    let many: Vec<Tensor> = (0..40_u8).map(|number| Tensor::from(vec![number; 1000])).collect();
    let held = many.iter().map(|_| {
        let slice = stream.alloc_zeros::<u8>(1000)?;
        stream.synchronize()?;
        let memory = RawMemory::new(slice.device_ptr(&stream).0, 1000, MemoryKind::Device);
        // SAFETY: as above.
        Ok(unsafe { Tensor::from_raw_mut(memory, Box::new(slice), &[1000], DType::U8, &to)? })
    });
    let held = held.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
    let filled_many = start_copy_into(bed::up(many.clone(), &from), held, CopyOptions::default())?.wait()?;
    assert_eq!(bed::bytes(bed::down(filled_many)), bed::bytes(many));

    // Neither device's kernels may reach what the program has allocated on both.
    let theirs = cudarc_context(&from).new_stream()?;
    let columns =
        tensor_from_cuda_slice(&from, theirs.clone_htod(&bed::numbers(ROWS * 100, 3))?, &[ROWS, 100])?;
    let refused = start_copy_into(columns.narrow(1, 10, 30)?, filled, CopyOptions::default()).err();
    let refused = refused.ok_or("memory that no kernel reaches was copied")?;
    assert!(refused.error().to_string().contains("(CopyPolicy::Always)"), "{}", refused.error());
    Ok(())
}
