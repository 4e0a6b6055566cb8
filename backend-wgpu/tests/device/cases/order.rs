//! One queue: what is submitted first comes first, whoever submits it.

use std::time::Duration;

use transship_core::{CopyOptions, DType, StreamPriority, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, floats, numbers};
use crate::shader::{Doubling, Part, TURNS};

pub(crate) fn a_shader_behind_a_copy_sees_what_it_wrote() -> Outcome {
    shader_behind_copy(1000)
}

/// Carried by workers, in several pieces.
pub(crate) fn a_shader_behind_a_large_copy_sees_what_it_wrote() -> Outcome {
    shader_behind_copy(3 << 20)
}

/// Nobody waits for the copy: the shader is submitted as soon as there is a view.
fn shader_behind_copy(count: usize) -> Outcome {
    shader_behind_copy_on(&Program::new(), count)
}

/// Where the host writes new buffers itself there is nothing to submit, and nothing to wait for.
pub(crate) fn a_shader_sees_what_the_host_wrote() -> Outcome {
    let program = Program::on_own_device();
    let is_open = program.target.limits().largest_open >= 4000;
    println!("the host writes new buffers itself: {is_open}");
    let (before, submissions) = (program.target.counters(), u64::from(!is_open));
    shader_behind_copy_on(&program, 1000)?;
    assert_eq!(program.target.counters().submissions - before.submissions, submissions);
    shader_behind_copy_on(&program, 3 << 20)
}

fn shader_behind_copy_on(program: &Program, count: usize) -> Outcome {
    let doubling = Doubling::new(program);
    let stream = program.target.create_stream(StreamPriority::Normal)?;
    let result = doubling.results(program, 1000);
    doubling.stall(program);
    let there = start_copy(Tensor::from(numbers(count, 3)), &program.target, CopyOptions::default())?;
    let there = there.wait_on(&stream)?;
    let view = transship_wgpu::wgpu_view(&there)?;
    let part = Part { source: &view.buffer, first: view.offset / 4 + count as u64 - 1000, count: 1000 };
    doubling.submit(program, &part, &result, 0);
    let doubled: Vec<f32> = numbers(count, 3)[count - 1000..].iter().map(|number| number * 2.0).collect();
    assert_eq!(program.read(&result), doubled);
    Ok(())
}

pub(crate) fn a_copy_behind_a_shader_sees_what_it_wrote() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    let source = doubling.results(&program, 1000);
    let bytes: Vec<u8> = numbers(1000, 4).iter().flat_map(|number| number.to_le_bytes()).collect();
    program.queue.write_buffer(&source, 0, &bytes);
    let result = doubling.results(&program, 1000);
    let tensor = transship_wgpu::wrap_buffer(&program.target, result.clone(), 0, &[1000], DType::F32)?;
    doubling.submit(&program, &Part { source: &source, first: 0, count: 1000 }, &result, TURNS);
    let doubled: Vec<f32> = numbers(1000, 4).iter().map(|number| number * 2.0).collect();
    assert_eq!(floats(tensor), doubled);
    Ok(())
}

pub(crate) fn memory_is_not_reused_before_a_shader_has_read_it() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    let result = doubling.results(&program, 1000);
    let there = crate::bed::up(Tensor::from(numbers(1000, 5)), &program.target);
    let view = transship_wgpu::wgpu_view(&there)?;
    doubling.submit(
        &program,
        &Part { source: &view.buffer, first: view.offset / 4, count: 1000 },
        &result,
        TURNS,
    );
    drop((view, there));
    for seed in 6..26 {
        let others = start_copy(Tensor::from(numbers(1000, seed)), &program.target, CopyOptions::default())?;
        drop(others);
    }
    let doubled: Vec<f32> = numbers(1000, 5).iter().map(|number| number * 2.0).collect();
    assert_eq!(program.read(&result), doubled);
    Ok(())
}

pub(crate) fn a_position_covers_submissions_of_the_program() -> Outcome {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    let stream = program.target.create_stream(StreamPriority::Normal)?;
    stream.synchronize()?;
    let shader = doubling.stall(&program);
    let behind = stream.record()?;
    let waited = behind.wait(Some(Duration::from_millis(1)))?;
    let now = wgpu::PollType::Wait { submission_index: Some(shader.clone()), timeout: Some(Duration::ZERO) };
    // GL may be done at once.
    assert!(!waited || program.device.poll(now).is_ok(), "reached before the shader is done");
    assert!(behind.wait(None)?);
    let now = wgpu::PollType::Wait { submission_index: Some(shader), timeout: Some(Duration::ZERO) };
    assert!(program.device.poll(now).is_ok(), "the shader is not done");
    Ok(())
}
