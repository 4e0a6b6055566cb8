//! Copies out of registered memory, and when it is unlocked.

use std::sync::{Arc, Mutex};
use std::thread;
use std::thread::ThreadId;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use transship_core::{DType, Device, MemoryKind, TimedWait, runtime_stats, start_copy, start_copy_into};

use crate::hostile::Flag;
use crate::support::{bytes_of, eventually, late, no_violations, on, two, with};
use crate::{Lender, MIB, calls, numbers, options, spaced, whole};

#[test]
fn large_tensors_and_views_of_registered_memory_are_copied_as_they_lie() {
    let (late, device) = late();
    let memory = device.register(Lender::new(3 * MIB, || {})).unwrap();
    assert_eq!((memory.nbytes(), memory.memory_kind()), (3 * MIB, MemoryKind::Pinned));
    let tensor = memory.tensor(DType::F32, &[2, MIB / 4], MIB).unwrap();
    assert_eq!(tensor.memory_kind().unwrap(), MemoryKind::Pinned);
    let expected = tensor.to_bytes().unwrap();
    let rows = [tensor.narrow(0, 0, 1).unwrap(), tensor.narrow(0, 1, 1).unwrap()];
    let copy = start_copy((tensor, rows), &device, options().packing(false)).unwrap();
    let (there, report) = copy.wait_with_report().unwrap();
    assert_eq!((report.pinned_staging_bytes, report.pageable_staging_bytes), (0, 0), "{report}");
    assert!(!report.background, "{report}");
    assert!(bytes_of(&there.0) == expected);
    assert!([&there.1[0], &there.1[1]].map(bytes_of).concat() == expected);
    drop(memory);
    eventually("the memory is unregistered", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

/// Small ones are packed, as those in any other memory.
#[test]
fn an_arena_of_small_tensors_is_packed() {
    let (late, device) = late();
    let memory = device.register(Lender::new(528 * 256, || {})).unwrap();
    let leaves: Vec<_> =
        (0..528).map(|index| memory.tensor(DType::I64, &[32], index * 256).unwrap()).collect();
    let expected = numbers(528 * 256);
    let (there, report) = start_copy(leaves.clone(), &device, options()).unwrap().wait_with_report().unwrap();
    assert_eq!((report.packed, report.copies), (528, 1), "{report}");
    assert!(there.iter().flat_map(bytes_of).collect::<Vec<_>>() == expected);
    // One run of memory is one copy.
    let options = options().packing(false);
    let (there, report) = start_copy(leaves, &device, options).unwrap().wait_with_report().unwrap();
    assert_eq!((report.alone, report.pinned_staging_bytes), (528, 0), "{report}");
    assert!(there.iter().flat_map(bytes_of).collect::<Vec<_>>() == expected);
    no_violations(&late);
}

/// Mutant: every driver takes it for page-locked.
#[test]
fn every_device_of_the_driver_reads_it_and_no_other() {
    let (late, first, second) = two(LateConfig::new("late"));
    let (other, stranger) = with(LateConfig::new("stranger"));
    let memory = first.register(Lender::new(MIB, || {})).unwrap();
    for (device, staged) in [(&first, false), (&second, false), (&stranger, true)] {
        let (there, report) =
            start_copy(whole(&memory), device, options()).unwrap().wait_with_report().unwrap();
        assert_eq!(report.pinned_staging_bytes > 0, staged, "{device:?}: {report}");
        assert!(bytes_of(&there) == numbers(MIB));
    }
    no_violations(&late);
    no_violations(&other);
}

/// The memory stays locked, and its owner alive, until the last copy out of it is over.
///
/// Mutants: it is unlocked while a copy out of it is in flight; its owner goes on the thread that unlocks.
#[test]
fn it_is_unlocked_behind_its_last_copy_and_then_its_owner_goes() {
    let (late, device) = late();
    let seen: Arc<Mutex<Option<(usize, ThreadId)>>> = Arc::default();
    let lender = {
        let (seen, late) = (seen.clone(), late.clone());
        Lender::new(MIB, move || {
            *seen.lock().unwrap() = Some((calls(&late, Call::Unregister), thread::current().id()));
        })
    };
    let memory = device.register(lender).unwrap();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    drop(memory);
    drop(copy);
    thread::sleep(Duration::from_millis(20));
    assert!(calls(&late, Call::Unregister) == 0 && seen.lock().unwrap().is_none(), "a copy is in flight");
    late.release();
    eventually("the owner goes", || seen.lock().unwrap().is_some());
    let (unregistered, owners) = seen.lock().unwrap().unwrap();
    assert_eq!(unregistered, 1, "the owner goes before its memory is unlocked");
    let unlocking = late.calls().iter().find(|made| made.call == Call::Unregister).unwrap().thread;
    assert!(unlocking != thread::current().id() && owners != unlocking && owners != thread::current().id());
    no_violations(&late);
}

/// The driver may take its time to unlock memory: whoever lets go of it does not wait for that, and its owner does.
///
/// Mutants: memory is unlocked by whoever lets go of it; its owner goes before it is unlocked.
#[test]
fn letting_go_waits_for_nothing() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    late.clear_calls();
    late.hold(0);
    drop(memory);
    assert!(late.blocking_calls_here().is_empty());
    eventually("it is being unlocked", || late.is_holding());
    thread::sleep(Duration::from_millis(50));
    assert!(!gone.is_raised(), "the owner goes before its memory is unlocked");
    late.let_go();
    eventually("the owner goes", || gone.is_raised());

    let held = device.register_vec(spaced(1_u8, MIB), &[MIB]).unwrap();
    late.clear_calls();
    drop(held);
    assert!(late.blocking_calls_here().is_empty());
    eventually("the vector is unlocked", || calls(&late, Call::Unregister) == 1);
    no_violations(&late);
}

/// Where it lies for the kernels of another device is not asked: that device stages what comes down.
///
/// Mutant: any device writes to it.
#[test]
fn another_device_writes_to_it_through_staging() {
    let (late, first, second) = two(LateConfig::new("late"));
    let mut held = first.register_vec(spaced(0_u8, MIB), &[MIB]).unwrap();
    for (device, staged) in [(&first, false), (&second, true)] {
        let there = on(device, &numbers(MIB));
        let copy = start_copy_into(there, held, options()).unwrap();
        let (filled, report) = copy.wait_with_report().unwrap();
        assert_eq!(report.pinned_staging_bytes > 0, staged, "{device:?}: {report}");
        held = filled;
        assert!(held.to_bytes().unwrap() == numbers(MIB));
        held.as_mut_bytes().unwrap().fill(0);
    }
    no_violations(&late);
}

/// Cancelled, dropped, timed out: what is in flight stays.
#[test]
fn copies_that_nobody_waits_for_keep_it_locked() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(2 * MIB, move || flag.raise())).unwrap();
    late.stall();
    let copies = [(); 3].map(|()| start_copy(whole(&memory), &device, options()).unwrap());
    drop(memory);
    let [cancelled, dropped, late_one] = copies;
    drop(cancelled.cancel());
    drop(dropped);
    let TimedWait::Pending(pending) = late_one.wait_timeout(Duration::from_millis(5)).unwrap() else {
        panic!("the device stands still");
    };
    assert!(calls(&late, Call::Unregister) == 0 && !gone.is_raised());
    late.release();
    assert!(bytes_of(&pending.wait().unwrap()) == numbers(2 * MIB));
    eventually("the owner goes", || gone.is_raised());
    assert_eq!(calls(&late, Call::Unregister), 1);
    no_violations(&late);
}

#[test]
fn it_outlives_every_handle_of_its_device() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    drop(device);
    assert!(whole(&memory).to_bytes().unwrap() == numbers(MIB));
    let again = Device::from_backend(late.backend(0)).unwrap();
    let (_, report) = start_copy(whole(&memory), &again, options()).unwrap().wait_with_report().unwrap();
    assert_eq!(report.pinned_staging_bytes, 0, "{report}");
    drop((memory, again));
    eventually("the owner goes", || gone.is_raised());
    no_violations(&late);
}

/// What cannot be unlocked could be taken for locked memory by whoever allocates there next.
///
/// Mutant: memory that the driver has not unlocked is freed.
#[test]
fn what_cannot_be_unlocked_is_leaked_and_counted() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    let leaked = runtime_stats().leaked_bytes;
    late.fail_next(Call::Unregister, 0);
    drop(memory);
    eventually("it is counted", || runtime_stats().leaked_bytes >= leaked + MIB as u64);
    assert!(calls(&late, Call::Unregister) == 1 && !gone.is_raised());
    no_violations(&late);
}

#[test]
fn a_lost_device_leaks_what_it_may_still_read() {
    let (late, device) = late();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = device.register(Lender::new(MIB, move || flag.raise())).unwrap();
    late.stall();
    let copy = start_copy(whole(&memory), &device, options()).unwrap();
    let leaked = runtime_stats().leaks;
    late.break_device();
    late.release();
    assert!(copy.wait().is_err());
    assert!(whole(&memory).to_bytes().unwrap() == numbers(MIB), "the host reads it all the same");
    drop(memory);
    eventually("it is counted", || runtime_stats().leaks > leaked);
    assert!(!gone.is_raised());
}
