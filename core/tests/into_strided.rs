//! Copies into memory that the caller holds with gaps: how many copies they are, and what they leave alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use late_backend::LateConfig;
use proptest::prelude::*;
use support::held::{MODES, into, options, refused, unsuited, up};
use support::{bytes_of, no_violations, on, with};
use transship_core::{Alignment, CopyOptions, CopyReport, DType, Device, Error, Tensor, start_copy_into};

fn scattering() -> LateConfig {
    LateConfig { gather: Some(24), gather_strided: Some(176), ..LateConfig::new("late") }
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index % 251) as u8).collect()
}

/// Columns of a matrix of 256 columns, whose other elements are 9.
fn columns(device: &Device, rows: usize, count: usize) -> Tensor {
    on(device, &vec![9; rows * 256]).reshape(&[rows, 256]).unwrap().narrow(1, 8, count).unwrap()
}

fn reported(value: Tensor, held: Tensor, options: CopyOptions) -> (Tensor, CopyReport) {
    start_copy_into(value, held, options).unwrap().wait_with_report().unwrap()
}

fn matrix(rows: usize, count: usize) -> Tensor {
    Tensor::from_vec(numbers(rows * count), &[rows, count]).unwrap()
}

/// A device that copies whole words, as wgpu does, and scatters so many bytes at the most.
fn scattering_words(largest: usize) -> LateConfig {
    LateConfig {
        copy_granularity: const { Alignment::new(4).unwrap() },
        mapped_staging: true,
        largest_strided: largest,
        largest_scattered_run: 20,
        fewest_scattered_runs: 50,
        ..LateConfig::new("late")
    }
}

/// 49 rows of 256 bytes and 20 of one more lie from the first to the last.
const SPAN: usize = 49 * 256 + 20;

/// catches: 501-scattered-however-far-apart
#[test]
fn a_kernel_makes_one_copy_of_it_and_without_one_each_run_is_a_copy() {
    for (config, runs) in [
        (scattering(), 1),
        (LateConfig::new("late"), 50),
        (scattering_words(SPAN), 1),
        (scattering_words(SPAN - 1), 50),
        (LateConfig { largest_scattered_run: 16, ..scattering_words(SPAN) }, 50),
        (LateConfig { fewest_scattered_runs: 51, ..scattering_words(SPAN) }, 50),
    ] {
        let by_kernel = u64::from(runs == 1);
        let (late, device) = with(config);
        let value = || matrix(50, 20);
        let (held, up) = reported(value(), columns(&device, 50, 20), options());
        assert_eq!((up.copies, up.gathered, up.copied_bytes), (runs, by_kernel, 1000), "{up}");
        assert_eq!(bytes_of(&held), numbers(1000));
        let (held, within) = reported(support::held::up(value(), &device), held, options());
        assert_eq!(
            (within.copies, within.gathered, within.copied_bytes),
            (runs, by_kernel, 1000),
            "{within}"
        );
        assert_eq!(bytes_of(&held), numbers(1000));
        no_violations(&late);
    }
}

/// The caller's thread makes few copies.
#[test]
fn many_runs_without_a_kernel_are_left_to_a_worker() {
    for (config, rows, background) in [
        (LateConfig::new("late"), 64, false),
        (LateConfig::new("late"), 65, true),
        (scattering(), 3000, false),
    ] {
        let (late, device) = with(config);
        // The second one finds an idle block.
        let (held, _) = reported(matrix(rows, 20), columns(&device, rows, 20), options());
        let (held, report) = reported(matrix(rows, 20), held, options());
        assert_eq!(report.background, background, "{report}");
        assert_eq!(bytes_of(&held), numbers(rows * 20));
        no_violations(&late);
    }
}

/// catches: 328-padding-around-elements-with-gaps
#[test]
fn elements_that_lie_between_two_tensors_of_a_packed_batch_are_no_padding() {
    let (late, device) = with(scattering());
    let packed = up(vec![Tensor::from(vec![9_u8; 100]), Tensor::from(vec![8_u8; 100])], &device);
    let first = packed[0].clone();
    drop(packed);
    let held = vec![
        first.as_strided(&[3], &[40], 0).unwrap(),
        first.narrow(0, 10, 8).unwrap(),
        first.narrow(0, 50, 8).unwrap(),
    ];
    drop(first);
    let value = vec![Tensor::from(vec![1_u8; 3]), Tensor::from(vec![2_u8; 8]), Tensor::from(vec![3_u8; 8])];
    let held = into(value, held, options());
    assert_eq!(held.iter().map(bytes_of).collect::<Vec<_>>(), [vec![1; 3], vec![2; 8], vec![3; 8]]);
    let all = bytes_of(&held[0].as_strided(&[81], &[1], 0).unwrap());
    let left: Vec<_> =
        (0..81).filter(|at| at % 40 != 0 && !(10..18).contains(at) && !(50..58).contains(at)).collect();
    assert!(left.iter().all(|at| all[*at] == 9), "{all:?}");
    no_violations(&late);
}

/// catches: 327-tensors-with-gaps-overlap
#[test]
fn tensors_with_gaps_that_overlap_others_are_refused() {
    let (late, device) = with(scattering());
    for (other, overlaps) in [(27, true), (28, false)] {
        let whole = on(&device, &vec![9; 10 * 256]).reshape(&[10, 256]).unwrap();
        let held = vec![
            whole.narrow(1, 8, 20).unwrap(),
            whole.narrow(0, 9, 1).unwrap().narrow(1, other, 4).unwrap(),
        ];
        drop(whole);
        let value = || vec![matrix(10, 20), matrix(1, 4)];
        if overlaps {
            let error = refused(value(), held);
            assert!(matches!(unsuited(&error), (1, "to copy into", Error::NotWritable { .. })), "{error}");
        } else {
            assert_eq!(bytes_of(&into(value(), held, options())[1]), numbers(4));
        }
    }
    no_violations(&late);
}

/// Deliberate bug: `Apart` looks at each with each, which takes 90 s.
#[test]
fn many_columns_are_begun_in_time_that_grows_with_them() {
    let zeros =
        |rows: usize, count: usize| Tensor::zeros(&[rows, count], DType::U8, &Device::host()).unwrap();
    let columns = |whole: Tensor| -> Vec<Tensor> {
        (0..whole.shape()[1]).map(|column| whole.narrow(1, column, 1).unwrap()).collect()
    };
    // Parts of rows behind each other, of two widths.
    let rows = |whole: Tensor| -> Vec<Tensor> {
        let part = |row| whole.narrow(0, 2 * row, 1 + row % 2).unwrap().narrow(1, row % 8, 2).unwrap();
        (0..whole.shape()[0] / 2).map(part).collect()
    };
    // Of every other column every other element.
    let of_two_strides = |whole: Tensor| -> Vec<Tensor> {
        let column = |index| whole.narrow(1, index, 1).unwrap().slice(0, 0..4, 1 + index % 2).unwrap();
        (0..whole.shape()[1]).map(column).collect()
    };
    let all = [columns(zeros(2, 30_000)), rows(zeros(60_000, 10)), of_two_strides(zeros(4, 30_000))];
    for held in all {
        let value: Vec<_> = held.iter().map(|held| matrix(held.shape()[0], held.shape()[1])).collect();
        let begin = Instant::now();
        let copy = start_copy_into(value, held, options()).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert!(copy.wait().unwrap().iter().all(|held| bytes_of(held) == numbers(held.nbytes())));
    }
}

/// catches: 329-runs-that-are-no-granules
#[test]
fn runs_that_are_no_whole_granules_are_refused() {
    let (late, device) =
        with(LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("late") });
    for (columns, stride, fits) in [(4, 12, true), (4, 10, false), (6, 12, false)] {
        let held = on(&device, &[9; 64]).as_strided(&[4, columns], &[stride, 1], 0).unwrap();
        let value = matrix(4, columns);
        if fits {
            assert_eq!(bytes_of(&into(value, held, options())), numbers(16));
        } else {
            let error = refused(vec![value], vec![held]);
            assert!(matches!(unsuited(&error).2, Error::Misaligned { alignment: 4, .. }), "{error}");
        }
    }
    no_violations(&late);
}

/// catches: 330-kernel-reads-ordinary-memory
#[test]
fn kernels_read_no_blocks_that_are_not_pinned() {
    for config in [scattering(), LateConfig { staging_memory: 0, ..scattering() }] {
        for pinned in [true, false] {
            let (late, device) = with(config.clone());
            let options = options().pinned_staging(pinned);
            let (held, report) = reported(matrix(50, 20), columns(&device, 50, 20), options);
            assert_eq!(bytes_of(&held), numbers(1000), "{report}");
            assert_eq!(report.gathered, u64::from(pinned && config.staging_memory > 0), "{report}");
            no_violations(&late);
        }
    }
}

/// A destination: shape, strides, type, and a shift of its first element.
fn layouts() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, DType, usize)> {
    let dims = prop::collection::vec((1..7_usize, 0..4_usize), 0..5);
    let types = prop::sample::select(vec![DType::U8, DType::F16, DType::F32, DType::F64, DType::Complex128]);
    (dims, types, 0..20_usize, any::<u64>()).prop_map(|(dims, dtype, shift, order)| {
        // Steps that grow, each with a gap behind it, handed out to the dimensions in any order.
        let mut numbers = (0..dims.len()).collect::<Vec<_>>();
        numbers.sort_by_key(|dim| order.rotate_left(7 * *dim as u32));
        let (mut strides, mut extent) = (vec![0; dims.len()], 1);
        for dim in numbers {
            let (count, gap) = dims[dim];
            strides[dim] = extent + gap;
            extent += (count - 1) * strides[dim];
            extent += gap;
        }
        (dims.iter().map(|(count, _)| *count).collect(), strides, dtype, shift)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 60 }))]

    /// Up, within the device, between two and down, in segments that are cut anywhere: the elements arrive, and nothing else changes.
    #[test]
    fn any_strides_without_overlap_are_filled((shape, strides, dtype, shift) in layouts(), pace in 4096..7000_usize, mode in 0..2_usize) {
        let (late, device) = with(scattering());
        let (other, elsewhere) = with(LateConfig::new("other"));
        let count = shape.iter().product::<usize>();
        let span = shape.iter().zip(&strides).map(|(count, stride)| (count - 1) * stride).sum::<usize>() + 1;
        let (size, all) = (dtype.size(), span + shift + 3);
        let value = || Tensor::from_owner(numbers(count * size), dtype, &shape).unwrap();
        let options = || options().background(MODES[mode]).max_bytes_in_flight(pace);
        for to in [&device, &elsewhere, &Device::host()] {
            for from in [&Device::host(), &device, &elsewhere] {
                let mut whole = Tensor::empty(&[all], dtype, &Device::host()).unwrap();
                whole.as_mut_bytes().unwrap().fill(0xEE);
                let whole = if to.is_host() { whole } else { up(whole, to) };
                let held = whole.as_strided(&shape, &strides, shift).unwrap();
                drop(whole);
                let source = if from.is_host() { value() } else { up(value(), from) };
                let held = start_copy_into(source, held, options()).unwrap().wait().unwrap();
                prop_assert_eq!(bytes_of(&held), numbers(count * size));
                let around = bytes_of(&held.as_strided(&[span], &[1], 0).unwrap());
                let untouched = around.iter().filter(|byte| **byte == 0xEE).count();
                prop_assert_eq!(untouched, (span - count) * size + numbers(count * size).iter().filter(|byte| **byte == 0xEE).count());
            }
        }
        no_violations(&late);
        no_violations(&other);
    }
}
