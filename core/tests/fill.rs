//! Memory that the program fills itself: every byte arrives where its part says, within the budget, and what does not fit is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use support::{bytes_of, in_time, late, no_violations, with};
use transship_core::fill::{FillBlock, Filler, Part};
use transship_core::{Alignment, Cast, DType, Device, Error, ErrorKind};

const BUDGET: usize = if cfg!(miri) { 64 << 10 } else { 256 << 10 };

const PERIOD: [u8; 251] = {
    let mut bytes = [0; 251];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// So many bytes, counted from `first`. They are copied: Miri takes a minute to make each of them.
fn bytes_from(first: usize, count: usize) -> Vec<u8> {
    let lead = first % PERIOD.len();
    let mut bytes = PERIOD.repeat((lead + count).div_ceil(PERIOD.len()));
    bytes.truncate(lead + count);
    bytes.split_off(lead)
}

/// A block with so many bytes, counted from `first`.
fn filled(filler: &Filler, first: usize, bytes: usize) -> FillBlock {
    let mut block = filler.block().unwrap();
    block.append(&bytes_from(first, bytes)).unwrap();
    block
}

fn part(memory: usize, to_offset: usize, from_offset: usize, bytes: usize) -> Part {
    Part { memory, to_offset, from_offset, bytes }
}

/// Fills two memories from several threads, through blocks that begin in the one and end in the other.
fn fill(device: &Device) {
    let mut filler = Filler::new(device, BUDGET).unwrap();
    let block = filler.block_bytes();
    let (first, second) = (5 * block + block / 2, 6 * block);
    assert_eq!(filler.allocate(first, 1).unwrap(), 0);
    assert_eq!(filler.allocate(second, 2).unwrap(), 1);
    let of_block = |number: usize| match number {
        0..5 => vec![part(0, number * block, 0, block)],
        5 => vec![part(0, 5 * block, 0, block / 2), part(1, 0, block / 2, block / 2)],
        _ => vec![part(1, (number - 6) * block + block / 2, 0, (first + second - number * block).min(block))],
    };
    let filler = &filler;
    thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                for number in (thread..12).step_by(3) {
                    let bytes = (first + second - number * block).min(block);
                    filler.submit(filled(filler, number * block, bytes), &of_block(number)).unwrap();
                }
            });
        }
    });
}

/// The same, with the results.
fn check(device: &Device) {
    let bytes = if cfg!(miri) { BUDGET } else { 3 * BUDGET };
    let mut filler = Filler::new(device, BUDGET).unwrap();
    let (memory, block) = (filler.allocate(bytes, 2).unwrap(), filler.block_bytes());
    thread::scope(|scope| {
        for start in (0..bytes).step_by(block) {
            let filler = &filler;
            scope.spawn(move || {
                let filled = filled(filler, start, block);
                filler.submit(filled, &[part(memory, start, 0, block)]).unwrap();
            });
        }
    });
    let filled = filler.finish().unwrap();
    let all = filled.tensor(memory, 0, &[bytes], DType::U8).unwrap();
    assert_eq!(bytes_of(&all), bytes_from(0, bytes));
    let words = filled.tensor(memory, 1024, &[5, 3], DType::U32).unwrap();
    assert_eq!(bytes_of(&words), bytes_from(1024, 60));
    assert!(all.shares_memory_with(&words) && all.is_ready().unwrap());
}

fn configs() -> [LateConfig; 5] {
    let granule = Alignment::new(4).unwrap();
    [
        LateConfig::new("late"),
        LateConfig { seed: Some(3), polls_per_op: 3, ..LateConfig::new("late-slow") },
        LateConfig { copy_granularity: granule, mapped_staging: true, ..LateConfig::new("late-mapped") },
        LateConfig { pinned: false, ..LateConfig::new("late-unpinned") },
        LateConfig { staging_memory: 0, ..LateConfig::new("late-unstaged") },
    ]
}

#[test]
#[cfg_attr(miri, ignore = "it takes minutes there")]
fn every_byte_arrives_where_its_part_says() {
    for config in configs() {
        let (late, device) = with(config);
        in_time(move || {
            check(&device);
            fill(&device);
            device.drain().unwrap();
            no_violations(&late);
        });
    }
}

/// catches: 195-filling-takes-from-copies
#[test]
fn blocks_stay_within_the_budget_and_are_not_those_of_copies() {
    let (late, device) = late();
    in_time(move || {
        check(&device);
        assert_eq!(device.staging_usage().high_water, 0);
        let high_water = device.counters().staging_high_water as usize;
        let down = device.result_usage().high_water;
        assert!(high_water <= BUDGET + down, "{high_water} bytes");
        no_violations(&late);
    });
}

/// catches: 196-part-beyond-the-block, 197-part-beyond-the-memory
#[test]
fn a_part_that_does_not_fit_is_refused() {
    let granule = Alignment::new(4).unwrap();
    let (late, device) = with(LateConfig { copy_granularity: granule, ..LateConfig::new("late") });
    let mut filler = Filler::new(&device, BUDGET).unwrap();
    let memory = filler.allocate(1024, 1).unwrap();
    let end = usize::MAX - 3;
    for wrong in [
        part(memory, 0, 0, 516),
        part(memory, 0, 4, 512),
        part(memory, 0, end, 512),
        part(memory, 1020, 0, 8),
        part(memory, end, 0, 8),
        part(memory + 1, 0, 0, 8),
        part(usize::MAX, 0, 0, 8),
    ] {
        let refused = filler.submit(filled(&filler, 0, 512), &[part(memory, 0, 0, 4), wrong]);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{wrong:?}: {refused:?}");
    }
    for wrong in [part(memory, 2, 0, 8), part(memory, 0, 2, 8), part(memory, 0, 0, 6)] {
        let refused = filler.submit(filled(&filler, 0, 512), &[wrong]);
        assert!(matches!(refused, Err(Error::Misaligned { .. })), "{wrong:?}: {refused:?}");
    }
    let filled = filler.finish().unwrap();
    assert!(matches!(filled.tensor(memory, 1020, &[2], DType::F32), Err(Error::OutOfRange { .. })));
    assert!(matches!(filled.tensor(memory, 2, &[2], DType::F32), Err(Error::Misaligned { .. })));
    assert!(matches!(filled.tensor(1, 0, &[2], DType::F32), Err(Error::OutOfRange { .. })));
    no_violations(&late);
}

/// catches: 198-foreign-bytes-count
#[test]
fn only_what_was_written_to_the_block_counts() {
    let (_late, device) = late();
    let filler = Filler::new(&device, BUDGET).unwrap();
    let mut block = filler.block().unwrap();
    let most = block.capacity();
    assert_eq!((most, block.filled()), (64 << 10, 0));
    let appended = block.append_with(10, |room| {
        assert_eq!(room.len(), 10);
        let bytes = room.iter_mut().take(4).map(|byte| byte.write(7)).count();
        // SAFETY: they were written just now.
        Ok::<_, Infallible>(unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), bytes) })
    });
    assert_eq!((appended, block.filled()), (Ok(4), 4));
    let appended =
        block.append_with(10, |_| Ok::<_, Infallible>(Box::leak(Box::new([1, 2, 3])).as_mut_slice()));
    assert_eq!((appended, block.filled()), (Ok(0), 4));
    assert_eq!(block.append_with(10, |_| Err::<&mut [u8], _>("no")), Err("no"));
    assert!(matches!(block.append(&vec![0; most]), Err(Error::OutOfRange { start: 4, .. })));
    assert!(matches!(block.append_zeros(most - 3), Err(Error::OutOfRange { .. })));
    block.append_zeros(most - 4).unwrap();
    assert_eq!(
        (block.filled(), block.append_with(9, |room| Ok::<_, Infallible>(zeros(room)))),
        (most, Ok(0))
    );
}

/// catches: 447-cast-elements-not-counted
#[test]
fn elements_are_appended_cast() {
    let (handle, device) = late();
    let mut filler = Filler::new(&device, BUDGET).unwrap();
    let memory = filler.allocate(4096, 1).unwrap();
    let mut block = filler.block().unwrap();
    let values = [1.5_f32, -2.0, 1e30, f32::NEG_INFINITY];
    // At an odd place of the block, and from one.
    let bytes: Vec<u8> = [7].into_iter().chain(values.iter().flat_map(|value| value.to_le_bytes())).collect();
    block.append(&bytes[..1]).unwrap();
    block.append_cast(&Cast::new(DType::F32, DType::F64), &bytes[1..]).unwrap();
    block.append_cast(&Cast::new(DType::I16, DType::U8), &[255, 255, 0, 1, 9, 0]).unwrap();
    assert_eq!(block.filled(), 1 + 32 + 3);
    for (cast, bytes) in [(Cast::new(DType::F32, DType::F64), 6), (Cast::new(DType::F32, DType::I8), 4)] {
        let error = block.append_cast(&cast, &vec![0; bytes]).unwrap_err();
        assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
    }
    let room = block.capacity() - block.filled();
    let error = block.append_cast(&Cast::new(DType::U8, DType::I64), &vec![0; room / 8 + 1]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    assert_eq!(block.filled(), 36);
    filler.submit(block, &[part(memory, 0, 0, 36)]).unwrap();
    let found = bytes_of(&filler.finish().unwrap().tensor(memory, 0, &[36], DType::U8).unwrap());
    let doubles = values.iter().flat_map(|value| f64::from(*value).to_le_bytes());
    assert_eq!(found, [7].into_iter().chain(doubles).chain([0, 255, 9]).collect::<Vec<_>>());
    no_violations(&handle);
}

fn zeros(room: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    assert!(room.is_empty());
    &mut []
}

/// A driver takes what it is given for memory of its own.
///
/// catches: 218-blocks-of-other-fillers-taken
#[test]
fn a_block_goes_back_to_its_own_filler() {
    let ((late, device), (other_late, other)) = (late(), late());
    let mut filler = Filler::new(&device, BUDGET).unwrap();
    let memory = filler.allocate(1024, 1).unwrap();
    for stranger in [Filler::new(&other, BUDGET).unwrap(), Filler::new(&device, BUDGET).unwrap()] {
        let refused = filler.submit(filled(&stranger, 0, 1024), &[part(memory, 0, 0, 1024)]);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
    filler.submit(filled(&filler, 0, 1024), &[part(memory, 0, 0, 1024)]).unwrap();
    let tensor = filler.finish().unwrap().tensor(memory, 0, &[1024], DType::U8).unwrap();
    assert_eq!(bytes_of(&tensor), bytes_from(0, 1024));
    no_violations(&late);
    no_violations(&other_late);
}

#[test]
fn a_filler_that_is_dropped_ends_what_it_has_begun() {
    for config in configs() {
        let (late, device) = with(config);
        let mut filler = Filler::new(&device, BUDGET).unwrap();
        let memory = filler.allocate(1024, 1).unwrap();
        let block = filled(&filler, 0, 1024);
        late.stall_for(Duration::from_millis(20));
        in_time(move || {
            filler.submit(block, &[part(memory, 0, 0, 1024)]).unwrap();
            drop(filler);
            device.drain().unwrap();
            assert_eq!(device.counters().device_bytes, 0);
            no_violations(&late);
        });
    }
}

#[test]
fn what_the_driver_refuses_comes_back() {
    let (late, device) = late();
    let mut filler = Filler::new(&device, BUDGET).unwrap();
    late.fail_next(Call::Allocate, 0);
    assert_eq!(filler.allocate(1024, 1).map_err(|error| error.kind()), Err(ErrorKind::Driver));
    let memory = filler.allocate(1024, 1).unwrap();
    let block = filled(&filler, 0, 1024);
    late.fail_next(Call::Submit, 0);
    let failed = filler.submit(block, &[part(memory, 0, 0, 1024)]);
    assert_eq!(failed.map_err(|error| error.kind()), Err(ErrorKind::Driver));
    late.break_device();
    assert!(filler.finish().is_err());
    no_violations(&late);
}

#[test]
fn a_budget_below_a_block_and_memory_that_the_host_writes_are_refused() {
    let (_late, device) = late();
    assert!(matches!(Filler::new(&device, 65_535), Err(Error::InvalidOption { name: "budget", .. })));
    assert!(Filler::new(&device, 65_536).is_ok());
    let refused = Filler::new(&Device::host(), BUDGET).err().unwrap();
    assert!(refused.to_string().contains("as_mut_bytes"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
