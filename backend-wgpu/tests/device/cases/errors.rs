//! Errors of wgpu: ours as errors of the copy, the program's to the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::backend::{CopyOp, Direction, HostSide};
use transship_core::{CopyOptions, CopyPolicy, DType, Device, Error, StreamPriority, Tensor, start_copy};
use wgpu::BufferUsages;

use super::Outcome;
use crate::bed::{Program, floats, numbers, up};

/// A device whose uncaptured errors are counted.
fn counting() -> (Program, Arc<AtomicUsize>) {
    let program = Program::new();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    program.device.on_uncaptured_error(Arc::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    (program, count)
}

fn destroyed_tensor(program: &Program) -> Tensor {
    let buffer = program.buffer(4000, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let tensor = transship_wgpu::wrap_buffer(&program.target, buffer.clone(), 0, &[1000], DType::F32);
    buffer.destroy();
    tensor.unwrap()
}

pub(crate) fn the_programs_handler_sees_its_own_errors_only() -> Outcome {
    let (program, count) = counting();
    let failed = start_copy(destroyed_tensor(&program), &Device::host(), CopyOptions::default());
    assert!(failed.and_then(|handle| handle.wait()).is_err());
    let huge = Tensor::from(vec![5_u8]).as_strided(&[1 << 33], &[0], 0)?;
    let failed = start_copy(huge, &program.target, CopyOptions::default());
    assert!(failed.and_then(|handle| handle.wait()).is_err());
    assert_eq!(count.load(Ordering::Relaxed), 0, "an error of a copy went to the program's handler");
    // A mappable buffer for shaders is not allowed.
    program.buffer(16, BufferUsages::MAP_READ | BufferUsages::STORAGE);
    assert_eq!(count.load(Ordering::Relaxed), 1, "the program's handler is not the program's any more");
    Ok(())
}

pub(crate) fn a_destroyed_buffer_is_an_error_and_the_next_copy_works() -> Outcome {
    let program = Program::new();
    for _ in 0..20 {
        let failed = start_copy(destroyed_tensor(&program), &Device::host(), CopyOptions::default());
        let failed = failed.and_then(|handle| handle.wait()).expect_err("its memory is gone");
        assert!(matches!(failed.error(), Error::Driver { .. }), "{failed}");
        assert!(failed.error().to_string().contains("destroyed"), "{failed}");
    }
    let always = CopyOptions::default().policy(CopyPolicy::Always);
    let failed = start_copy(destroyed_tensor(&program), &program.target, always);
    let failed = failed.and_then(|handle| handle.wait()).expect_err("its memory is gone");
    assert!(failed.error().to_string().contains("destroyed"), "{failed}");
    assert_eq!(floats(up(Tensor::from(numbers(1000, 1)), &program.target)), numbers(1000, 1));
    // The blocks of the copies that failed are used again.
    assert!(program.target.counters().staging_allocations <= 16, "{:?}", program.target.counters());
    Ok(())
}

/// A submission that fails has nothing in flight: its block is the host's again.
pub(crate) fn a_failed_submission_leaves_its_block_mapped() -> Outcome {
    let program = Program::new();
    let (backend, tensor) = (program.target.backend(), destroyed_tensor(&program));
    let stream = backend.create_stream(StreamPriority::Normal)?;
    for _ in 0..20 {
        let block = backend.allocate_staging(4096, Direction::Upload)?;
        let from = HostSide::Staging(&*block, 0);
        let up = CopyOp::Upload { from, to: tensor.buffer()?, to_offset: 0, bytes: 4000 };
        // SAFETY: the range lies within both, and both live until the call returns: nothing is in flight then.
        let failed = unsafe { backend.submit(&[up], &*stream) };
        assert!(matches!(failed, Err(Error::Driver { .. })), "{failed:?}");
        assert!(block.window().is_some(), "the block is not mapped");
    }
    Ok(())
}

/// The program's device has the default limits: 256 MiB a buffer.
pub(crate) fn more_than_a_buffer_holds_is_too_large() -> Outcome {
    let program = Program::new();
    let limit = program.device.limits().max_buffer_size as usize;
    assert_eq!(program.target.limits().largest_buffer, limit);
    let over = Tensor::from(vec![5_u8]).as_strided(&[limit + 1], &[0], 0)?;
    let failed = start_copy(over, &program.target, CopyOptions::default());
    let failed = failed.and_then(|handle| handle.wait()).expect_err("a byte too much");
    let says = matches!(failed.error(), Error::TooLarge { limit: named, .. } if *named == limit);
    assert!(says, "{failed}");
    let made = Tensor::zeros(&[limit + 4], DType::U8, &program.target);
    assert!(matches!(made, Err(Error::TooLarge { .. })), "{made:?}");
    let fits = Tensor::from(vec![5_u8]).as_strided(&[limit], &[0], 0)?;
    drop(up(fits, &program.target));
    Ok(())
}
