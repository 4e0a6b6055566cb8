//! Streams: the caller's own, the current one, and handing a result to one without waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{hint, thread};

use libtest_mimic::Failed;
use transship::{BackgroundWork, DType, Device, Error, Stream, StreamPriority, Tensor, start_copy};

use crate::backends::Need::{Clock, SecondDevice, Streams};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(on_the_callers_stream).needs(Streams),
        case!(two_streams).needs(Streams),
        case!(the_callers_stream_orders_the_copy).needs(Streams),
        case!(the_current_stream_orders_the_copy).needs(Streams),
        case!(scopes_restore_what_was_current),
        case!(a_stream_that_waits_passes_behind_the_copy).needs(Streams),
        case!(what_a_stream_has_passed_is_ready_whoever_asks).needs(Streams),
        case!(result_used_on_a_stream_at_once).needs(Streams),
        case!(large_result_used_on_a_stream_at_once).needs(Streams),
        case!(result_from_another_device_used_on_a_stream_at_once).needs(Streams).needs(SecondDevice),
        case!(chain_of_copies_without_waiting).needs(Streams),
        case!(stream_of_the_host_is_the_wrong_one).needs(Streams),
        case!(stream_of_another_device_is_the_wrong_one).needs(SecondDevice),
        case!(host_target_has_no_stream_to_wait_on),
        case!(events),
        case!(time_marks).needs(Clock),
    ]
}

fn stream(bed: &Bed) -> Result<Stream, Failed> {
    Ok(bed.device.create_stream(StreamPriority::Normal)?)
}

fn on_the_callers_stream(bed: &Bed) -> Result<(), Failed> {
    let urgent = bed.device.create_stream(StreamPriority::High)?;
    for stream in [stream(bed)?, urgent] {
        bed.round_trip((bed.batch(30), bed.bytes(5 << 20)), bed.options().stream(&stream))?;
    }
    Ok(())
}

/// Up on one stream, down on another that waits for the first.
fn two_streams(bed: &Bed) -> Result<(), Failed> {
    let (one, other) = (stream(bed)?, stream(bed)?);
    let mut sent = bed.batch(30);
    let expected = Contents::of_all(&mut sent);
    let handle = start_copy(sent, &bed.device, bed.options().stream(&one))?;
    let there = handle.wait_on(&other)?;
    let (mut back, _) = bed.copy(there, &bed.host, bed.options().stream(&other))?;
    assert_same(&expected, &Contents::of_all(&mut back));
    Ok(())
}

/// Once a stream has passed the point behind a copy, the copy is done: if it ran on another stream it need not be.
fn is_ordered_by(bed: &Bed, stream: &Stream, names_it: bool) -> Result<(), Failed> {
    let options = bed.options().background(BackgroundWork::Never);
    let options = if names_it { options.stream(stream) } else { options };
    let held = bed.hold();
    let handle = bed.start(bed.batch(30), &bed.device, options)?;
    let behind = stream.record()?;
    drop(held);
    assert!(behind.wait(None)?);
    assert!(handle.is_ready()?, "the copy was not in the order of the stream");
    bed.down(handle.wait()?).map(|_| ())
}

fn the_callers_stream_orders_the_copy(bed: &Bed) -> Result<(), Failed> {
    is_ordered_by(bed, &stream(bed)?, true)
}

fn the_current_stream_orders_the_copy(bed: &Bed) -> Result<(), Failed> {
    let stream = stream(bed)?;
    let scope = stream.enter();
    is_ordered_by(bed, &stream, false)?;
    drop(scope);
    bed.still_works()
}

fn scopes_restore_what_was_current(bed: &Bed) -> Result<(), Failed> {
    use transship::Device;
    let before = Device::current().id();
    let (outer, inner) = (stream(bed)?, stream(bed)?);
    let is_current = |stream: &Stream| {
        let current = Stream::current(&bed.device);
        current
            .is_some_and(|current| std::sync::Arc::ptr_eq(current.backend_stream(), stream.backend_stream()))
    };
    let device_scope = bed.device.enter();
    let outer_scope = outer.enter();
    let inner_scope = inner.enter();
    assert!(is_current(&inner) && !is_current(&outer));
    drop(inner_scope);
    assert!(is_current(&outer));
    drop(outer_scope);
    assert!(Stream::current(&bed.device).is_none());
    assert_eq!(Device::current().id(), bed.device.id());
    drop(device_scope);
    assert_eq!(Device::current().id(), before);
    Ok(())
}

/// The device does the waiting: the tensors come out unfilled, and are filled once the stream has come by.
fn a_stream_that_waits_passes_behind_the_copy(bed: &Bed) -> Result<(), Failed> {
    let consumer = stream(bed)?;
    let held = bed.hold();
    let options = bed.options().background(BackgroundWork::Never);
    let there = bed.start(bed.batch(30), &bed.device, options)?.wait_on(&consumer)?;
    let behind = consumer.record()?;
    assert!(!held.holds() || !there[0].is_ready()?, "nothing can have been copied");
    drop(held);
    assert!(behind.wait(None)?);
    assert!(there[0].is_ready()?, "the stream did not wait");
    bed.down(there).map(|_| ())
}

/// Other threads that ask the driver at the same time take nobody's answer away.
fn what_a_stream_has_passed_is_ready_whoever_asks(bed: &Bed) -> Result<(), Failed> {
    let consumer = stream(bed)?;
    // So many meet on a loaded machine as well.
    for round in 0..100 {
        let there = start_copy(bed.batch(3), &bed.device, bed.options())?.wait_on(&consumer)?;
        let behind = consumer.record()?;
        let over = AtomicBool::new(false);
        let ask = || {
            while !over.load(Ordering::Relaxed) && matches!(there[1].is_ready(), Ok(false)) {
                hint::spin_loop();
            }
        };
        let ready = thread::scope(|scope| {
            scope.spawn(ask);
            scope.spawn(ask);
            let ready = behind.wait(None).and_then(|_| there[0].is_ready());
            over.store(true, Ordering::Relaxed);
            ready
        });
        assert!(ready?, "not ready in round {round}, with its stream past the copy");
    }
    Ok(())
}

fn result_used_on_a_stream_at_once(bed: &Bed) -> Result<(), Failed> {
    let mut sent = bed.batch(30);
    let expected = Contents::of_all(&mut sent);
    used_at_once(bed, sent, &bed.device, &expected)
}

fn large_result_used_on_a_stream_at_once(bed: &Bed) -> Result<(), Failed> {
    let mut sent = vec![bed.bytes((5 << 20) + 1), bed.bytes(7)];
    let expected = Contents::of_all(&mut sent);
    used_at_once(bed, sent, &bed.device, &expected)
}

/// Streams of one device may be unable to wait for those of the other, which the first half of such a copy runs on.
fn result_from_another_device_used_on_a_stream_at_once(bed: &Bed) -> Result<(), Failed> {
    let mut sent = bed.batch(30);
    let expected = Contents::of_all(&mut sent);
    used_at_once(bed, bed.up(sent)?, bed.second()?, &expected)
}

fn used_at_once(bed: &Bed, sent: Vec<Tensor>, to: &Device, expected: &[Contents]) -> Result<(), Failed> {
    let consumer = to.create_stream(StreamPriority::Normal)?;
    let there = start_copy(sent, to, bed.options())?.wait_on(&consumer)?;
    let handle = start_copy(there, &bed.host, bed.options().stream(&consumer))?;
    assert_same(expected, &Contents::of_all(&mut handle.wait()?));
    Ok(())
}

/// Each copy begins before the one whose result it reads is done.
fn chain_of_copies_without_waiting(bed: &Bed) -> Result<(), Failed> {
    let consumer = stream(bed)?;
    let mut sent = bed.batch(12);
    let expected = Contents::of_all(&mut sent);
    let mut there = start_copy(sent, &bed.device, bed.options())?.wait_on(&consumer)?;
    for _ in 0..4 {
        let again = bed.options().policy(transship::CopyPolicy::Always);
        there = start_copy(there, &bed.device, again)?.wait_on(&consumer)?;
    }
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

fn stream_of_the_host_is_the_wrong_one(bed: &Bed) -> Result<(), Failed> {
    is_wrong(bed, &bed.host.create_stream(StreamPriority::Normal)?)
}

fn stream_of_another_device_is_the_wrong_one(bed: &Bed) -> Result<(), Failed> {
    is_wrong(bed, &bed.second()?.create_stream(StreamPriority::Normal)?)
}

fn is_wrong(bed: &Bed, wrong: &Stream) -> Result<(), Failed> {
    let mut sent = bed.batch(3);
    let expected = Contents::of_all(&mut sent);
    let failed = start_copy(sent, &bed.device, bed.options().stream(wrong)).expect_err("the wrong stream");
    let ids = (wrong.device().id(), bed.device.id());
    assert!(
        matches!(failed.error(), Error::WrongStream { actual, expected } if (*actual, *expected) == ids),
        "{failed}"
    );
    let mut back = failed.into_value().expect("the structure comes back");
    assert_same(&expected, &Contents::of_all(&mut back));
    bed.still_works()
}

fn host_target_has_no_stream_to_wait_on(bed: &Bed) -> Result<(), Failed> {
    let sent = bed.tensor(DType::F32, &[100]);
    let expected = Contents::of(&sent);
    let there = bed.up(sent)?;
    let handle = start_copy(there, &bed.host, bed.options())?;
    let failed = handle.wait_on(&stream(bed)?).expect_err("the host has no stream");
    assert!(matches!(failed.error(), Error::HostTarget), "{failed}");
    let back = failed.into_value().expect("the structure comes back");
    assert_same(&[expected], &[Contents::of(&bed.down(back)?)]);
    Ok(())
}

fn events(bed: &Bed) -> Result<(), Failed> {
    let (one, other) = (stream(bed)?, stream(bed)?);
    let event = one.record()?;
    other.wait_event(&event)?;
    other.wait_stream(&one)?;
    assert!(event.wait(None)? && event.is_reached()?);
    other.synchronize()?;
    assert!(event.is_reached()?);
    Ok(())
}

fn time_marks(bed: &Bed) -> Result<(), Failed> {
    let one = stream(bed)?;
    let (early, late) = (one.mark_time()?, one.mark_time()?);
    one.synchronize()?;
    assert!(late.elapsed_since(&*early)? >= 0.0);
    Ok(())
}
