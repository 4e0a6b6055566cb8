//! Batches that are copied ahead of the program.

use futures::StreamExt;
use futures::executor::block_on;
use libtest_mimic::Failed;
use transship::{DType, Prefetch, PrefetchOptions, PrefetchStream, StreamPriority, Tensor, start_copy};

use crate::backends::Need::{OwnMemory, Streams};
use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(batches_arrive_in_order),
        case!(streamed_batches_arrive_in_order),
        case!(batches_arrive_on_each_device),
        case!(batches_are_used_on_a_stream_at_once).needs(Streams),
        case!(batches_in_flight_leave_room_within_the_budget).needs(Streams).needs(OwnMemory),
        case!(batches_arrive_in_memory_that_was_used_before),
    ]
}

const STEPS: usize = 6;

/// Batches of their own sizes, small and large ones in turn, and what is in them.
fn batches(bed: &Bed) -> Vec<(Vec<Tensor>, Vec<Contents>)> {
    let batch = |step: usize| {
        let mut batch = bed.batch(5 + step);
        batch.push(bed.bytes(if step % 3 == 2 { (3 << 20) + 1 } else { 77 * step }));
        batch.push(bed.tensor(DType::F32, &[9, 14]));
        let contents = Contents::of_all(&mut batch);
        (batch, contents)
    };
    (0..STEPS).map(batch).collect()
}

fn options(bed: &Bed) -> PrefetchOptions {
    PrefetchOptions::default().copy(bed.options())
}

fn batches_arrive_in_order(bed: &Bed) -> Result<(), Failed> {
    let (batches, expected): (Vec<_>, Vec<_>) = batches(bed).into_iter().unzip();
    let mut items = batches.into_iter().prefetch(&bed.device, options(bed).max_bytes(4 << 20));
    for expected in &expected {
        let batch = items.next().ok_or("an item is missing")??;
        assert!(batch.iter().all(|tensor| tensor.device_id().is_ok_and(|id| id == bed.device.id())));
        assert_same(expected, &Contents::of_all(&mut bed.down(batch)?));
    }
    assert!(items.next().is_none());
    Ok(())
}

fn streamed_batches_arrive_in_order(bed: &Bed) -> Result<(), Failed> {
    let (batches, expected): (Vec<_>, Vec<_>) = batches(bed).into_iter().unzip();
    let items = futures::stream::iter(batches).prefetch(&bed.device, options(bed).depth(3));
    let arrived = block_on(items.collect::<Vec<_>>());
    assert_eq!(arrived.len(), STEPS);
    for (batch, expected) in arrived.into_iter().zip(&expected) {
        assert_same(expected, &Contents::of_all(&mut bed.down(batch?)?));
    }
    Ok(())
}

fn batches_arrive_on_each_device(bed: &Bed) -> Result<(), Failed> {
    let (batches, expected): (Vec<_>, Vec<_>) = batches(bed).into_iter().unzip();
    let devices = [bed.device.clone(), bed.host.clone(), bed.device.clone()];
    let items: Vec<_> = batches.into_iter().prefetch_to_all(&devices, options(bed)).collect();
    assert_eq!(items.len(), STEPS);
    for (copies, expected) in items.into_iter().zip(&expected) {
        for (batch, device) in copies?.into_iter().zip(&devices) {
            assert!(batch.iter().all(|tensor| tensor.device_id().is_ok_and(|id| id == device.id())));
            assert_same(expected, &Contents::of_all(&mut bed.down(batch)?));
        }
    }
    Ok(())
}

fn batches_are_used_on_a_stream_at_once(bed: &Bed) -> Result<(), Failed> {
    let (batches, expected): (Vec<_>, Vec<_>) = batches(bed).into_iter().unzip();
    let consumer = bed.device.create_stream(StreamPriority::Normal)?;
    let items = batches.into_iter().prefetch(&bed.device, options(bed)).hand_over(&consumer);
    for (batch, expected) in items.zip(&expected) {
        let handle = start_copy(batch?, &bed.host, bed.options().stream(&consumer))?;
        assert_same(expected, &Contents::of_all(&mut handle.wait()?));
    }
    Ok(())
}

/// Each is dropped as soon as the stream has it.
fn batches_in_flight_leave_room_within_the_budget(bed: &Bed) -> Result<(), Failed> {
    let device = bed.private()?;
    let bytes = 64 << 10;
    device.set_memory_budget(8 * bytes)?;
    let consumer = device.create_stream(StreamPriority::Normal)?;
    let source = (0..200_u8).map(|step| Tensor::from(vec![step; bytes]));
    let items = source.prefetch(&device, options(bed)).hand_over(&consumer);
    for (step, item) in items.enumerate() {
        let item = item?;
        if step % 20 == 19 {
            assert_eq!(bed.down(item)?.to_vec::<u8>()?, vec![step as u8; bytes]);
        }
    }
    Ok(())
}

/// All of one shape, so that each fits into the memory of another one.
fn batches_arrive_in_memory_that_was_used_before(bed: &Bed) -> Result<(), Failed> {
    let batch = |_| vec![bed.tensor(DType::F32, &[9, 14]), bed.bytes(1 << 12), bed.bytes((1 << 20) + 4096)];
    let mut batches: Vec<_> = (0..2 * STEPS).map(batch).collect();
    let expected: Vec<_> = batches.iter_mut().map(Contents::of_all).collect();
    let mut items = batches.into_iter().prefetch(&bed.device, options(bed).depth(1)).reuse();
    for expected in &expected {
        let batch = items.next().ok_or("an item is missing")??;
        assert_same(expected, &Contents::of_all(&mut bed.down((*batch).clone())?));
    }
    assert!(items.stats().reused > 0, "{items:?}");
    Ok(())
}
