//! From one device to another.

use transship_core::{CopyOptions, Tensor, start_copy, start_copy_into};

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
