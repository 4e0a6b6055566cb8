//! Many small buffers that come down together.

use transship_core::{CopyOptions, CopyReport, DType, Device, Tensor, start_copy, start_copy_into};
use wgpu::BufferUsages;

use super::Outcome;
use crate::bed::{Program, down, eventually, numbers};

const ROUNDS: usize = 3;

/// catches: 191-bytes-in-front-of-a-view-not-counted, 194-table-of-another-batch
pub(crate) fn odd_sizes_and_views_come_down_by_a_kernel() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    for count in [16, 40, 63, 200, 1100] {
        let batch = Batch::new(&program, count)?;
        for _ in 0..ROUNDS {
            batch.comes_down(|report| {
                assert_eq!(report.gathered, count as u64 * 2, "{report}");
                assert!(report.copies <= 2 + report.gathered / 14, "{report}");
            })?;
        }
    }
    // Two shapes in turn: each has its own table.
    let (one, other) = (Batch::new(&program, 40)?, Batch::new(&program, 37)?);
    for _ in 0..ROUNDS {
        one.comes_down(|_| {})?;
        other.comes_down(|_| {})?;
    }
    Ok(())
}

pub(crate) fn batches_of_several_threads_do_not_mix() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let batches = [20, 33, 41, 70].map(|count| Batch::new(&program, count));
    std::thread::scope(|scope| {
        let threads = batches.map(|batch| {
            scope.spawn(move || {
                let batch = batch?;
                (0..20).try_for_each(|_| batch.comes_down(|_| {}))
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok(())
}

/// A device with the default limits has too few bindings for a kernel.
pub(crate) fn few_bindings_are_no_kernel() -> Outcome {
    let program = Program::new();
    Batch::new(&program, 40)?
        .comes_down(|report| assert_eq!((report.gathered, report.copies), (0, 80), "{report}"))
}

/// catches: 193-storage-not-asked-for
pub(crate) fn buffers_without_storage_are_copied() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let plain = BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let wrap = |number: usize| {
        // The last 20 of 60, and some between.
        let usage = if number >= 40 || number % 17 == 5 { plain } else { plain | BufferUsages::STORAGE };
        let buffer = program.buffer(64, usage);
        let bytes: Vec<u8> = numbers(16, number).iter().flat_map(|number| number.to_le_bytes()).collect();
        program.queue.write_buffer(&buffer, 0, &bytes);
        transship_wgpu::wrap_buffer(&program.target, buffer, 4, &[15], DType::F32)
    };
    let tensors = (0..60).map(wrap).collect::<Result<Vec<_>, _>>()?;
    let back = down(tensors);
    for (number, tensor) in back.iter().enumerate() {
        assert_eq!(tensor.to_vec::<f32>()?, numbers(16, number)[1..], "{number}");
    }
    Ok(())
}

/// Small views of buffers that are larger than a binding may be, the same one several times.
///
/// catches: 192-bound-from-the-start
pub(crate) fn views_of_buffers_larger_than_a_binding_come_down() -> Outcome {
    let program = Program::with_largest_binding(512 << 10);
    let numbers = numbers(1 << 18, 3);
    let large = start_copy(Tensor::from(numbers.clone()), &program.target, CopyOptions::default())?.wait()?;
    let starts = (0..40).map(|number| (number * 6551) % ((1 << 18) - 40)).chain([0, 0, (1 << 18) - 40]);
    let starts: Vec<usize> = starts.collect();
    let views = starts.iter().map(|start| large.narrow(0, *start, 40)).collect::<Result<Vec<_>, _>>()?;
    let (back, report) = came_down(views)?;
    // Two of them are the first one once more.
    assert_eq!(report.gathered, 41, "{report}");
    for (start, tensor) in starts.iter().zip(&back) {
        assert_eq!(tensor.to_vec::<f32>()?, numbers[*start..start + 40], "{start}");
    }
    Ok(())
}

/// catches: 484-bound-anew-each-time
pub(crate) fn the_same_tensors_are_bound_once() -> Outcome {
    // Twelve sources a launch: 80 take 7.
    let program = Program::with_bindings(14);
    // Another one first, for which staging is allocated.
    Batch::new(&program, 41)?.comes_down(|_| {})?;
    let batch = Batch::new(&program, 40)?;
    let first = calls_until_started(&program, &batch)?;
    for _ in 0..ROUNDS {
        assert_eq!(calls_until_started(&program, &batch)?, first - 7);
        batch.comes_down(|_| {})?;
    }
    Ok(())
}

/// More of them in turn than launches are kept for, and what else uses the memory of these.
///
/// catches: 483-buffers-of-one-shape-are-one, 485-bindings-outlive-their-table
pub(crate) fn batches_of_one_shape_are_told_apart() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let columns =
        start_copy(Tensor::from(numbers(64 * 40, 5)), &program.target, CopyOptions::default())?.wait()?;
    let columns: Vec<_> =
        (0..40).map(|column| columns.as_strided(&[64], &[40], column)).collect::<Result<_, _>>()?;
    for count in [1, 4, 6] {
        let batches =
            (0..count).map(|seed| Batch::seeded(&program, 40, seed)).collect::<Result<Vec<_>, _>>()?;
        for batch in batches.iter().chain(&batches).chain(batches.iter().rev()) {
            batch.comes_down(|_| {})?;
            batch.comes_down(|_| {})?;
            for (column, tensor) in down(columns.clone()).iter().enumerate() {
                let expected = numbers(64 * 40, 5).into_iter().skip(column).step_by(40);
                assert_eq!(tensor.to_vec::<f32>()?, expected.collect::<Vec<_>>(), "{column}");
            }
            batch.comes_down(|_| {})?;
        }
    }
    Ok(())
}

/// The same tensors with other numbers in them, and in another order.
pub(crate) fn what_is_bound_is_read_anew() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let there =
        |seed: usize| (0..40).map(|number| Tensor::from(numbers(80, seed + number))).collect::<Vec<_>>();
    let options = || CopyOptions::default().packing(false);
    let mut tensors = start_copy(there(0), &program.target, options())?.wait()?;
    for seed in 1..5 {
        tensors = start_copy_into(there(seed), tensors, options())?.wait()?;
        tensors.reverse();
        for (number, tensor) in down(tensors.clone()).iter().rev().enumerate() {
            assert_eq!(tensor.to_vec::<f32>()?, numbers(80, seed + number), "{number}");
        }
    }
    Ok(())
}

/// catches: 482-bindings-hold-memory
pub(crate) fn what_is_bound_goes_with_its_tensors() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let come_and_go = || {
        let wrap = |_| {
            let buffer = program.buffer(64 << 10, BufferUsages::COPY_SRC | BufferUsages::STORAGE);
            transship_wgpu::wrap_buffer(&program.target, buffer, 0, &[16 << 10], DType::F32)
        };
        let (_, report) = came_down((0..40).map(wrap).collect::<Result<_, _>>()?)?;
        assert_eq!(report.gathered, 40, "{report}");
        Ok::<_, libtest_mimic::Failed>(())
    };
    come_and_go()?;
    let allocated = || {
        program.wait();
        let report = program.device.generate_allocator_report();
        report.map(|report| report.total_allocated_bytes).ok_or("it does not say what is allocated any more")
    };
    let before = allocated()?;
    come_and_go()?;
    assert!(
        eventually(|| allocated() == Ok(before)),
        "{:?} bytes are allocated, {before} before",
        allocated()
    );
    Ok(())
}

/// On GL, for one.
pub(crate) fn what_is_allocated_is_not_said() -> Option<String> {
    let report = Program::with_limits_of_the_adapter().device.generate_allocator_report();
    report.is_none().then(|| "the API does not say what is allocated".to_owned())
}

/// What is kept for the next batch goes when it is asked to.
pub(crate) fn trim_gives_back_what_gathers() -> Outcome {
    let program = Program::with_limits_of_the_adapter();
    let before = program.target.backend().counters().device_bytes;
    let batch = Batch::new(&program, 40)?;
    batch.comes_down(|_| {})?;
    drop(batch);
    assert!(program.target.backend().counters().device_bytes > before);
    program.target.trim();
    assert_eq!(program.target.backend().counters().device_bytes, before);
    Ok(())
}

/// Tensors of odd sizes, each in a buffer of its own, and for each a view of it that begins anywhere; some of no bytes.
struct Batch {
    bytes: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

impl Batch {
    fn new(program: &Program, count: usize) -> Result<Self, libtest_mimic::Failed> {
        Self::seeded(program, count, 0)
    }

    /// The same with other bytes for each seed.
    fn seeded(program: &Program, count: usize, seed: usize) -> Result<Self, libtest_mimic::Failed> {
        let size = |number: usize| if number % 50 == 49 { 60_001 } else { number * 37 % 601 + 2 };
        let bytes = |number: usize| {
            (0..size(number)).map(|at| (seed * 101 + number * 31 + at * 7) as u8).collect::<Vec<_>>()
        };
        let mut bytes: Vec<Vec<u8>> = (0..count).map(bytes).collect();
        let tensors = bytes.iter().cloned().map(Tensor::from).collect::<Vec<_>>();
        let options = CopyOptions::default().packing(false);
        let mut tensors = start_copy(tensors, &program.target, options)?.wait()?;
        for number in 0..count {
            let start = 1 + number * 13 % (bytes[number].len() - 1);
            let count = bytes[number].len() - start;
            tensors.push(tensors[number].narrow(0, start, count)?);
            bytes.push(bytes[number][start..].to_vec());
        }
        for number in [0, 7, 2 * count] {
            tensors.insert(number, tensors[0].narrow(0, 0, 0)?);
            bytes.insert(number, Vec::new());
        }
        Ok(Self { bytes, tensors })
    }

    fn comes_down(&self, check: impl Fn(&CopyReport)) -> Outcome {
        let (back, report) = came_down(self.tensors.clone())?;
        check(&report);
        for (number, (tensor, expected)) in back.iter().zip(&self.bytes).enumerate() {
            assert!(tensor.to_bytes()? == *expected, "{number} of {} bytes", expected.len());
        }
        Ok(())
    }
}

/// How many calls of the driver it takes until the copy is submitted.
fn calls_until_started(program: &Program, batch: &Batch) -> Result<u64, libtest_mimic::Failed> {
    let before = program.target.counters().driver_calls;
    let handle = start_copy(batch.tensors.clone(), &Device::host(), CopyOptions::default())?;
    let calls = program.target.counters().driver_calls - before;
    handle.wait()?;
    Ok(calls)
}

fn came_down(tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, CopyReport), libtest_mimic::Failed> {
    let handle = start_copy(tensors, &Device::host(), CopyOptions::default())?;
    Ok(handle.wait_with_report()?)
}
