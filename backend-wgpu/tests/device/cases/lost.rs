//! A device that is destroyed: every copy ends with an error, nothing hangs.

use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use transship_core::{CopyOptions, CopyPolicy, DType, Device, Error, StreamPriority, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, numbers, timed, up};
use crate::shader::Doubling;

const PATIENCE: Duration = Duration::from_secs(10);

/// The root of an error: copies wrap those of the copies before them.
fn is_lost(error: &Error) -> bool {
    match error {
        Error::CopyFailed(inner) => is_lost(inner),
        other => matches!(other, Error::DeviceLost { .. }),
    }
}

/// On a busy machine all of them may have come to their end before the device is destroyed: then it is tried again.
pub(crate) fn destroyed_with_copies_in_flight() -> Outcome {
    const ATTEMPTS: usize = 20;
    for _ in 0..ATTEMPTS {
        if destroyed_with_copies()? > 0 {
            return Ok(());
        }
    }
    Err("the queue stood still while the device was destroyed".into())
}

/// How many copies failed that were in flight when the device was destroyed.
fn destroyed_with_copies() -> Result<usize, Failed> {
    let program = Program::new();
    let doubling = Doubling::new(&program);
    let there = up(Tensor::from(numbers(1000, 1)), &program.target);
    let start =
        |count, target: &Device| start_copy(Tensor::from(numbers(count, 2)), target, CopyOptions::default());
    let large = start(8 << 20, &program.target)?;
    // Workers stage it: no thread may write to mapped memory when the device goes.
    let begin = Instant::now();
    while large.report().copied_bytes < 4 * (8 << 20) {
        assert!(begin.elapsed() < PATIENCE, "{}", large.report());
        std::thread::yield_now();
    }
    doubling.stall(&program);
    let small = (0..4).map(|_| start(1000, &program.target)).collect::<Result<Vec<_>, _>>()?;
    let back = start_copy(there.clone(), &Device::host(), CopyOptions::default())?;
    let awaited = start(1000, &program.target)?;
    program.device.destroy();
    let (ends, time) = timed(|| {
        let mut ends: Vec<_> = small.into_iter().map(|handle| handle.wait().map(drop)).collect();
        ends.push(large.wait().map(drop));
        ends.push(back.wait().map(drop));
        ends.push(pollster::block_on(awaited).map(drop));
        ends
    });
    assert!(time < PATIENCE, "{time:?}");
    for end in &ends {
        assert!(end.as_ref().err().is_none_or(|failed| is_lost(failed.error())), "{end:?}");
    }
    let failed = ends.iter().filter(|end| end.is_err()).count();
    println!("{failed} of {} copies in flight failed, within {time:?}", ends.len());
    all_fail(&program, there)?;
    Ok(failed)
}

pub(crate) fn destroyed_while_idle() -> Outcome {
    let program = Program::new();
    let there = up(Tensor::from(numbers(1000, 1)), &program.target);
    program.device.destroy();
    all_fail(&program, there)
}

/// Where the host writes small tensors itself, nothing is submitted that could tell of it.
pub(crate) fn destroyed_where_the_host_writes() -> Outcome {
    let program = Program::on_own_device();
    let there = up(Tensor::from(numbers(1000, 1)), &program.target);
    program.device.destroy();
    all_fail(&program, there)
}

/// No mapping tells of it.
pub(crate) fn destroyed_before_copies_without_staging() -> Outcome {
    let program = Program::new();
    let there = up(Tensor::from(numbers(1000, 1)), &program.target);
    program.device.destroy();
    let always = CopyOptions::default().policy(CopyPolicy::Always);
    let failed = start_copy(there, &program.target, always).and_then(|handle| handle.wait());
    let failed = failed.expect_err("the device is destroyed");
    assert!(is_lost(failed.error()), "{failed}");
    let program = Program::new();
    program.device.destroy();
    let zeros = Tensor::zeros(&[1000], DType::F32, &program.target);
    assert!(zeros.as_ref().is_err_and(is_lost), "{zeros:?}");
    Ok(())
}

/// A tensor that was handed out before its copy was done is not to be bound if that never is.
pub(crate) fn no_view_of_what_was_never_filled() -> Outcome {
    // The copy may be done before the device is destroyed.
    for _ in 0..50 {
        let program = Program::new();
        let stream = program.target.create_stream(StreamPriority::Normal)?;
        let handle = start_copy(Tensor::from(numbers(1 << 20, 1)), &program.target, CopyOptions::default())?;
        let there = handle.wait_on(&stream)?;
        program.device.destroy();
        assert!(program.target.synchronize().is_err_and(|error| is_lost(&error)));
        match transship_wgpu::wgpu_view(&there) {
            Ok(_) => assert!(there.is_ready()?),
            Err(error) if is_lost(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err("not one copy was in flight when its device was destroyed".into())
}

/// Up, down, on the device, small and large, and whatever else there is to ask.
fn all_fail(program: &Program, there: Tensor) -> Outcome {
    let always = CopyOptions::default().policy(CopyPolicy::Always);
    for _ in 0..2 {
        let copies = [
            (Tensor::from(numbers(100, 1)), &program.target),
            (Tensor::from(numbers(8 << 20, 1)), &program.target),
            (there.clone(), &Device::host()),
            (there.clone(), &program.target),
        ];
        for (tensor, target) in copies {
            let from = tensor.device_id()?;
            let started = start_copy(tensor, target, always.clone());
            let failed = started.and_then(|handle| handle.wait()).err();
            let failed = failed.unwrap_or_else(|| panic!("from {from} to {}: no error", target.id()));
            assert!(is_lost(failed.error()), "from {from} to {}: {failed}", target.id());
        }
    }
    let asked = program.target.synchronize().err();
    assert!(asked.as_ref().is_some_and(is_lost), "{asked:?}");
    let stream = program.target.create_stream(StreamPriority::Normal)?;
    assert!(stream.synchronize().is_err());
    Ok(())
}

pub(crate) fn results_outlive_a_destroyed_device() -> Outcome {
    let read = read_after_the_end(CopyOptions::default())?;
    assert_eq!(read?, numbers(100_000, 1), "they own their bytes");
    Ok(())
}

/// Those that stay in memory of the device must not be read once that is freed.
pub(crate) fn mapped_results_of_a_destroyed_device_are_errors() -> Outcome {
    // SAFETY: they are read when the device is gone, and not while it goes.
    let read = read_after_the_end(unsafe { CopyOptions::default().mapped_results() })?;
    assert!(read.is_err(), "memory that is freed was read");
    Ok(())
}

/// Copies numbers up and down, destroys the device, and reads what came down.
fn read_after_the_end(options: CopyOptions) -> Result<transship_core::Result<Vec<f32>>, Failed> {
    let program = Program::new();
    let there = up(Tensor::from(numbers(100_000, 1)), &program.target);
    let back = start_copy(there, &Device::host(), options)?.wait()?;
    assert_eq!(back.to_vec::<f32>()?, numbers(100_000, 1));
    program.device.destroy();
    program.device.poll(wgpu::PollType::Poll)?;
    Ok(back.to_vec::<f32>())
}
