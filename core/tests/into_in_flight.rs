//! Copies into memory that the caller holds: writes come behind all that used it, and until they are done, or known to have failed, it is
//! the copy's alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::mem;
use std::time::Duration;

use late_backend::Call;
use support::held::{MODES, batch, bytes, options, ordinary, refused, unsuited, up};
use support::{Kernel, bytes_of, eventually, in_time, late, no_violations, on};
use transship_core::backend::StreamPriority;
use transship_core::{
    BackgroundWork, Cancelled, DType, Device, Error, Tensor, TimedWait, start_copy, start_copy_into,
};

#[test]
fn tensors_are_not_ready_while_they_are_filled_and_owned_by_the_copy_alone() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let there = up(batch(1), &device);
    late.stall();
    let filling = start_copy_into(batch(2), there, options()).unwrap();
    assert!(!filling.is_ready().unwrap());
    let there = filling.wait_on(&stream).unwrap();
    assert!(there.iter().filter(|tensor| tensor.nbytes() > 0).all(|tensor| !tensor.is_ready().unwrap()));
    assert!(matches!(there[0].to_bytes(), Err(Error::NotReady)));
    let kernel = Kernel::launch(&there[3], &stream);
    drop(there);
    late.release();
    assert_eq!(kernel.result(), bytes_of(&batch(2)[3]));
    eventually("all memory is given back", || {
        device.synchronize().unwrap();
        device.counters().device_bytes == 0
    });
    no_violations(&late);
}

#[test]
fn a_handle_that_is_dropped_or_forgotten_frees_nothing_in_flight() {
    for forget in [true, false] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let (there, below) = (up(batch(1), &device), ordinary(&batch(1)));
        let source = up(batch(2), &device);
        late.stall();
        let filling = start_copy_into(batch(3), there, options()).unwrap();
        let landing = start_copy_into(source, below, options()).unwrap();
        if forget {
            mem::forget((filling, landing));
        } else {
            drop((filling, landing));
        }
        late.release();
        assert_eq!(bytes_of(&on(&device, &[3; 8])), [3; 8]);
        device.drain().unwrap();
        no_violations(&late);
    }
}

/// Both structures, of a copy that failed or was stopped: the one cannot be read, and another copy fills it.
#[track_caller]
fn fills_once_more(device: &Device, (value, destination): (Option<Vec<Tensor>>, Option<Vec<Tensor>>)) {
    let (value, mut destination) =
        (value.expect("the value comes back"), destination.expect("so does the other"));
    let filled = destination.iter().filter(|tensor| tensor.nbytes() > 0);
    filled.for_each(|tensor| assert!(matches!(tensor.is_ready(), Err(Error::CopyFailed(_))), "{tensor:?}"));
    let expected = bytes(&value);
    device.synchronize().unwrap();
    let mut filled = None;
    eventually("nothing holds it any more", || {
        match start_copy_into(value.clone(), mem::take(&mut destination), options()) {
            Ok(copy) => filled = Some(copy.wait().unwrap()),
            Err(failed) => {
                let shared = matches!(unsuited(failed.error()).2, Error::NotWritable { .. });
                assert!(shared, "{failed}");
                destination = failed.into_both().1.unwrap();
            }
        }
        filled.is_some()
    });
    assert_eq!(bytes(&filled.unwrap()), expected);
}

#[test]
fn a_failed_submission_leaves_both_structures_usable() {
    for when in MODES {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let (one, other) = (up(batch(1), &device), ordinary(&batch(1)));
        for (value, destination) in [(batch(2), one), (up(batch(2), &device), other)] {
            late.fail_next(Call::Submit, 0);
            let failed =
                in_time(move || start_copy_into(value, destination, options().background(when))?.wait());
            let failed = failed.unwrap_err();
            assert!(failed.error().to_string().contains("told to fail"), "{failed}");
            fills_once_more(&device, failed.into_both());
        }
        no_violations(&late);
    }
}

#[test]
fn a_copy_that_is_late_or_cancelled_leaves_both_structures_usable() {
    for down in [false, true] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let structures = || match down {
            true => (up(batch(2), &device), ordinary(&batch(1))),
            false => (batch(2), up(batch(1), &device)),
        };
        let (value, destination) = structures();
        late.stall();
        let soon = options().deadline(Duration::from_millis(20));
        let copy = start_copy_into(value, destination, soon).unwrap();
        let failed = in_time(move || copy.wait()).unwrap_err();
        assert!(matches!(failed.error(), Error::DeadlineExceeded { .. }), "{failed}");
        let (mut value, destination) = failed.into_both();
        // By the time it is late, its sources are let go of if the host has read them.
        value = value.or_else(|| Some(batch(2)));
        late.release();
        fills_once_more(&device, (value, destination));

        let (value, destination) = structures();
        late.stall();
        let copy = start_copy_into(value, destination, options()).unwrap();
        let Cancelled { value, into, .. } = in_time(move || copy.cancel());
        late.release();
        device.synchronize().unwrap();
        fills_once_more(&device, (value, into));
        no_violations(&late);
    }
}

/// Down into ordinary memory the last step is the host's: nobody may read what it has not put there yet.
#[test]
fn a_copy_that_is_cancelled_when_it_is_done_is_done() {
    let (late, device) = late();
    let copy = start_copy_into(up(batch(2), &device), ordinary(&batch(1)), options()).unwrap();
    eventually("it is done", || copy.is_ready().unwrap());
    let Cancelled { into, .. } = copy.cancel();
    assert_eq!(bytes(&into.unwrap()), bytes(&batch(2)));
    no_violations(&late);
}

/// catches: 112-uses-of-a-destination-not-waited-for
#[test]
fn a_copy_comes_behind_the_work_of_streams_that_its_destination_was_handed_to() {
    for source_on_device in [false, true] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let there = on(&device, &[5; 8]);
        let value = if source_on_device { on(&device, &[6; 8]) } else { Tensor::from(vec![6_u8; 8]) };
        late.stall_stream(&**stream.backend_stream());
        there.record_stream(&stream).unwrap();
        let kernel = Kernel::launch(&there, &stream);
        let copy = start_copy_into(value, there, options()).unwrap();
        assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it has run before the work");
        late.release();
        assert_eq!(kernel.result(), [5; 8], "the work has read what was there before");
        assert_eq!(bytes_of(&copy.wait().unwrap()), [6; 8]);
        no_violations(&late);
    }
}

/// The host writes what a stream of a device still reads.
#[test]
fn the_host_waits_for_streams_that_its_memory_was_handed_to() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let there = Tensor::empty_pinned(&[8], DType::U8, &device).unwrap();
    there.record_stream(&stream).unwrap();
    late.stall();
    let never = options().background(BackgroundWork::Never);
    let failed = start_copy_into(Tensor::from(vec![6_u8; 8]), there, never).unwrap_err();
    assert!(matches!(failed.error(), Error::Busy { .. }), "{failed}");
    let (value, there) = failed.into_both();
    let there = there.unwrap();
    assert!(there.is_ready().unwrap(), "nothing was begun");
    let copy = start_copy_into(value.unwrap(), there, options()).unwrap();
    let TimedWait::Pending(copy) = copy.wait_timeout(Duration::from_millis(20)).unwrap() else {
        panic!("the stream has not come there")
    };
    late.release();
    assert_eq!(copy.wait().unwrap().to_bytes().unwrap(), [6; 8]);
    no_violations(&late);
}

#[test]
fn memory_that_is_still_being_filled_is_filled_again_behind_that() {
    for again in [false, true] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        late.stall();
        let there = match again {
            true => {
                start_copy(Tensor::from(vec![1_u8; 8]), &device, options()).unwrap().wait_on(&stream).unwrap()
            }
            false => Tensor::zeros(&[8], DType::U8, &device).unwrap(),
        };
        let never = options().background(BackgroundWork::Never);
        let failed = start_copy_into(Tensor::from(vec![6_u8; 8]), there, never).unwrap_err();
        assert!(matches!(failed.error(), Error::Busy { .. }), "{failed}");
        let (value, there) = failed.into_both();
        assert!(!there.as_ref().unwrap().is_ready().unwrap(), "it is still being filled");
        let copy = start_copy_into(value.unwrap(), there.unwrap(), options()).unwrap();
        assert!(!copy.is_ready().unwrap());
        late.release();
        assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [6; 8]);
        no_violations(&late);
    }
}

/// Whether it is the caller's alone shows when the copy that fills it is done.
#[test]
fn memory_that_is_still_being_filled_and_shared_fails_the_copy() {
    let (late, device) = late();
    late.stall();
    let there = Tensor::zeros(&[8], DType::U8, &device).unwrap();
    let twin = there.clone();
    let copy = start_copy_into(Tensor::from(vec![6_u8; 8]), there, options()).unwrap();
    late.release();
    let failed = in_time(move || copy.wait()).unwrap_err();
    assert!(matches!(unsuited(failed.error()), (0, "to copy into", Error::NotWritable { .. })), "{failed}");
    assert!(matches!(failed.into_both(), (Some(_), Some(there)) if bytes_of(&there) == [0; 8]));
    assert_eq!(bytes_of(&twin), [0; 8]);
    no_violations(&late);
}

#[test]
fn memory_that_a_cancelled_copy_still_reads_is_refused_until_it_is_read() {
    let (late, device) = late();
    let mut pinned = Tensor::empty_pinned(&[8], DType::U8, &device).unwrap();
    pinned.as_mut_bytes().unwrap().fill(5);
    late.stall();
    let reading = start_copy(pinned, &device, options().packing(false)).unwrap();
    let source = reading.cancel().value.unwrap();
    let error = refused(vec![Tensor::from(vec![6_u8; 8])], vec![source]);
    assert!(matches!(unsuited(&error), (0, _, Error::NotWritable { .. })), "{error}");
    late.release();
    no_violations(&late);
}

/// What streams were told of the memory while another copy was still filling it. Mutant: uses are noted too early (118).
#[test]
fn streams_that_learn_of_memory_while_it_is_filled_are_waited_for() {
    let (late, device) = late();
    let [up, stream] = [(); 2].map(|()| device.create_stream(StreamPriority::Normal).unwrap());
    late.stall();
    let first = start_copy(Tensor::from(vec![5_u8; 8]), &device, options().stream(&up)).unwrap();
    let there = first.wait_on(&up).unwrap();
    let twin = there.clone();
    let copy = start_copy_into(Tensor::from(vec![6_u8; 8]), there, options()).unwrap();
    twin.record_stream(&stream).unwrap();
    let kernel = Kernel::launch(&twin, &stream);
    drop(twin);
    late.release();
    let filled = in_time(move || copy.wait()).unwrap();
    assert_eq!(kernel.result(), [5; 8], "the work has read what was there before");
    assert_eq!(bytes_of(&filled), [6; 8]);
    no_violations(&late);
}

#[test]
fn memory_that_is_filled_again_and_again_does_not_remember_all_streams() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let mut there = on(&device, &[0; 8]);
    let mut calls = Vec::new();
    for step in 0..60_u8 {
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        late.clear_calls();
        let copy = start_copy_into(Tensor::from(vec![step; 8]), there, options()).unwrap();
        there = copy.wait_on(&stream).unwrap();
        calls.push(late.calls().len());
        stream.synchronize().unwrap();
        device.synchronize().unwrap();
    }
    assert!(calls[59] <= calls[1] + 4, "calls of each copy: {calls:?}");
    no_violations(&late);
}
