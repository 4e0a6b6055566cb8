//! Large buffers that nobody uses any more serve the tensors that come next; what the program holds does not.

use libtest_mimic::Failed;
use transship_core::{CopyHandle, CopyOptions, CopyPolicy, DType, StreamPriority, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, eventually, floats, numbers, up};
use crate::shader::{Doubling, Part};

/// Floats of a buffer that is kept, as large as the buffer.
const LARGE: usize = 4 << 20;
const LARGE_BYTES: u64 = 4 * LARGE as u64;

fn device_bytes(program: &Program) -> u64 {
    program.target.counters().device_bytes
}

/// Fails unless `tensor` has the numbers that were copied.
fn check(tensor: Tensor, count: usize, seed: usize) {
    assert!(floats(tensor) == numbers(count, seed), "other numbers than the {count} of seed {seed}");
}

/// Leaves one buffer behind that nobody uses.
fn leave_one(program: &Program) {
    drop(up(Tensor::from(numbers(LARGE, 99)), &program.target));
    let is_kept = || device_bytes(program) == LARGE_BYTES;
    assert!(eventually(is_kept), "it is not kept: {:?}", program.target.counters());
}

pub(crate) fn the_next_copy_of_about_the_same_size_takes_the_same_memory() -> Outcome {
    let program = Program::new();
    leave_one(&program);
    for (seed, count) in [LARGE, LARGE - 1, LARGE - LARGE / 20, LARGE].into_iter().enumerate() {
        let there = up(Tensor::from(numbers(count, seed)), &program.target);
        assert_eq!(device_bytes(&program), LARGE_BYTES, "{count} floats have memory of their own");
        check(there, count, seed);
        assert!(eventually(|| device_bytes(&program) == LARGE_BYTES), "{:?}", program.target.counters());
    }
    let two = up([Tensor::from(numbers(LARGE, 1)), Tensor::from(numbers(LARGE, 2))], &program.target);
    assert_eq!(device_bytes(&program), 2 * LARGE_BYTES);
    for (seed, tensor) in (1..).zip(two) {
        check(tensor, LARGE, seed);
    }
    Ok(())
}

/// Many of 1 MiB fill blocks of wgpu's.
///
/// catches: 486-only-large-buffers-are-kept
pub(crate) fn many_of_a_mebibyte_take_the_same_memory_again() -> Outcome {
    const COUNT: usize = 40;
    let program = Program::new();
    let batch = |seed| (0..COUNT).map(move |number| Tensor::from(numbers(1 << 18, seed + number)));
    for seed in [1, 100, 200] {
        let there = up(batch(seed).collect::<Vec<_>>(), &program.target);
        assert_eq!(device_bytes(&program), (COUNT << 20) as u64);
        for (number, tensor) in there.into_iter().enumerate() {
            check(tensor, 1 << 18, seed + number);
        }
        let are_kept = || device_bytes(&program) == (COUNT << 20) as u64;
        assert!(eventually(are_kept), "they are not kept: {:?}", program.target.counters());
    }
    Ok(())
}

pub(crate) fn a_buffer_that_the_program_holds_is_left_alone() -> Outcome {
    let program = Program::new();
    let there = up(Tensor::from(numbers(LARGE, 1)), &program.target);
    let buffer = transship_wgpu::wgpu_view(&there)?.buffer;
    drop(there);
    (2..5).for_each(|seed| drop(up(Tensor::from(numbers(LARGE, seed)), &program.target)));
    assert!(program.read(&buffer) == numbers(LARGE, 1), "others were copied over it");
    Ok(())
}

pub(crate) fn what_a_shader_still_reads_is_not_overwritten() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    leave_one(&program);
    let there = up(Tensor::from(numbers(LARGE, 1)), &program.target);
    let view = transship_wgpu::wgpu_view(&there)?;
    let result = doubling.results(&program, 1000);
    doubling.stall(&program);
    let part = Part { source: &view.buffer, first: view.offset / 4 + LARGE as u64 - 1000, count: 1000 };
    doubling.submit(&program, &part, &result, 0);
    drop((view, there));
    let others = start_others(&program)?;
    let doubled: Vec<f32> = numbers(LARGE, 1)[LARGE - 1000..].iter().map(|number| number * 2.0).collect();
    assert_eq!(program.read(&result), doubled);
    check_others(others)
}

/// Nobody else holds the source of the copy, and a stream that was told of it has to pass.
pub(crate) fn what_a_copy_still_reads_is_not_overwritten() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    leave_one(&program);
    let there = up(Tensor::from(numbers(LARGE, 1)), &program.target);
    let stream = program.target.create_stream(StreamPriority::Normal)?;
    doubling.stall(&program);
    let options = CopyOptions::default().policy(CopyPolicy::Always).stream(&stream);
    let handle = start_copy(there.clone(), &program.target, options)?;
    there.record_stream(&stream)?;
    drop(there);
    let others = start_others(&program)?;
    check(handle.wait()?, LARGE, 1);
    check_others(others)
}

/// Copies that need memory of the same size.
fn start_others(program: &Program) -> Result<Vec<CopyHandle<Tensor>>, Failed> {
    let start =
        |seed| start_copy(Tensor::from(numbers(LARGE, seed)), &program.target, CopyOptions::default());
    Ok((2..6).map(start).collect::<Result<_, _>>()?)
}

fn check_others(handles: Vec<CopyHandle<Tensor>>) -> Outcome {
    (2..).zip(handles).try_for_each(|(seed, handle)| {
        check(handle.wait()?, LARGE, seed);
        Ok(())
    })
}

/// Zeros are zeros in memory that held something else.
pub(crate) fn memory_of_before_does_not_show() -> Outcome {
    let program = Program::new();
    leave_one(&program);
    let zeros = Tensor::zeros(&[LARGE - 1], DType::F32, &program.target)?;
    assert_eq!(device_bytes(&program), LARGE_BYTES, "they lie in other memory");
    assert!(floats(zeros) == vec![0.0; LARGE - 1]);
    Ok(())
}

pub(crate) fn trim_gives_it_back() -> Outcome {
    let program = Program::new();
    leave_one(&program);
    assert!(program.target.trim() >= LARGE_BYTES as usize);
    assert_eq!(device_bytes(&program), 0);
    let there = up(Tensor::from(numbers(LARGE, 1)), &program.target);
    assert_eq!(device_bytes(&program), LARGE_BYTES);
    check(there, LARGE, 1);
    Ok(())
}

pub(crate) fn small_buffers_go_at_once() -> Outcome {
    let program = Program::new();
    drop(up(Tensor::from(numbers((1 << 18) - 1, 1)), &program.target));
    assert!(eventually(|| device_bytes(&program) == 0), "{:?}", program.target.counters());
    Ok(())
}

pub(crate) fn a_device_holds_twice_what_was_in_use_at_the_most() -> Outcome {
    let program = Program::new();
    let (mut most_in_use, mut most_held) = (0, 0);
    for quarters in (3..=8).chain(3..=8) {
        let count = LARGE * quarters / 4;
        most_in_use = most_in_use.max(4 * count as u64);
        check(up(Tensor::from(numbers(count, quarters)), &program.target), count, quarters);
        let held = device_bytes(&program);
        assert!(held <= 2 * most_in_use, "{held} bytes held, {most_in_use} in use at once");
        most_held = most_held.max(held);
    }
    assert!(most_held > most_in_use, "nothing is kept");
    Ok(())
}

pub(crate) fn nothing_is_kept_for_a_destroyed_device() -> Outcome {
    let program = Program::new();
    let there = up(Tensor::from(numbers(LARGE, 1)), &program.target);
    drop(up(Tensor::from(numbers(LARGE, 2)), &program.target));
    assert!(eventually(|| device_bytes(&program) == 2 * LARGE_BYTES), "{:?}", program.target.counters());
    program.device.destroy();
    assert!(program.target.synchronize().is_err());
    assert_eq!(device_bytes(&program), LARGE_BYTES, "one is in use");
    drop(there);
    assert!(eventually(|| device_bytes(&program) == 0), "{:?}", program.target.counters());
    Ok(())
}
