//! Tensors that are split into parts: each is filled and used by itself, and together they are the tensor again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::mem;

use late_backend::{Call, LateConfig};
use support::held::{options, unsuited};
use support::{Drops, Kernel, bytes_of, eventually, in_time, late, no_violations, on, with};
use transship_core::backend::StreamPriority;
use transship_core::{
    Alignment, BackgroundWork, DType, Device, Error, Refused, Tensor, start_copy, start_copy_into,
};

/// Twelve bytes as three rows.
fn rows(device: &Device) -> Vec<Tensor> {
    let whole = on(device, &(0..12).collect::<Vec<_>>()).reshape(&[3, 4]).unwrap();
    whole.split(0, &[1, 1, 1]).unwrap()
}

fn row(value: u8) -> Tensor {
    Tensor::from_vec(vec![value; 4], &[1, 4]).unwrap()
}

fn why<V>(refused: &Refused<V>) -> String {
    refused.to_string()
}

#[test]
fn parts_are_written_one_by_one_and_are_the_tensor_again() {
    let whole = Tensor::from_vec((0..24_u32).collect(), &[4, 6]).unwrap();
    let address = whole.address().unwrap();
    let mut parts = whole.split(0, &[1, 0, 2, 1]).unwrap();
    let shapes = parts.iter().map(|part| part.shape().to_vec()).collect::<Vec<_>>();
    assert_eq!(shapes, [[1, 6], [0, 6], [2, 6], [1, 6]]);
    let [first, _, second, third] = &mut parts[..] else { panic!("four") };
    let (one, other) = (first.as_mut_slice::<u32>().unwrap(), third.as_mut_slice::<u32>().unwrap());
    assert_eq!(second.as_slice::<u32>().unwrap()[0], 6);
    one.fill(1);
    other.fill(3);
    assert_eq!(parts[2].retained_bytes(), 96, "each keeps all of it");
    let joined = Tensor::join(parts).unwrap();
    assert_eq!((joined.address().unwrap(), joined.shape()), (address, &[4, 6][..]));
    let expected = [vec![1; 6], (6..18).collect(), vec![3; 6]].concat();
    assert_eq!(joined.as_slice::<u32>().unwrap(), expected);
    assert_eq!(joined.into_vec::<u32>().unwrap(), expected, "it is the vector again");
}

#[test]
fn parts_of_parts_and_views_of_parts_join() {
    let parts = Tensor::from((0..8_u8).collect::<Vec<_>>()).split(0, &[4, 4]).unwrap();
    let [first, second] = <[Tensor; 2]>::try_from(parts).unwrap();
    let mut smaller = first.split(0, &[1, 3]).unwrap();
    smaller[1].as_mut_slice::<u8>().unwrap().fill(9);
    let first = Tensor::join(smaller).unwrap();
    let mut whole = Tensor::join(vec![first, second.reshape(&[2, 2]).unwrap()]).unwrap();
    assert_eq!(whole.as_slice::<u8>().unwrap(), [0, 9, 9, 9, 4, 5, 6, 7]);
    let shared = whole.as_mut_slice::<u8>().unwrap_err();
    assert!(matches!(shared, Error::NotWritable { .. }), "{shared}");
    drop(second);
    whole.as_mut_slice::<u8>().unwrap()[7] = 8;
    assert_eq!(whole.split(0, &[7, 1]).unwrap()[1].as_slice::<u8>().unwrap(), [8]);
}

/// catches: 340-shared-memory-split, 341-lent-memory-split
#[test]
fn memory_of_others_is_not_split() {
    let whole = Tensor::from(vec![1_u8; 8]);
    let twin = whole.clone();
    let refused = whole.split(0, &[4, 4]).unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    drop(twin);
    assert_eq!(refused.into_value().split(0, &[4, 4]).unwrap().len(), 2);

    let lent = Drops::default().tensor(vec![1; 8]);
    let refused = lent.split(0, &[4, 4]).unwrap_err();
    assert!(why(&refused).contains("lent read-only; split a copy of it"), "{refused}");
    assert_eq!(refused.into_value().as_slice::<u8>().unwrap(), [1; 8]);

    let (late, device) = late();
    let there = on(&device, &[5; 8]);
    late.stall();
    let reading = start_copy(there.clone(), &Device::host(), options()).unwrap();
    let refused = there.split(0, &[4, 4]).unwrap_err();
    assert!(matches!(refused.error(), Error::NotWritable { .. }), "{refused}");
    late.release();
    assert_eq!(reading.wait().unwrap().to_bytes().unwrap(), [5; 8]);
    assert!(refused.into_value().split(0, &[4, 4]).is_ok(), "it was read");
    no_violations(&late);
}

/// catches: 342-parts-between-each-other, 343-granules-of-two-parts
#[test]
fn parts_that_would_not_lie_apart_are_refused() {
    let whole = Tensor::from_vec((0..12_u8).collect(), &[2, 6]).unwrap();
    let refused = whole.split(1, &[3, 3]).unwrap_err();
    assert!(why(&refused).contains("dimension 1 would lie between each other's elements"), "{refused}");
    let refused = refused.into_value().split(0, &[1, 2]).unwrap_err();
    assert!(why(&refused).contains("2 parts add up to 3, but dimension 0 has 2"), "{refused}");
    let refused = refused.into_value().split(2, &[1]).unwrap_err();
    assert!(matches!(refused.error(), Error::OutOfRange { what: "dimension", start: 2, .. }), "{refused}");
    let refused = refused.into_value().split(0, &[usize::MAX, 3]).unwrap_err();
    assert!(matches!(refused.error(), Error::NotSplittable { .. }), "{refused}");
    let turned =
        Tensor::from_vec((0..12_u8).collect(), &[2, 6]).and_then(|whole| whole.transpose(0, 1)).unwrap();
    let parts = turned.split(1, &[1, 1]).unwrap();
    assert_eq!(parts[1].to_vec::<u8>().unwrap(), [6, 7, 8, 9, 10, 11], "it lies in one range");
    assert!(Tensor::from(vec![0_u8]).as_strided(&[2], &[0], 0).unwrap().split(0, &[1, 1]).is_err());

    let config = LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("granular") };
    let (late, device) = with(config);
    let there = on(&device, &[1; 12]).reshape(&[4, 3]).unwrap();
    let refused = there.split(0, &[2, 2]).unwrap_err();
    let named = "part 1 would begin at byte 6, and the device copies whole granules of 4 bytes";
    assert!(why(&refused).contains(named), "{refused}");
    let there = Tensor::zeros(&[2, 5], DType::U8, &device).unwrap();
    assert!(there.split(0, &[2]).is_ok());
    no_violations(&late);
}

/// catches: 344-parts-in-any-order, 345-parts-missing
#[test]
fn parts_that_are_not_all_there_are_named_and_come_back() {
    let host = Device::host();
    let refused = Tensor::join(Vec::new()).unwrap_err();
    assert!(why(&refused).contains("there are none"), "{refused}");
    let refused = Tensor::join(vec![Tensor::from(vec![1_u8])]).unwrap_err();
    assert!(why(&refused).contains("tensor 0 is no part of a tensor that was split"), "{refused}");

    let mut parts = rows(&host);
    parts.swap(1, 2);
    let refused = Tensor::join(parts).unwrap_err();
    assert!(why(&refused).contains("tensor 1 is part 2, where part 1 belongs"), "{refused}");
    let mut parts = refused.into_value();
    parts.swap(1, 2);
    let last = parts.pop().unwrap();
    let refused = Tensor::join(parts).unwrap_err();
    assert!(why(&refused).contains("part 2 of 3 is missing"), "{refused}");
    let mut parts = refused.into_value();
    parts.push(parts[1].clone());
    let refused = Tensor::join(parts).unwrap_err();
    assert!(why(&refused).contains("tensor 2 is part 1, where part 2 belongs"), "{refused}");
    let mut parts = refused.into_value();
    parts.truncate(2);
    parts.extend(rows(&host).pop());
    let refused = Tensor::join(parts).unwrap_err();
    assert!(why(&refused).contains("tensor 2 is a part of another tensor than tensor 0"), "{refused}");
    let mut parts = refused.into_value();
    parts[2] = last;
    assert_eq!(Tensor::join(parts).unwrap().to_bytes().unwrap(), (0..12).collect::<Vec<_>>());
}

/// A copy out of one part stands still; others are filled, read and written meanwhile. catches: 346-parts-wait-for-all-of-a-stream
#[test]
fn what_uses_one_part_holds_up_no_other() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let [reads, writes] = [(); 2].map(|()| device.create_stream(StreamPriority::Normal).unwrap());
    let whole = on(&device, &(0..12).collect::<Vec<_>>()).reshape(&[3, 4]).unwrap();
    // What the stream is given from now on does not use the third part.
    whole.record_stream(&reads).unwrap();
    let mut parts = whole.split(0, &[1, 1, 1]).unwrap();
    let [first, second, third] = [(); 3].map(|()| parts.remove(0));
    reads.synchronize().unwrap();
    late.stall_stream(&**reads.backend_stream());
    first.record_stream(&reads).unwrap();
    let kernel = Kernel::launch(&first, &reads);
    let reading = start_copy(second.clone(), &Device::host(), options().stream(&reads)).unwrap();
    let filled = in_time(move || {
        let copy =
            start_copy_into(row(7), third, options().stream(&writes).background(BackgroundWork::Never));
        copy.unwrap().wait().unwrap()
    });
    assert_eq!(bytes_of(&filled), [7; 4]);
    assert!(!reading.is_ready().unwrap(), "the other stream stands still");
    late.release();
    assert_eq!((kernel.result(), bytes_of(&reading.wait().unwrap())), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
    let whole = Tensor::join(vec![first, second, filled]).unwrap();
    assert_eq!(bytes_of(&whole), [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7]);
    no_violations(&late);
}

/// What used the tensor before it was split is waited for by each part. catches: 347-earlier-uses-forgotten
#[test]
fn a_part_comes_behind_what_used_the_tensor() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let whole = on(&device, &[5; 8]);
    late.stall_stream(&**stream.backend_stream());
    whole.record_stream(&stream).unwrap();
    let kernel = Kernel::launch(&whole, &stream);
    let mut parts = whole.split(0, &[4, 4]).unwrap();
    let copy = start_copy_into(Tensor::from(vec![6_u8; 4]), parts.remove(1), options()).unwrap();
    assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it has run before the work");
    late.release();
    assert_eq!(kernel.result(), [5; 8]);
    assert_eq!(bytes_of(&copy.wait().unwrap()), [6; 4]);
    no_violations(&late);
}

/// The device stands still from the first fill to the copy out of the whole. catches: 348-fills-of-parts-forgotten
#[test]
fn a_copy_out_of_the_joined_tensor_comes_behind_the_fills_of_each_part() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let streams = [(); 3].map(|()| device.create_stream(StreamPriority::Normal).unwrap());
    let compute = device.create_stream(StreamPriority::Normal).unwrap();
    let parts = rows(&device);
    late.stall();
    let fill = |(part, (stream, value)): (Tensor, (&_, u8))| {
        let copy = start_copy_into(row(value), part, options().stream(stream)).unwrap();
        copy.wait_on(&compute).unwrap()
    };
    let parts = parts.into_iter().zip(streams.iter().zip(1..)).map(fill).collect::<Vec<_>>();
    let whole = Tensor::join(parts).unwrap();
    assert!(!whole.is_ready().unwrap());
    let refused = whole.split(0, &[1, 2]).unwrap_err();
    assert!(why(&refused).contains("parts that are still in flight"), "{refused}");
    let whole = refused.into_value();
    let reading = start_copy(whole.clone(), &Device::host(), options()).unwrap();
    assert!(!reading.is_ready().unwrap());
    late.release();
    let expected = [[1; 4], [2; 4], [3; 4]].concat();
    assert_eq!(in_time(move || reading.wait()).unwrap().to_bytes().unwrap(), expected);
    device.synchronize().unwrap();
    eventually("it is one again", || whole.is_ready().unwrap());
    assert_eq!(whole.split(0, &[1, 2]).unwrap().len(), 2);
    no_violations(&late);
}

/// catches: 349-uses-of-joined-parts-forgotten
#[test]
fn a_fill_of_the_joined_tensor_comes_behind_the_uses_of_each_part() {
    for in_flight in [false, true] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let [stream, other] = [(); 2].map(|()| device.create_stream(StreamPriority::Normal).unwrap());
        let mut parts = rows(&device);
        parts[1].record_stream(&stream).unwrap();
        if in_flight {
            late.stall();
            let copy = start_copy_into(row(9), parts.pop().unwrap(), options()).unwrap();
            parts.push(copy.wait_on(&other).unwrap());
        }
        let whole = Tensor::join(parts).unwrap();
        assert_eq!(whole.is_ready().unwrap(), !in_flight);
        late.release();
        device.synchronize().unwrap();
        late.stall_stream(&**stream.backend_stream());
        let kernel = Kernel::launch(&whole.narrow(0, 1, 1).unwrap(), &stream);
        let value = Tensor::from_vec(vec![6_u8; 12], &[3, 4]).unwrap();
        let copy = start_copy_into(value, whole, options()).unwrap();
        assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it has run before the work");
        late.release();
        assert_eq!(kernel.result(), [4, 5, 6, 7], "the work has read what was there before");
        assert_eq!(bytes_of(&in_time(move || copy.wait()).unwrap()), [6; 12]);
        no_violations(&late);
    }
}

/// catches: 350-uses-of-gone-parts-forgotten, 354-uses-of-parts-not-given-to-the-whole
#[test]
fn memory_goes_behind_the_uses_of_all_parts() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let parts = rows(&device);
    late.stall_stream(&**stream.backend_stream());
    parts[0].record_stream(&stream).unwrap();
    let kernel = Kernel::launch(&parts[0], &stream);
    let mut parts = parts.into_iter();
    drop(parts.next());
    assert_eq!(device.counters().device_bytes, 12, "others hold it");
    drop(parts);
    late.release();
    assert_eq!(kernel.result(), [0, 1, 2, 3]);
    eventually("the memory is given back", || {
        device.synchronize().unwrap();
        device.counters().device_bytes == 0
    });
    no_violations(&late);
}

#[test]
fn a_part_that_is_forgotten_keeps_the_memory_and_the_others_serve() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let mut parts = rows(&device);
    late.stall();
    let copy = start_copy_into(row(7), parts.remove(0), options()).unwrap();
    mem::forget(copy);
    late.release();
    let filled = start_copy_into(row(8), parts.remove(0), options()).unwrap().wait().unwrap();
    assert_eq!(bytes_of(&filled), [8; 4]);
    let refused = Tensor::join(vec![filled, parts.remove(0)]).unwrap_err();
    assert!(why(&refused).contains("tensor 0 is part 1, where part 0 belongs"), "{refused}");
    drop(refused);
    device.drain().unwrap();
    no_violations(&late);
}

/// catches: 351-clone-of-a-part-not-looked-at
#[test]
fn a_clone_of_a_part_and_the_joined_tensor_are_both_read_only() {
    for in_flight in [false, true] {
        let (late, device) = late();
        device.prepare(64).unwrap();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        let mut parts = rows(&device);
        if in_flight {
            late.stall();
            let copy = start_copy_into(row(0), parts.remove(0), options()).unwrap();
            parts.insert(0, copy.wait_on(&stream).unwrap());
        }
        let twin = parts[1].clone();
        let whole = Tensor::join(parts).unwrap();
        late.release();
        device.synchronize().unwrap();
        let failed = start_copy_into(row(1), twin, options()).and_then(|copy| copy.wait()).unwrap_err();
        assert!(matches!(unsuited(failed.error()).2, Error::NotWritable { .. }), "{failed}");
        let twin = failed.into_both().1.unwrap();
        let value = || Tensor::from_vec(vec![6_u8; 12], &[3, 4]).unwrap();
        let failed = start_copy_into(value(), whole, options()).and_then(|copy| copy.wait()).unwrap_err();
        assert!(matches!(unsuited(failed.error()).2, Error::NotWritable { .. }), "{failed}");
        let whole = failed.into_both().1.unwrap();
        assert_eq!(bytes_of(&twin), [4, 5, 6, 7]);
        drop(twin);
        let filled = start_copy_into(value(), whole, options()).unwrap().wait().unwrap();
        assert_eq!(bytes_of(&filled), [6; 12]);
        no_violations(&late);
    }
}

/// Whether it is theirs alone shows when the copy that fills it is done. catches: 352-clone-of-the-whole-not-looked-at
#[test]
fn parts_of_memory_that_is_still_filled_are_written_only_once_no_clone_of_it_is_alive() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    late.stall();
    let whole = Tensor::zeros(&[8], DType::U8, &device).unwrap();
    let twin = whole.clone();
    let mut parts = whole.split(0, &[4, 4]).unwrap();
    let value = || Tensor::from(vec![6_u8; 4]);
    let copy = start_copy_into(value(), parts.remove(0), options()).unwrap();
    late.release();
    let failed = in_time(move || copy.wait()).unwrap_err();
    assert!(matches!(unsuited(failed.error()), (0, "to copy into", Error::NotWritable { .. })), "{failed}");
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    late.stall_stream(&**stream.backend_stream());
    twin.record_stream(&stream).unwrap();
    let kernel = Kernel::launch(&twin, &stream);
    drop(twin);
    let copy = start_copy_into(value(), failed.into_both().1.unwrap(), options()).unwrap();
    assert!((0..32).all(|_| !copy.is_ready().unwrap()), "it has run before the work");
    late.release();
    assert_eq!(kernel.result(), [0; 8]);
    parts.insert(0, in_time(move || copy.wait()).unwrap());
    assert_eq!(bytes_of(&Tensor::join(parts).unwrap()), [6, 6, 6, 6, 0, 0, 0, 0]);
    no_violations(&late);
}

/// catches: 353-failed-part-joined
#[test]
fn a_part_whose_copy_failed_is_filled_again_before_it_is_joined() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let mut parts = rows(&device);
    late.fail_next(Call::Submit, 0);
    let copy = start_copy_into(row(7), parts.remove(1), options().background(BackgroundWork::Always));
    let failed = in_time(move || copy.and_then(|copy| copy.wait())).unwrap_err();
    parts.insert(1, failed.into_both().1.unwrap());
    let refused = Tensor::join(parts).unwrap_err();
    assert!(why(&refused).contains("the copy into part 1 has failed"), "{refused}");
    let mut parts = refused.into_value();
    let filled = start_copy_into(row(7), parts.remove(1), options()).unwrap().wait().unwrap();
    parts.insert(1, filled);
    assert_eq!(bytes_of(&Tensor::join(parts).unwrap()), [0, 1, 2, 3, 7, 7, 7, 7, 8, 9, 10, 11]);
    no_violations(&late);
}

#[test]
fn a_ring_is_split_and_joined_again_and_again() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let mut whole = on(&device, &[0; 12]).reshape(&[3, 4]).unwrap();
    let mut calls = Vec::new();
    for step in 0..40_u8 {
        late.clear_calls();
        let parts = whole.split(0, &[1, 1, 1]).unwrap();
        let fill = |part| start_copy_into(row(step), part, options()).unwrap().wait_on(&stream).unwrap();
        whole = Tensor::join(parts.into_iter().map(fill).collect()).unwrap();
        stream.synchronize().unwrap();
        device.synchronize().unwrap();
        calls.push(late.calls().len());
    }
    assert_eq!(bytes_of(&whole), [39; 12]);
    assert!(calls[39] <= calls[1] + 4, "calls of each step: {calls:?}");
    no_violations(&late);
}

#[test]
fn a_vector_comes_back_once_no_clone_of_a_part_is_alive() {
    let parts = Tensor::from_vec(vec![1_u32, 2, 3], &[3]).unwrap().split(0, &[1, 2]).unwrap();
    let clone = parts[1].clone();
    let refused = Tensor::join(parts).unwrap().into_vec::<u32>().unwrap_err();
    assert!(
        matches!(refused.error(), Error::NotWritable { .. } | Error::NotVector { .. }),
        "{}",
        why(&refused)
    );
    drop(clone);
    assert_eq!(refused.into_value().into_vec::<u32>().unwrap(), [1, 2, 3]);
}
