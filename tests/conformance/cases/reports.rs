//! The report of a copy, and the counters of a device and of the program.

use libtest_mimic::Failed;
use transship::{Tensor, start_copy};

use crate::backends::Need::OwnMemory;
use crate::bed::Bed;
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(display_is_a_table),
        case!(figures_add_up),
        case!(figures_are_those_of_the_device).needs(OwnMemory).alone(),
        case!(before_and_after_the_end),
        case!(steady_state_costs_one_submission).needs(OwnMemory).alone(),
    ]
}

fn display_is_a_table(bed: &Bed) -> Result<(), Failed> {
    let (_, report) = bed.copy(bed.batch(10), &bed.device, bed.options())?;
    let table = report.to_string();
    let lines: Vec<&str> = table.lines().collect();
    let head = format!("copy of 10 tensors, {} bytes, to {}", report.payload_bytes, bed.device.id());
    assert_eq!(lines[0], head);
    for (line, title) in
        lines[1..].iter().zip(["tensors", "target", "driver", "staging", "time", "since call"])
    {
        assert!(line.trim_start().starts_with(title), "{title} is missing in:\n{table}");
    }
    assert!(lines[1].contains("10 packed") && !table.contains("not yet"), "{table}");
    Ok(())
}

fn figures_add_up(bed: &Bed) -> Result<(), Failed> {
    let alias = bed.bytes(64);
    let resident = if bed.device.is_host() { None } else { Some(bed.up(bed.bytes(10))?) };
    let sent = (bed.batch(10), bed.bytes(1 << 20), bed.bytes(0), [alias.clone(), alias], resident);
    let small: usize = sent.0.iter().map(Tensor::nbytes).sum();
    let residents = usize::from(sent.4.is_some());
    let (_, report) = bed.copy(sent, &bed.device, bed.options())?;
    assert_eq!((report.packed, report.alone, report.empty, report.aliased), (11, 1, 1, 1), "{report}");
    assert_eq!((report.resident, report.leaves), (residents, 14 + residents), "{report}");
    assert_eq!(report.payload_bytes, (small + (1 << 20) + 64) as u64, "{report}");
    assert_eq!(report.chunks, 2, "{report}");
    assert!(report.chunk_bytes >= report.payload_bytes, "{report}");
    assert_eq!(report.target, bed.device.id());
    Ok(())
}

fn figures_are_those_of_the_device(bed: &Bed) -> Result<(), Failed> {
    let before = bed.device.counters();
    let (there, up) = bed.copy((bed.batch(10), bed.bytes(9 << 20)), &bed.device, bed.options())?;
    let between = bed.device.counters();
    assert_eq!(up.submissions, between.submissions - before.submissions, "{up}");
    assert_eq!(up.copies, between.copies - before.copies, "{up}");
    assert_eq!(up.copied_bytes, between.bytes_up - before.bytes_up, "{up}");
    assert!(up.copied_bytes >= up.payload_bytes, "{up}");
    let (_, down) = bed.copy(there, &bed.host, bed.options())?;
    let after = bed.device.counters();
    assert_eq!(down.copies, after.copies - between.copies, "{down}");
    assert_eq!(down.copied_bytes, after.bytes_down - between.bytes_down, "{down}");
    assert!(down.copied_bytes >= down.payload_bytes, "{down}");
    Ok(())
}

fn before_and_after_the_end(bed: &Bed) -> Result<(), Failed> {
    let held = bed.hold();
    let handle = start_copy(bed.batch(10), &bed.device, bed.options())?;
    if held.holds() {
        assert!(handle.report().done_after.is_none() && handle.report().to_string().contains("not yet"));
    }
    drop(held);
    let (_, report) = handle.wait_with_report()?;
    let (submitted, done) = (report.submitted_after.expect("submitted"), report.done_after.expect("done"));
    assert!(submitted <= done, "{report}");
    Ok(())
}

/// Invariant: a warm small copy allocates nothing, creates nothing and wakes nobody. Up, the host may write by itself.
fn steady_state_costs_one_submission(bed: &Bed) -> Result<(), Failed> {
    let submissions = if bed.device.limits().largest_open > 0 { 0 } else { 1 };
    bed.device.prepare(64 << 10)?;
    let batches: Vec<_> = (0..20).map(|_| bed.batch(16)).collect();
    for batch in &batches[..10] {
        bed.down(bed.up(batch.clone())?)?;
    }
    for batch in batches.into_iter().skip(10) {
        let (before, program) = (bed.device.counters(), transship::runtime_stats());
        let there = start_copy(batch, &bed.device, bed.options())?.wait()?;
        let (middle, in_between) = (bed.device.counters(), transship::runtime_stats());
        assert_eq!(middle.submissions - before.submissions, submissions);
        assert_eq!(middle.copies - before.copies, submissions);
        let back = start_copy(there, &bed.host, bed.options())?.wait()?;
        let (after, program_after) = (bed.device.counters(), transship::runtime_stats());
        assert_eq!(after.submissions - middle.submissions, 1);
        assert_eq!(after.copies - middle.copies, 1);
        assert_eq!(after.staging_allocations, before.staging_allocations);
        assert_eq!(after.events_created, before.events_created);
        assert_eq!(after.streams_created, before.streams_created);
        assert_eq!((in_between, program_after), (program, program), "a thread was woken");
        drop(back);
    }
    Ok(())
}
