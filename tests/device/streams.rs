//! Streams of the driver, in both directions.

use transship_core::backend::StreamPriority;
use transship_core::{CopyOptions, Device, Error, Stream, Tensor, start_copy};

use crate::bed::{self, numbers};
use crate::driver::{Handle, RawStream, handle, priority, stream_from_raw};
use crate::stall::Stall;
use crate::suite::Outcome;

/// The handle of the default stream of each thread.
const PER_THREAD: Handle = std::ptr::without_provenance_mut(2);

pub(crate) fn copies_run_on_the_streams_of_others() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    for theirs in [std::ptr::null_mut(), raw.handle] {
        // SAFETY: the default stream is never destroyed; the other one outlives what is made of it.
        let stream = unsafe { stream_from_raw(&device, theirs)? };
        assert_eq!(handle(&stream)?, theirs);
        there_and_back(&device, &stream)?;
    }
    Ok(())
}

pub(crate) fn there_and_back(device: &Device, stream: &Stream) -> Outcome {
    let stall = Stall::on(device, handle(stream)?);
    let options = || CopyOptions::default().stream(stream);
    let up = start_copy(Tensor::from(numbers(5000, 1)), device, options())?;
    let event = stream.record()?;
    assert!(!event.is_reached()? && !stream.is_idle()? && !up.is_ready()?, "a stalled stream is idle");
    stall.release();
    assert!(event.wait(None)? && event.is_reached()?);
    let copied = up.wait()?;
    let back = start_copy(copied, &Device::host(), options())?.wait()?;
    assert_eq!(back.to_vec::<f32>()?, numbers(5000, 1));
    stream.synchronize()?;
    assert!(stream.is_idle().is_ok());
    Ok(())
}

/// Whoever drops a tensor would record its use on a stream of his own.
pub(crate) fn the_default_stream_of_each_thread_is_refused() -> Outcome {
    let device = bed::device(0);
    // SAFETY: the stream is never destroyed.
    let refused = unsafe { stream_from_raw(&device, PER_THREAD) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    Ok(())
}

pub(crate) fn one_stream_waits_for_another() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it.
    let first = unsafe { stream_from_raw(&device, raw.handle)? };
    let second = device.create_stream(StreamPriority::Normal)?;
    let stall = Stall::on(&device, raw.handle);
    second.wait_stream(&first)?;
    let copy = start_copy(Tensor::from(numbers(5000, 2)), &device, CopyOptions::default().stream(&second))?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(!copy.is_ready()?, "the copy did not wait for the other stream");
    stall.release();
    assert_eq!(bed::down(copy.wait()?).to_vec::<f32>()?, numbers(5000, 2));
    first.synchronize()?;
    Ok(())
}

pub(crate) fn time_passes_between_marks() -> Outcome {
    let device = bed::device(0);
    let stream = device.create_stream(StreamPriority::Normal)?;
    let tensor = Tensor::from(vec![3_u8; 32 << 20]);
    let before = stream.mark_time()?;
    let copy = start_copy(tensor, &device, CopyOptions::default().stream(&stream))?.wait()?;
    let after = stream.mark_time()?;
    stream.synchronize()?;
    let elapsed = after.elapsed_since(&*before)?;
    println!("32 MiB up: {elapsed:.0} us between two marks");
    assert!(elapsed > 0.0 && elapsed < 60e6, "{elapsed} us");
    drop(copy);
    Ok(())
}

pub(crate) fn high_priority_is_higher() -> Outcome {
    let device = bed::device(0);
    let normal = device.create_stream(StreamPriority::Normal)?;
    let high = device.create_stream(StreamPriority::High)?;
    let numbers = [&normal, &high].map(|stream| priority(&device, handle(stream).unwrap()));
    println!("priorities: normal {}, high {}", numbers[0], numbers[1]);
    assert!(numbers[1] < numbers[0], "{numbers:?}");
    Ok(())
}
