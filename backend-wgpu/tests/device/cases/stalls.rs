//! A queue that stands still, and threads of the program that wait for it: nobody else waits.
//!
//! Except in the driver: llvmpipe runs shaders inside of a submission. There the next submission, whoever makes it, may
//! take as long as a few shaders, and the queue does not stand still behind it: a GPU shows more here.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use transship_core::{CopyOptions, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, floats, numbers, timed, up};
use crate::shader::Doubling;

/// What nobody should wait for, on a machine with other work: a small part of the stall.
const AT_ONCE: Duration = Duration::from_millis(30);

/// A program whose pools are warm, and a shader to stall it with.
fn program() -> (Program, Doubling) {
    let program = Program::new();
    program.target.prepare(1 << 20).unwrap();
    (0..4).for_each(|seed| drop(floats(up(Tensor::from(numbers(1000, seed)), &program.target))));
    let doubling = Doubling::new(&program);
    (program, doubling)
}

/// How long the stall takes by itself, and how long a submission behind it may take.
fn measure(program: &Program, doubling: &Doubling) -> (Duration, Duration) {
    let (_, stall) = timed(|| {
        doubling.stall(program);
        program.wait();
    });
    assert!(stall > 3 * AT_ONCE, "a stall of {stall:?} shows nothing");
    let buffer = program.buffer(256, wgpu::BufferUsages::COPY_DST);
    doubling.stall(program);
    let (_, bare) = timed(|| program.submit(|encoder| encoder.clear_buffer(&buffer, 0, None)));
    program.wait();
    (stall, if bare < AT_ONCE { AT_ONCE } else { 4 * stall.max(bare) })
}

pub(crate) fn starting_polling_and_dropping_do_not_wait_for_a_stalled_queue() -> Outcome {
    let (program, doubling) = program();
    let (stall, most) = measure(&program, &doubling);
    doubling.stall(&program);
    let start = || start_copy(Tensor::from(numbers(1000, 1)), &program.target, CopyOptions::default());
    let (handle, started) = timed(start);
    let mut handle = handle?;
    doubling.stall(&program);
    let (_, polling) =
        timed(|| Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    let (_, dropping) = timed(|| drop(handle));
    println!("during {stall:?}: start {started:?} (at most {most:?}), poll {polling:?}, drop {dropping:?}");
    assert!(started < most, "{started:?} during a stall of {stall:?}");
    assert!(
        polling < AT_ONCE && dropping < AT_ONCE,
        "{polling:?} and {dropping:?} during a stall of {stall:?}"
    );
    assert_eq!(floats(up(Tensor::from(numbers(1000, 2)), &program.target)), numbers(1000, 2));
    Ok(())
}

/// `PollType::Wait` of another thread holds a lock of wgpu's for as long as it takes.
pub(crate) fn a_poll_of_the_program_that_waits_stalls_nobody() -> Outcome {
    let (program, doubling) = program();
    let (stall, most) = measure(&program, &doubling);
    doubling.stall(&program);
    std::thread::scope(|scope| {
        scope.spawn(|| program.wait());
        std::thread::sleep(Duration::from_millis(5));
        let start = || start_copy(Tensor::from(numbers(1000, 1)), &program.target, CopyOptions::default());
        let (handle, started) = timed(start);
        let handle = handle?;
        let (_, asking) = timed(|| handle.is_ready());
        println!(
            "while another thread waits {stall:?}: start {started:?} (at most {most:?}), ask {asking:?}"
        );
        assert!(started < most && asking < AT_ONCE, "{started:?} and {asking:?}");
        assert_eq!(floats(handle.wait()?), numbers(1000, 1));
        Ok(())
    })
}

/// Fifty copies wait for the queue, each on a thread of its own, while the program submits.
pub(crate) fn submissions_of_the_program_are_not_stalled() -> Outcome {
    const WAITERS: usize = 50;
    let (program, doubling) = program();
    let (stall, most) = measure(&program, &doubling);
    doubling.stall(&program);
    let alone = submit_for(&program, stall / 4);
    program.wait();
    std::thread::scope(|scope| {
        let handles = (0..WAITERS).map(|seed| {
            let tensor = Tensor::from(numbers(1000, seed));
            start_copy(tensor, &program.target, CopyOptions::default())
        });
        for _ in 0..3 {
            doubling.stall(&program);
        }
        let shader = Some(doubling.stall(&program));
        for handle in handles {
            let handle = handle?;
            scope.spawn(|| handle.wait().map(drop).unwrap());
        }
        let beside = submit_for(&program, stall / 4);
        let now = wgpu::PollType::Wait { submission_index: shader, timeout: Some(Duration::ZERO) };
        let stands_still = program.device.poll(now).is_err();
        println!(
            "the program's submit during a stall of {stall:?}: at most {alone:?} alone, {beside:?} beside {WAITERS} waits"
        );
        let in_software = program.device.adapter_info().device_type == wgpu::DeviceType::Cpu;
        assert!(stands_still || in_software, "the stall was over before it showed anything");
        assert!(beside < most, "{beside:?} beside {WAITERS} waits, {alone:?} alone");
        Ok(())
    })
}

/// Submits again and again, and destroys a buffer each time; the longest time for that, which is one alone if somebody
/// holds a lock for as long as the queue stands still.
fn submit_for(program: &Program, time: Duration) -> Duration {
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    while start.elapsed() < time {
        let (_, time) = timed(|| {
            let buffer = program.buffer(256, wgpu::BufferUsages::COPY_DST);
            program.submit(|encoder| encoder.clear_buffer(&buffer, 0, None));
            buffer.destroy();
        });
        longest = longest.max(time);
        std::thread::sleep(Duration::from_micros(200));
    }
    longest
}
