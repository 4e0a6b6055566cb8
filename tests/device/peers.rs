//! From one device to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::{Cast, CopyHandle, CopyOptions, DType, Error, Tensor, start_copy, start_copy_into};

use super::memory::{lent, lent_mut};
use crate::bed::{self, bytes, down, numbers};
use crate::detection;
use crate::driver::{RawStream, stream_from_raw};
use crate::stall::Stall;
use crate::suite::Outcome;

pub(crate) fn tensors_go_from_device_to_device() -> Outcome {
    let devices = [bed::device(0), bed::device(1)];
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        let reached = to.backend().reaches(&**from.backend());
        println!("{} to {}: {}", from.id(), to.id(), if reached { "directly" } else { "over the host" });
        for seed in 0..4 {
            let batch = detection::batch(seed)?;
            let there = bed::up(bed::up(batch.clone(), from), to);
            assert_eq!(bytes(down(there)), bytes(batch));
        }
        let large = Tensor::from(numbers(3 << 20, 9));
        assert_eq!(bytes(down(bed::up(bed::up(large.clone(), from), to))), bytes(large));
    }
    Ok(())
}

pub(crate) fn a_source_that_is_still_being_filled_is_waited_for() -> Outcome {
    let devices = [bed::warm_device(0), bed::warm_device(1)];
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        let direct = to.backend().reaches(&**from.backend());
        // Opens the way while nothing is stalled.
        drop(bed::up(bed::up(Tensor::from(numbers(9999, 0)), from), to));
        let raw = RawStream::of(from);
        // SAFETY: the stream outlives what is made of it.
        let stream = unsafe { stream_from_raw(from, raw.handle)? };
        let target = to.create_stream(Default::default())?;
        let stall = Stall::on(from, raw.handle);
        let options = CopyOptions::default().stream(&stream);
        let filling = start_copy(Tensor::from(numbers(9999, 3)), from, options)?.wait_on(&stream)?;
        let handle = start_copy(filling, to, CopyOptions::default())?;
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!handle.is_ready()?, "the copy did not wait for its source");
        if direct {
            let arriving = handle.wait_on(&target)?;
            assert!(!arriving.is_ready()?);
            stall.release();
            assert_eq!(down(arriving).to_vec::<f32>()?, numbers(9999, 3));
        } else {
            stall.release();
            assert_eq!(down(handle.wait()?).to_vec::<f32>()?, numbers(9999, 3));
        }
        // The copies keep what is on the books of the caller's stream until they are settled.
        stream.synchronize()?;
        to.synchronize()?;
    }
    Ok(())
}

/// The device of the source writes strided parts, on a stream of its own: in the order of the target's stream, and of no other one.
/// Mutants: it does not wait for that stream; that stream does not wait for it.
pub(crate) fn parts_come_in_the_order_of_the_targets_stream() -> Outcome {
    let devices = [bed::warm_device(0), bed::warm_device(1)];
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        let here = Tensor::from(numbers(4096 * 256, 5)).reshape(&[4096, 256])?;
        let there = bed::up(here.clone(), from);
        let columns = |matrix: &Tensor, first| matrix.narrow(1, first, 100);
        let is_right = |copied: Tensor, first| -> Result<bool, transship_core::Error> {
            Ok(bytes(down(copied)) == [columns(&here, first)?.to_bytes()?])
        };
        let raw = RawStream::of(to);
        // SAFETY: the stream outlives what is made of it.
        let stream = unsafe { stream_from_raw(to, raw.handle)? };
        let options = || CopyOptions::default().stream(&stream);
        // Creates what the first of such copies creates.
        let held = start_copy(columns(&there, 0)?, to, options())?.wait()?;
        assert!(is_right(held.clone(), 0)?);

        let stall = Stall::on(to, raw.handle);
        let first = Tensor::from(numbers(4096 * 100, 7)).reshape(&[4096, 100])?;
        let held = start_copy_into(bed::up(first, to), held, options())?.wait_on(&stream)?;
        let second = start_copy_into(columns(&there, 40)?, held, options())?;
        assert!(is_right(bed::up(columns(&there, 17)?, to), 17)?, "another stream");
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!second.is_ready()?, "the copy did not wait for what was on its stream");
        stall.release();
        assert!(is_right(second.wait_on(&stream)?, 40)?, "out of order");
        stream.synchronize()?;
    }
    Ok(())
}

/// Kernels of the source's device write tensors to memory of others, such as another process, behind what fills the sources and what uses the memory.
///
/// catches: 700-not-pushed, 701-pushed-before-the-last-copy-is-over
pub(crate) fn memory_of_others_is_filled_by_the_device_of_the_source() -> Outcome {
    const TENSORS: usize = 40;
    const LONG: usize = 5 << 20;
    let devices = [bed::warm_device(0), bed::warm_device(1)];
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        let freed = Arc::new(AtomicUsize::new(0));
        // The last one is copied by itself.
        let size = |number| if number + 1 == TENSORS { LONG } else { 1000 + number };
        let tree = |seed| -> Vec<Tensor> {
            (0..TENSORS).map(|number| Tensor::from(vec![number as u8 + seed; size(number)])).collect()
        };
        let held = (0..TENSORS).map(|number| lent_mut(to, &vec![0; size(number)], &freed));
        let held = held.collect::<Result<Vec<_>, _>>()?;

        let sources = bed::up(tree(1), from);
        let between = || [from, to].map(|device| device.counters().bytes_between);
        let before = between();
        let held = start_copy_into(sources.clone(), held, CopyOptions::default())?.wait()?;
        let moved: Vec<u64> = between().iter().zip(before).map(|(after, before)| after - before).collect();
        let all = sources.iter().map(Tensor::nbytes).sum::<usize>() as u64;
        // HIP does not say what its kernels reach.
        let expected = if from.id().driver() == "hip" { [0, all] } else { [all, 0] };
        assert_eq!(moved, expected, "bytes copied by the device of the source, and by the other one");
        assert_eq!(bytes(down(held.clone())), bytes(tree(1)));

        let raw = [from, to].map(RawStream::of);
        // SAFETY: the streams outlive what is made of them.
        let streams = [unsafe { stream_from_raw(from, raw[0].handle)? }, unsafe {
            stream_from_raw(to, raw[1].handle)?
        }];
        let on = |number: usize| CopyOptions::default().stream(&streams[number]);
        // What fills the sources stands still, then what fills the memory.
        let stall = Stall::on(from, raw[0].handle);
        let late = start_copy(tree(100), from, on(0))?.wait_on(&streams[0])?;
        let held = goes_on_behind(stall, start_copy_into(late, held, CopyOptions::default())?)?;
        assert!(bytes(down(held.clone())) == bytes(tree(100)), "the copy did not wait for its sources");
        let stall = Stall::on(to, raw[1].handle);
        let held = start_copy_into(sources.clone(), held, on(1))?.wait_on(&streams[1])?;
        let newest = bed::up(tree(50), from);
        let held = goes_on_behind(stall, start_copy_into(newest, held, CopyOptions::default())?)?;
        assert!(bytes(down(held.clone())) == bytes(tree(50)), "the copy did not wait for the one before");
        // Somebody uses the memory on a stream.
        let stall = Stall::on(to, raw[1].handle);
        held.iter().try_for_each(|tensor| tensor.record_stream(&streams[1]))?;
        let held = goes_on_behind(stall, start_copy_into(sources, held, CopyOptions::default())?)?;
        assert!(bytes(down(held)) == bytes(tree(1)), "the copy did not wait for a use");
        for stream in &streams {
            stream.synchronize()?;
        }
        assert!(bed::eventually(|| freed.load(Ordering::SeqCst) == TENSORS), "the memory was not let go of");
    }
    Ok(())
}

/// The result of a copy, which must wait until the stream that stands still goes on.
fn goes_on_behind(stall: Stall, copy: CopyHandle<Vec<Tensor>>) -> Result<Vec<Tensor>, Error> {
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!copy.is_ready()?, "the copy did not wait");
    stall.release();
    Ok(copy.wait()?)
}

/// Its own device reads it, and writes what lies in it without gaps to the other one: no other kernel may reach it.
pub(crate) fn columns_of_memory_of_others_go_to_another_device() -> Outcome {
    let devices = [bed::warm_device(0), bed::warm_device(1)];
    let content: Vec<u8> = (0..40_000).map(|index| (index % 251) as u8).collect();
    let here = Tensor::from(content.clone()).reshape(&[400, 100])?;
    let expected = here.narrow(1, 10, 30)?;
    for [from, to] in [[&devices[0], &devices[1]], [&devices[1], &devices[0]]] {
        if !to.backend().is_written_by(&**from.backend()) {
            println!("{} does not write to {}", from.id(), to.id());
            continue;
        }
        let freed = Arc::new(AtomicUsize::new(0));
        let columns = || lent(from, &content, &freed)?.reshape(&[400, 100])?.narrow(1, 10, 30);
        let own = bed::up(here.clone(), from).narrow(1, 10, 30)?;

        let batch = vec![columns()?, own, columns()?];
        let (there, report) = start_copy(batch, to, CopyOptions::default())?.wait_with_report()?;
        assert!(there[0].is_contiguous() && report.copied_bytes == 3 * 12_000, "{report}");
        assert_eq!(bytes(down(there)), vec![expected.to_bytes()?; 3]);

        let floats = CopyOptions::default().cast(Cast::new(DType::U8, DType::F32));
        let there = start_copy(columns()?, to, floats)?.wait()?;
        let widened = expected.to_vec::<u8>()?.into_iter().map(f32::from).collect::<Vec<_>>();
        assert_eq!(down(there).to_vec::<f32>()?, widened);

        let held = bed::up(Tensor::from(vec![0_u8; 12_000]).reshape(&[400, 30])?, to);
        let filled = start_copy_into(columns()?, held, CopyOptions::default())?.wait()?;
        assert_eq!(bytes(down(filled)), [expected.to_bytes()?]);
        assert!(bed::eventually(|| freed.load(Ordering::SeqCst) == 4), "the memory was not let go of");
    }
    Ok(())
}
