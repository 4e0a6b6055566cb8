//! Handles, tasks and devices that go away while copies are in flight.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use libtest_mimic::Failed;
use tokio::runtime::Runtime;
use transship::{BackgroundWork, CopyHandle, DType, Tensor, start_copy};

use crate::backends::Need::Streams;
use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(drop_before_ready),
        case!(drop_of_a_large_copy_before_ready),
        case!(drop_after_a_poll),
        case!(forgotten_handles).forgets(),
        case!(aborted_task),
        case!(task_that_loses_a_race),
        case!(task_that_panics),
        case!(runtime_that_shuts_down),
        case!(result_outlives_every_device_handle),
        case!(device_goes_with_copies_open),
        case!(device_goes_with_dropped_copies_in_flight),
        case!(sources_are_let_go_of_before_wait_returns),
        case!(result_dropped_at_once_after_wait_on).needs(Streams),
    ]
}

/// A tensor over memory that tells when nobody holds it any more.
fn watched(bytes: usize) -> Result<(Tensor, Weak<Vec<u8>>), Failed> {
    struct Owner(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let memory = Arc::new(vec![7; bytes]);
    let watch = Arc::downgrade(&memory);
    Ok((Tensor::from_owner(Owner(memory), DType::U8, &[bytes])?, watch))
}

fn drop_before_ready(bed: &Bed) -> Result<(), Failed> {
    dropped(bed, 1000)
}

fn drop_of_a_large_copy_before_ready(bed: &Bed) -> Result<(), Failed> {
    dropped(bed, (9 << 20) + 3)
}

fn dropped(bed: &Bed, bytes: usize) -> Result<(), Failed> {
    let (sent, watch) = watched(bytes)?;
    let held = bed.hold();
    drop(start_copy((sent, bed.batch(5)), &bed.device, bed.options())?);
    drop(held);
    bed.still_works()?;
    eventually("the sources of a dropped copy are let go of", || watch.upgrade().is_none())
}

fn drop_after_a_poll(bed: &Bed) -> Result<(), Failed> {
    let (sent, watch) = watched(1000)?;
    let held = bed.hold();
    let mut handle = start_copy(sent, &bed.device, bed.options())?;
    drop(Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())));
    drop(handle);
    drop(held);
    bed.still_works()?;
    eventually("the source of a dropped copy is let go of", || watch.upgrade().is_none())
}

fn forgotten_handles(bed: &Bed) -> Result<(), Failed> {
    let held = bed.hold();
    for bytes in [100, 1000, 2 << 20] {
        std::mem::forget(start_copy((bed.bytes(bytes), bed.batch(5)), &bed.device, bed.options())?);
    }
    drop(held);
    for _ in 0..5 {
        bed.still_works()?;
    }
    Ok(())
}

fn aborted_task(bed: &Bed) -> Result<(), Failed> {
    given_up_by_its_task(bed, |runtime, handle, stands_still| {
        let task = runtime.spawn(handle);
        task.abort();
        let ended = runtime.block_on(task);
        assert!(!stands_still || ended.is_err_and(|error| error.is_cancelled()), "the device stands still");
    })
}

fn task_that_loses_a_race(bed: &Bed) -> Result<(), Failed> {
    given_up_by_its_task(bed, |runtime, handle, stands_still| {
        let copied = runtime.block_on(async {
            tokio::select! {
                biased;
                copied = handle => Some(copied),
                () = tokio::task::yield_now() => None,
            }
        });
        assert!(!stands_still || copied.is_none(), "the device stands still");
    })
}

fn task_that_panics(bed: &Bed) -> Result<(), Failed> {
    given_up_by_its_task(bed, |runtime, mut handle, _| {
        let task = runtime.spawn(async move {
            drop(futures::poll!(Pin::new(&mut handle)));
            std::panic::resume_unwind(Box::new("of the task"));
        });
        assert!(runtime.block_on(task).is_err_and(|error| error.is_panic()));
    })
}

fn runtime_that_shuts_down(bed: &Bed) -> Result<(), Failed> {
    given_up_by_its_task(bed, |runtime, handle, _| drop(runtime.spawn(handle)))
}

/// A task has the only handle to a copy, and then its runtime goes.
fn given_up_by_its_task(
    bed: &Bed,
    give_up: impl FnOnce(&Runtime, CopyHandle<(Tensor, Tensor)>, bool),
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let held = bed.hold();
    let (sent, watch) = watched(5000)?;
    let handle = start_copy((sent, bed.bytes(2 << 20)), &bed.device, bed.options())?;
    give_up(&runtime, handle, held.holds());
    runtime.shutdown_background();
    drop(held);
    bed.still_works()?;
    eventually("the source is let go of", || watch.upgrade().is_none())
}

/// A tensor keeps its device alive.
fn result_outlives_every_device_handle(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let sent = bed.bytes(3000);
    let expected = Contents::of(&sent);
    let (there, _) = bed.copy(sent, &device, bed.options())?;
    drop(device);
    let back = bed.down(there)?;
    bed.still_works()?;
    assert_same(&[expected], &[Contents::of(&back)]);
    Ok(())
}

fn device_goes_with_copies_open(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let mut sent = (bed.batch(20), bed.bytes(5 << 20));
    let expected = Contents::of_all(&mut sent);
    let held = bed.hold();
    let options = bed.options().background(BackgroundWork::Always);
    let small = start_copy(sent.0, &device, bed.options())?;
    let large = start_copy(sent.1, &device, options)?;
    drop(device);
    drop(held);
    let there = (small.wait()?, large.wait()?);
    let handle = start_copy(there, &bed.host, bed.options())?;
    assert_same(&expected, &Contents::of_all(&mut handle.wait()?));
    Ok(())
}

fn device_goes_with_dropped_copies_in_flight(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let held = bed.hold();
    let (sent, watch) = watched(4000)?;
    let copies =
        (start_copy(bed.batch(20), &device, bed.options())?, start_copy(sent, &device, bed.options())?);
    drop(device);
    drop(copies);
    drop(held);
    bed.still_works()?;
    eventually("the source of a dropped copy is let go of", || watch.upgrade().is_none())
}

/// Who asks whether his memory is free gets the answer that he expects.
fn sources_are_let_go_of_before_wait_returns(bed: &Bed) -> Result<(), Failed> {
    for bytes in [1000, 5 << 20] {
        let (sent, watch) = watched(bytes)?;
        let there = start_copy((sent, bed.batch(3)), &bed.device, bed.options())?.wait()?;
        assert!(watch.upgrade().is_none(), "{bytes} bytes of source are still held");
        drop(there);
    }
    Ok(())
}

fn result_dropped_at_once_after_wait_on(bed: &Bed) -> Result<(), Failed> {
    let stream = bed.device.create_stream(transship::StreamPriority::Normal)?;
    for _ in 0..5 {
        let held = bed.hold();
        drop(start_copy(bed.batch(10), &bed.device, bed.options())?.wait_on(&stream)?);
        drop(held);
    }
    stream.synchronize()?;
    bed.still_works()
}
