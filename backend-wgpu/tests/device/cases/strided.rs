//! Strided tensors and casts, by a kernel.

use transship_core::{
    Cast, CopyOptions, CopyPolicy, CopyReport, DType, Device, Tensor, start_copy, start_copy_into,
};
use wgpu::BufferUsages;

use super::Outcome;
use crate::bed::{Program, down, numbers, up};

type Views = fn(&Tensor) -> transship_core::Result<Vec<Tensor>>;

/// A shader that is none would be a device without the kernel.
///
/// catches: 428-a-shader-that-is-none
pub(crate) fn devices_with_the_default_limits_have_the_kernel() -> Outcome {
    let largest = Program::new().target.limits().largest_strided;
    assert!(largest >= 100 << 20, "{largest}");
    Ok(())
}

pub(crate) fn two_bindings_are_no_kernel() -> Outcome {
    let program = Program::with_bindings(2);
    assert_eq!(program.target.limits().largest_strided, 0);
    comes_over(&program, &[up_bytes(&program, 100_000)?], columns, &Device::host(), |report, tensors| {
        assert_eq!(report.gathered, 0, "{report}");
        assert!(tensors.iter().all(|tensor| !tensor.is_contiguous()), "copied as they lie");
    })
}

/// Much more than the kernel writes at a time, in parts that begin and end anywhere.
///
/// catches: 424-first-run-of-a-later-part, 425-second-half-of-an-element, 430-items-wider-than-runs
pub(crate) fn large_ones_come_in_rounds() -> Outcome {
    let program = Program::with_largest_binding(256 << 10);
    let tensors: Vec<_> =
        (0..5).map(|number| up_bytes(&program, 200_000 + number)).collect::<Result<_, _>>()?;
    for target in [Device::host(), program.target.clone()] {
        comes_over(&program, &tensors, columns, &target, |report, tensors| {
            assert_eq!(report.gathered, tensors.len() as u64, "{report}");
            assert_eq!(report.copied_bytes, report.payload_bytes, "{report}");
            assert!(tensors.iter().all(Tensor::is_contiguous));
        })?;
    }
    // Behind an odd number of words, and what is no neighbour: rounds end within elements.
    let floats = numbers(300_001, 2);
    let there = up(vec![tensors[0].clone(), Tensor::from(floats.clone())], &program.target);
    let words = there[0].as_strided(&[3, 4], &[9, 1], 0)?;
    let between = there[0].narrow(0, 0, 10_000)?;
    let cast = CopyOptions::default().cast(Cast::new(DType::F32, DType::F64)).packing(false);
    let back = start_copy(vec![words, between, there[1].clone()], &Device::host(), cast)?.wait()?;
    assert!(back[2].to_vec::<f64>()? == floats.into_iter().map(f64::from).collect::<Vec<_>>());
    Ok(())
}

/// Tensors with gaps are copied as they lie where they are larger than a binding; those in one run are cast.
///
/// catches: 426-larger-buffers-are-bound-whole, 429-more-read-than-is-bound
pub(crate) fn views_of_buffers_larger_than_a_binding() -> Outcome {
    let program = Program::with_largest_binding(512 << 10);
    let (numbers, there) = (numbers(1 << 18, 3), up(Tensor::from(numbers(1 << 18, 3)), &program.target));
    let rows = |tensor: &Tensor, rows: usize| {
        let first = tensor.shape()[0] / 256 - rows;
        tensor.reshape(&[1 << 10, 1 << 8])?.narrow(0, first, rows)?.narrow(1, 3, 7)
    };
    let host = Tensor::from(numbers);
    for (count, is_gathered) in [(400, true), (600, false)] {
        let (back, report) = came_down(rows(&there, count)?, CopyOptions::default())?;
        assert_eq!(
            (back.is_contiguous(), report.gathered),
            (is_gathered, u64::from(is_gathered)),
            "{report}"
        );
        assert!(back.to_bytes()? == rows(&host, count)?.to_bytes()?, "{count}");
    }
    let cast = CopyOptions::default().cast(Cast::new(DType::F32, DType::F16));
    let expected = start_copy(host, &Device::host(), cast.clone())?.wait()?.to_bytes()?;
    assert!(came_down(there, cast)?.0.to_bytes()? == expected);
    Ok(())
}

/// Buffers of the program that kernels cannot read are copied to one that they can.
///
/// catches: 427-buffers-that-kernels-cannot-read, 431-numbers-of-another-place, 432-read-from-the-start-of-the-whole
pub(crate) fn buffers_without_storage_are_gathered_and_cast() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let bytes: Vec<u8> = (0..4096).map(|at| (at * 7 % 251) as u8).collect();
    let buffer = program.buffer(4096, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    program.queue.write_buffer(&buffer, 0, &bytes);
    let there = transship_wgpu::wrap_buffer(&program.target, buffer, 8, &[50, 81], DType::U8)?;
    let host = Tensor::from(bytes[8..8 + 50 * 81].to_vec()).reshape(&[50, 81])?;
    let odd = |tensor: &Tensor| tensor.narrow(1, 5, 33)?.narrow(0, 1, 49);
    let (back, report) = came_down(odd(&there)?, CopyOptions::default())?;
    assert_eq!((report.gathered, back.to_bytes()?), (1, odd(&host)?.to_bytes()?), "{report}");
    let cast = CopyOptions::default().cast(Cast::new(DType::U8, DType::F32).scaled(0.3, 1.7));
    let expected = start_copy(host, &Device::host(), cast.clone())?.wait()?.to_bytes()?;
    assert_eq!(came_down(there, cast)?.0.to_bytes()?, expected);
    Ok(())
}

/// Memory that is filled keeps what lies beside the tensors: in blocks it is nobody's, in buffers it may be.
///
/// catches: 423-what-lies-between-is-overwritten
pub(crate) fn what_lies_between_tensors_is_left_alone() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let source = up_bytes(&program, 10_000)?;
    let views = |tensor: &Tensor| {
        (0..6).map(|number| tensor.reshape(&[100, 100])?.narrow(1, number, 8)).collect::<Result<Vec<_>, _>>()
    };
    let held = up(Tensor::from(vec![77_u8; 6 * 1000]), &program.target);
    let parts = held.split(0, &[1000; 6])?;
    let (odd, even): (Vec<_>, Vec<_>) =
        parts.into_iter().enumerate().partition(|(number, _)| number % 2 == 1);
    let take = |parts: Vec<(usize, Tensor)>| {
        parts
            .into_iter()
            .map(|(_, part)| part.narrow(0, 0, 800)?.reshape(&[100, 8]))
            .collect::<Result<Vec<_>, _>>()
    };
    let views: Vec<_> = views(&source)?.into_iter().step_by(2).collect();
    let expected: Vec<_> = down(views.clone()).iter().map(Tensor::to_bytes).collect::<Result<_, _>>()?;
    let filled = start_copy_into(views, take(even)?, CopyOptions::default())?.wait()?;
    for (tensor, expected) in down(filled).iter().zip(expected) {
        assert!(tensor.to_bytes()? == expected);
    }
    for tensor in down(take(odd)?) {
        assert!(tensor.to_bytes()?.iter().all(|byte| *byte == 77), "a neighbour was overwritten");
    }
    Ok(())
}

pub(crate) fn copies_of_several_threads_do_not_mix() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    std::thread::scope(|scope| {
        let program = &program;
        let threads = [3, 4, 5, 6].map(|seed| {
            scope.spawn(move || {
                let tensor = [up_bytes(program, 30_000 + seed)?];
                let host = Device::host();
                (0..10).try_for_each(|_| comes_over(program, &tensor, columns, &host, |_, _| {}))
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

fn up_bytes(program: &Program, count: usize) -> transship_core::Result<Tensor> {
    Ok(up(Tensor::from((0..count).map(|at| (at * 31 + at / 256) as u8).collect::<Vec<_>>()), &program.target))
}

/// Rows of odd sizes at odd places, of odd lengths.
fn columns(tensor: &Tensor) -> transship_core::Result<Vec<Tensor>> {
    let len = tensor.numel();
    Ok(vec![
        tensor.as_strided(&[len / 101, 90], &[101, 1], 3)?,
        tensor.as_strided(&[len / 8, 5], &[8, 1], 0)?,
        tensor.as_strided(&[2, len / 3 - 1], &[1, 3], 1)?,
        tensor.as_strided(&[len / 64, 32], &[64, 1], len % 64)?,
    ])
}

/// Copies what `take` gives of `tensors`, and compares it with what it gives of them on the host.
fn comes_over(
    program: &Program,
    tensors: &[Tensor],
    take: Views,
    to: &Device,
    check: impl Fn(&CopyReport, &[Tensor]),
) -> Outcome {
    let taken = |tensors: &[Tensor]| -> transship_core::Result<Vec<Tensor>> {
        Ok(tensors.iter().map(take).collect::<Result<Vec<_>, _>>()?.concat())
    };
    let expected = taken(&down(tensors.to_vec()))?;
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let (copied, report) = start_copy(taken(tensors)?, to, options)?.wait_with_report()?;
    check(&report, &copied);
    assert!(to.is_host() || copied.iter().all(|tensor| tensor.device_id().ok() == Some(program.target.id())));
    for (number, (tensor, expected)) in down(copied).iter().zip(&expected).enumerate() {
        assert!(tensor.to_bytes()? == expected.to_bytes()?, "{number} of shape {:?}", tensor.shape());
    }
    Ok(())
}

fn came_down(tensor: Tensor, options: CopyOptions) -> Result<(Tensor, CopyReport), libtest_mimic::Failed> {
    Ok(start_copy(tensor, &Device::host(), options)?.wait_with_report()?)
}
