//! Memory with gaps that the program holds, filled by a kernel.

use transship_core::{CopyOptions, CopyReport, DType, Tensor, start_copy_into};
use wgpu::BufferUsages;

use super::Outcome;
use crate::bed::{Program, down, floats, numbers, up};

/// Fills `held` with numbers from the host and from the device, and looks at what is there then.
fn fills(
    program: &Program,
    mut held: Vec<Tensor>,
    check: impl Fn(CopyReport),
) -> transship_core::Result<Vec<Tensor>> {
    let shapes: Vec<_> = held.iter().map(|view| view.shape().to_vec()).collect();
    let values = |seed: usize| -> transship_core::Result<Vec<Tensor>> {
        let value = |(index, shape): (usize, &Vec<usize>)| {
            Tensor::from(numbers(shape.iter().product(), seed + index)).reshape(shape)
        };
        shapes.iter().enumerate().map(value).collect()
    };
    for (seed, from_device) in [(3, false), (11, true)] {
        let values = values(seed)?;
        let from = if from_device { up(values.clone(), &program.target) } else { values.clone() };
        let (filled, report) = start_copy_into(from, held, CopyOptions::default())?.wait_with_report()?;
        check(report);
        for (view, value) in down(filled.clone()).into_iter().zip(values) {
            assert!(floats(view) == floats(value));
        }
        held = filled;
    }
    Ok(held)
}

/// Columns of a matrix of zeros of 128 columns, `each` of them for each of four tensors that lie 32 apart.
fn columns(program: &Program, rows: usize, each: usize) -> transship_core::Result<Vec<Tensor>> {
    let whole = Tensor::zeros(&[rows, 128], DType::F32, &program.target)?;
    (0..4).map(|number| whole.narrow(1, 32 * number, each)).collect()
}

/// What lies between the columns is still zeros.
fn gaps_are_left(filled: &[Tensor], each: usize) -> Outcome {
    let first = filled.first().ok_or("nothing was filled")?;
    let rows = first.shape()[0];
    let around = floats(down(first.as_strided(&[(rows - 1) * 128 + each], &[1], 0)?));
    let is_gap = |at: usize| at % 32 >= each;
    assert!(around.iter().enumerate().all(|(at, number)| !is_gap(at) || *number == 0.0));
    Ok(())
}

/// catches: 507-all-read-from-the-start
pub(crate) fn columns_are_filled_by_few_launches() -> Outcome {
    let program = Program::new();
    let filled = fills(&program, columns(&program, 900, 17)?, |report| {
        assert_eq!(report.gathered, 4, "{report}");
        assert!(report.copies <= 5, "{report}");
    })?;
    gaps_are_left(&filled, 17)
}

/// More than the kernel has room for at a time, out of buffers larger than a binding.
///
/// catches: 508-each-round-fills-the-beginning
pub(crate) fn large_ones_are_filled_in_rounds() -> Outcome {
    let program = Program::with_largest_binding(512 << 10);
    let held = [columns(&program, 1000, 31)?, columns(&program, 1000, 30)?].concat();
    let filled = fills(&program, held, |report| assert!(report.gathered >= 8, "{report}"))?;
    gaps_are_left(&filled[..4], 31)?;
    gaps_are_left(&filled[4..], 30)?;
    let whole = Tensor::zeros(&[3000, 128], DType::F32, &program.target)?;
    let held = [100, 1500].map(|row| whole.narrow(0, row, 700)?.narrow(1, 5, 20));
    drop(whole);
    fills(&program, held.into_iter().collect::<Result<_, _>>()?, |report| {
        assert_eq!(report.gathered, 2, "{report}");
    })?;
    Ok(())
}

/// Buffers of the program that kernels cannot write are filled by a copy for each run.
///
/// catches: 509-kernels-write-any-buffer
pub(crate) fn buffers_without_storage_are_filled() -> Outcome {
    let program = Program::new();
    let buffer = program.buffer(50 * 512, BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let whole = transship_wgpu::wrap_buffer(&program.target, buffer, 0, &[50, 128], DType::F32)?;
    let held = vec![whole.narrow(1, 3, 7)?, whole.narrow(1, 70, 1)?];
    drop(whole);
    fills(&program, held, |report| {
        assert_eq!((report.gathered, report.copied_bytes), (0, 50 * (7 + 1) * 4), "{report}");
        assert!(report.copies >= 100 && report.background, "{report}");
    })?;
    Ok(())
}

/// wgpu reads and writes a buffer by one launch only where the kernel says so for all of it.
pub(crate) fn columns_of_one_buffer_are_filled_out_of_others() -> Outcome {
    let program = Program::new();
    let whole = Tensor::from(numbers(600 * 128, 5)).reshape(&[600, 128])?;
    let mut parts = up(whole.clone(), &program.target).split(0, &[300, 300])?;
    let (held, from) = (parts.remove(1).narrow(1, 9, 40)?, parts.remove(0).narrow(1, 50, 40)?);
    let filled = start_copy_into(from, held, CopyOptions::default())?.wait()?;
    assert!(floats(down(filled)) == floats(whole.narrow(0, 0, 300)?.narrow(1, 50, 40)?));
    Ok(())
}
