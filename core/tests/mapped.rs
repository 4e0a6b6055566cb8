//! What goes up through mapped blocks: in several, which threads fill beside each other, unless many copies run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::thread;

use late_backend::{LateConfig, LateHandle};
use support::{bytes_of, given_time, in_time, no_violations, with};
use transship_core::{CopyOptions, CopyReport, Device, Tensor, start_copy};

const MIB: usize = 1 << 20;

fn mapped() -> (LateHandle, Device) {
    with(LateConfig { mapped_staging: true, ..LateConfig::new("late") })
}

/// So many that no block begins as another one does.
fn numbers(bytes: usize, seed: usize) -> Vec<u8> {
    let some: Vec<u8> = (0..65_521).map(|at| (at * 7 + at / 251 + seed) as u8).collect();
    let mut all = some.repeat(bytes / some.len() + 1);
    all.truncate(bytes);
    all
}

/// What the copy of a tensor comes to.
fn goes_up(device: &Device, bytes: usize) -> CopyReport {
    let tensor = Tensor::from(numbers(bytes, bytes));
    let copy = start_copy(tensor, device, CopyOptions::default()).unwrap();
    let (there, report) = in_time(move || copy.wait_with_report().unwrap());
    assert!(bytes_of(&there) == numbers(bytes, bytes), "{bytes} bytes");
    report
}

/// catches: 487-mapped-blocks-are-not-cut
#[test]
fn a_tensor_of_some_mebibytes_goes_up_in_several_blocks() {
    let (late, device) = mapped();
    for (bytes, copies) in [(MIB, 1), (2 * MIB, 4), (4 * MIB, 8), (4 * MIB + 3, 9), (16 * MIB, 16)] {
        for _ in 0..3 {
            let report = goes_up(&device, bytes);
            assert_eq!(report.copies, copies, "{bytes} bytes: {report}");
        }
    }
    let report = goes_up(&device, 64 * MIB);
    assert!((17..=34).contains(&report.copies), "blocks of 2 to 4 MiB: {report}");
    no_violations(&late);
}

/// Each call for a mapped block would wait for those of other copies.
///
/// catches: 489-mapped-blocks-of-many-copies-are-cut
#[test]
fn many_copies_at_a_time_have_few_blocks_each() {
    given_time(|limit| {
        let (late, device) = mapped();
        device.set_staging_budget(16 * MIB).unwrap();
        late.stall();
        // More than there are blocks for, so that none ends. Who waits for a copy carries it.
        let carry = |bytes: usize| {
            let copy = start_copy(Tensor::from(numbers(bytes, 1)), &device, CopyOptions::default()).unwrap();
            thread::spawn(move || copy.wait_with_report().unwrap())
        };
        let others = [20 * MIB; 3].map(carry);
        // Until they have begun.
        thread::sleep(limit / 8);
        let last = carry(12 * MIB);
        thread::sleep(limit / 8);
        late.release();
        let (there, report) = in_time(move || last.join().unwrap());
        assert!(bytes_of(&there) == numbers(12 * MIB, 1));
        in_time(move || others.into_iter().for_each(|other| drop(other.join().unwrap())));
        no_violations(&late);
        // As large as they may be.
        (report.copies <= 6).then_some(())
    });
}
