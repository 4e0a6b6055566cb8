//! Copies into memory that the caller holds: it is his alone, nothing is allocated, and writes come behind all that used it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::mem;
use std::time::Duration;

use late_backend::{Call, LateConfig};
use support::{Drops, Kernel, bytes_of, eventually, in_time, late, no_violations, on, two, with};
use transship_core::backend::StreamPriority;
use transship_core::{
    Alignment, BackgroundWork, Cancelled, CopyHandle, CopyOptions, DType, Device, Error, MemoryKind,
    RawMemory, Stop, Tensor, TensorTree, TimedWait, Visitor, start_copy, start_copy_into,
};

const MODES: [BackgroundWork; 3] = [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never];

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// Tensors of several types and sizes, none and less than a granule included, with bytes of `seed`.
fn batch(seed: u8) -> Vec<Tensor> {
    let bytes = |len: u8| (0..len).map(|index| index.wrapping_mul(7) ^ seed).collect::<Vec<_>>();
    let words = bytes(6).into_iter().map(u32::from).collect::<Vec<_>>();
    vec![
        Tensor::from(bytes(5)),
        Tensor::from_vec(words, &[2, 3]).unwrap(),
        Tensor::from(Vec::<u16>::new()),
        Tensor::from(bytes(40)),
        Tensor::from(bytes(1)),
    ]
}

fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(bytes_of).collect()
}

fn addresses(tensors: &[Tensor]) -> Vec<Option<u64>> {
    tensors.iter().map(|tensor| tensor.address().unwrap()).collect()
}

fn up<S: TensorTree>(value: S, device: &Device) -> S {
    start_copy(value, device, options()).unwrap().wait().unwrap()
}

fn into<S: TensorTree>(value: S, into: S, options: CopyOptions) -> S {
    start_copy_into(value, into, options).unwrap().wait().unwrap()
}

/// Each tensor with memory of its own that a `Vec` owned.
fn ordinary(tensors: &[Tensor]) -> Vec<Tensor> {
    let like = |tensor: &Tensor| {
        let zeros = Tensor::from(vec![0_u8; tensor.bytes()]);
        match tensor.dtype() {
            DType::U8 => zeros,
            dtype => Tensor::empty(tensor.shape(), dtype, &Device::host()).unwrap(),
        }
    };
    tensors.iter().map(like).collect()
}

/// All bytes of the memory that a tensor lies in.
fn all_bytes(tensor: &Tensor, device: &Device) -> Vec<u8> {
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let bytes = Kernel::of_whole_memory(tensor, &stream).result();
    stream.synchronize().unwrap();
    bytes
}

#[test]
fn the_results_of_an_earlier_copy_are_filled_again_and_again() {
    for gather in [None, Some(24)] {
        for when in MODES {
            let (late, device) = with(LateConfig { gather, ..LateConfig::new("late") });
            let first = up(batch(1), &device);
            assert!(first[0].shares_memory_with(&first[4]), "they are packed");
            let (there, held) = (addresses(&first), device.counters().device_bytes);
            let mut there_again = first;
            device.prepare(1 << 12).unwrap();
            for seed in 2..6 {
                there_again = into(batch(seed), there_again, options().background(when));
                assert_eq!(addresses(&there_again), there);
                assert_eq!(device.counters().device_bytes, held, "nothing is allocated");
                assert_eq!(bytes(&there_again), bytes(&batch(seed)));
            }
            no_violations(&late);
        }
    }
}

/// As small batches do that make their own memory: one block, one copy.
#[test]
fn a_packed_batch_is_one_copy() {
    let (late, device) = late();
    device.prepare(1 << 12).unwrap();
    let there = up(batch(1), &device);
    let copy = start_copy_into(batch(2), there, options()).unwrap();
    let (there, report) = copy.wait_with_report().unwrap();
    assert_eq!((report.copies, report.submissions, report.chunks, report.packed), (1, 1, 1, 4), "{report}");
    assert_eq!(bytes(&there), bytes(&batch(2)));
    no_violations(&late);
}

#[test]
fn results_come_down_into_memory_of_any_kind() {
    for pinned in [true, false] {
        for gather in [None, Some(24)] {
            let granularity = Alignment::of(if gather.is_none() { 4 } else { 1 }).unwrap();
            let config = LateConfig { gather, copy_granularity: granularity, ..LateConfig::new("late") };
            let (late, device) = with(config);
            let options = || options().pinned_staging(pinned);
            // Pinned, where that is not switched off.
            let mut earlier =
                start_copy(up(batch(1), &device), &Device::host(), options()).unwrap().wait().unwrap();
            let mut ordinary = ordinary(&batch(1));
            let places = (addresses(&earlier), addresses(&ordinary));
            for seed in 2..5 {
                earlier = into(up(batch(seed), &device), earlier, options());
                ordinary = into(up(batch(seed), &device), ordinary, options());
                assert_eq!((bytes(&earlier), bytes(&ordinary)), (bytes(&batch(seed)), bytes(&batch(seed))));
                assert_eq!(ordinary[3].as_mut_bytes().unwrap().len(), 40, "it is the caller's alone again");
            }
            assert_eq!((addresses(&earlier), addresses(&ordinary)), places);
            no_violations(&late);
        }
    }
}

#[test]
fn tensors_go_between_devices_within_one_and_within_the_host() {
    for peers in [true, false] {
        let (late, one, other) = two(LateConfig { peers, ..LateConfig::new("late") });
        let there = up(batch(1), &other);
        let there = into(up(batch(2), &one), there, options());
        assert_eq!(bytes(&there), bytes(&batch(2)));
        let there = into(up(batch(3), &other), there, options());
        assert_eq!(bytes(&there), bytes(&batch(3)));
        let here = into(batch(4), ordinary(&batch(4)), options());
        assert_eq!(bytes(&here), bytes(&batch(4)));
        no_violations(&late);
    }
}

/// From two sources at once, and one tensor to two places.
#[test]
fn sources_may_be_anywhere_and_the_same() {
    let (late, device) = late();
    let there = up(batch(1), &device);
    let mixed = batch(2).into_iter().enumerate();
    let mixed =
        mixed.map(|(index, tensor)| if index % 2 == 0 { tensor } else { up(tensor, &device) }).collect();
    let there: Vec<Tensor> = into(mixed, there, options());
    assert_eq!(bytes(&there), bytes(&batch(2)));
    let tensor = Tensor::from(vec![9_u8; 8]);
    let twice = into([tensor.clone(), tensor], [on(&device, &[1; 8]), on(&device, &[2; 8])], options());
    assert_eq!(twice.each_ref().map(bytes_of), [[9; 8], [9; 8]]);
    let columns = Tensor::from_vec(vec![1_u8, 2, 3, 4], &[2, 2]).unwrap().transpose(0, 1).unwrap();
    let gathered = into(columns, Tensor::empty(&[2, 2], DType::U8, &device).unwrap(), options());
    assert_eq!(bytes_of(&gathered), [1, 3, 2, 4]);
    no_violations(&late);
}

/// catches: 111-gaps-overwritten
#[test]
fn what_lies_between_tensors_is_left_alone() {
    let (late, device) = late();
    let whole =
        into(Tensor::from(vec![9_u8; 24]), Tensor::empty(&[24], DType::U8, &device).unwrap(), options());
    let parts =
        vec![whole.narrow(0, 2, 4).unwrap(), whole.narrow(0, 8, 4).unwrap(), whole.narrow(0, 12, 2).unwrap()];
    drop(whole);
    let tensors =
        |tensor: fn(Vec<u8>) -> Tensor| vec![tensor(vec![1; 4]), tensor(vec![2; 4]), tensor(vec![3; 2])];
    let expected = [&[9; 2][..], &[1; 4], &[9; 2], &[2; 4], &[3; 2], &[9; 10]].concat();
    let parts = into(tensors(Tensor::from), parts, options());
    assert_eq!(all_bytes(&parts[0], &device), expected);
    let parts = into(
        tensors(Tensor::from).iter().map(|tensor| on(&device, &bytes_of(tensor))).collect(),
        parts,
        options(),
    );
    assert_eq!(all_bytes(&parts[0], &device), expected);
    no_violations(&late);
}

/// Refused, with both structures as they were.
#[track_caller]
fn refused(value: Vec<Tensor>, destination: Vec<Tensor>) -> Error {
    let places = |tensors: &[Tensor]| {
        tensors.iter().map(|tensor| (tensor.address().unwrap(), tensor.offset())).collect::<Vec<_>>()
    };
    let before = (places(&value), places(&destination));
    let failed = start_copy_into(value, destination, options()).unwrap_err();
    let error = failed.error().clone();
    let (value, destination) = failed.into_both();
    assert_eq!((places(&value.unwrap()), places(destination.as_ref().unwrap())), before, "{error}");
    assert!(destination.unwrap().iter().all(|tensor| tensor.is_ready().unwrap()), "{error}");
    error
}

#[track_caller]
fn unsuited(error: &Error) -> (usize, &'static str, &Error) {
    match error {
        Error::UnsuitedTensor { index, role, error } => (*index, role, error),
        other => panic!("{other}"),
    }
}

#[test]
fn structures_that_differ_are_refused() {
    let (late, device) = late();
    let error = refused(batch(1), vec![on(&device, &[1; 5])]);
    assert!(matches!(error, Error::DestinationCount { tensors: 5, destinations: 1 }), "{error}");
    let error = refused(vec![], vec![on(&device, &[1; 5])]);
    assert!(matches!(error, Error::DestinationCount { tensors: 0, destinations: 1 }), "{error}");
    let pair = || vec![Tensor::from(vec![1_u8; 8]), Tensor::from(vec![1_u32; 6])];
    let error = refused(pair(), vec![on(&device, &[1; 8]), on(&device, &[1; 24])]);
    assert!(matches!(&error, Error::DestinationMismatch { index: 1, dtype: DType::U32, .. }), "{error}");
    let flat = Tensor::from(vec![1_u32; 6]).reshape(&[2, 3]).unwrap();
    let error = refused(pair(), vec![on(&device, &[1; 8]), up(flat, &device)]);
    let words = "tensor 1 has shape [6] of uint32, the one to copy it into [2, 3] of uint32; copy into one of the same shape and type";
    assert_eq!(error.to_string(), words);
    no_violations(&late);
}

/// catches: 110-shared-memory-written
#[test]
fn memory_that_somebody_else_holds_is_refused() {
    let (late, device) = late();
    let tensor = || Tensor::from(vec![3_u8; 8]);
    let destination = on(&device, &[1; 8]);
    let twin = destination.clone();
    let error = refused(vec![tensor()], vec![destination]);
    let (index, role, why) = unsuited(&error);
    assert_eq!((index, role), (0, "to copy into"));
    assert!(matches!(why, Error::NotWritable { why: "shared with another tensor or in flight" }), "{error}");
    assert_eq!(bytes_of(&twin), [1; 8]);

    // A view of it in the value, and one of its batch that is elsewhere.
    let error = refused(vec![tensor(), twin.narrow(0, 0, 4).unwrap()], vec![twin, on(&device, &[2; 4])]);
    assert!(matches!(unsuited(&error), (0, _, Error::NotWritable { .. })), "{error}");
    let mut packed = up(batch(1), &device);
    let elsewhere = packed.pop();
    let mut value = batch(2);
    value.pop();
    let error = refused(value, packed);
    assert!(matches!(unsuited(&error), (0, _, Error::NotWritable { .. })), "{error}");
    drop(elsewhere);

    // The same bytes twice, of which each would be exclusive with the other.
    let whole = on(&device, &[1; 8]);
    let overlapping = vec![whole.narrow(0, 4, 4).unwrap(), whole.narrow(0, 1, 4).unwrap()];
    drop(whole);
    let error = refused(vec![on(&device, &[1; 4]), on(&device, &[1; 4])], overlapping);
    let (index, _, why) = unsuited(&error);
    assert!(
        matches!(why, Error::NotWritable { why: "shared with another tensor to copy into" }) && index == 0
    );
    no_violations(&late);
}

#[test]
fn memory_that_may_not_be_written_or_does_not_suit_is_refused() {
    let (late, device) = late();
    let tensor = || Tensor::from(vec![3_u8; 4]);
    let refusal = |destination: Tensor| {
        let error = refused(vec![tensor(), tensor()], vec![Tensor::from(vec![0_u8; 4]), destination]);
        let (index, role, why) = unsuited(&error);
        assert_eq!((index, role), (1, "to copy into"), "{error}");
        why.clone()
    };
    let lent = refusal(Drops::default().tensor(vec![0; 4]));
    assert!(matches!(lent, Error::NotWritable { why: "lent read-only" }), "{lent}");
    let elsewhere = refusal(on(&device, &[0; 4]));
    assert!(matches!(elsewhere, Error::WrongDevice { expected, .. } if expected.is_host()), "{elsewhere}");
    let strided = Tensor::from(vec![0_u8; 8]).slice(0, 0..8, 2).unwrap();
    let strided = refusal(strided);
    assert!(matches!(strided, Error::NotContiguous { .. }), "{strided}");

    // Memory that somebody else lets the device read.
    let owner = on(&device, &[0; 4]);
    let memory = RawMemory { address: owner.address().unwrap().unwrap(), bytes: 4, kind: MemoryKind::Device };
    // SAFETY: `owner` keeps the memory alive, and nobody writes it.
    let foreign = unsafe { Tensor::from_raw(memory, Box::new(owner), &[4], DType::U8, &device) }.unwrap();
    let error = refused(vec![tensor()], vec![foreign]);
    assert!(matches!(unsuited(&error).2, Error::NotWritable { why: "lent read-only" }), "{error}");
    // Strides are kept on a device, and there is no room for them here.
    let strided = vec![on(&device, &[1; 8]).slice(0, 0..8, 2).unwrap()];
    let error = refused(strided, vec![tensor()]);
    assert!(matches!(unsuited(&error), (0, "to copy", Error::Unsupported { .. })), "{error}");
    no_violations(&late);
}

#[test]
fn tensors_that_begin_within_a_granule_are_refused() {
    let granularity = Alignment::of(4).unwrap();
    let (late, device) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("late") });
    let parts = |tensor: Tensor| vec![tensor.narrow(0, 0, 2).unwrap(), tensor.narrow(0, 2, 3).unwrap()];
    let host = || parts(Tensor::from(vec![5_u8; 5]));
    let error = refused(host(), parts(on(&device, &[1; 5])));
    assert!(matches!(
        unsuited(&error),
        (1, "to copy into", Error::Misaligned { value: 2, alignment: 4, .. })
    ));
    let error = refused(
        parts(on(&device, &[1; 5])),
        host().iter().map(|part| on(&device, &bytes_of(part))).collect(),
    );
    assert!(matches!(unsuited(&error), (1, "to copy", Error::Misaligned { value: 2, alignment: 4, .. })));
    // A packed batch is laid out in whole granules, whatever its tensors are like.
    let there =
        into(host(), up(vec![Tensor::from(vec![0_u8; 2]), Tensor::from(vec![0_u8; 3])], &device), options());
    assert_eq!(bytes(&there), [vec![5; 2], vec![5; 3]]);
    no_violations(&late);
}

/// catches: 114-whole-granules-written
#[test]
fn sources_in_larger_granules_are_written_no_further_than_they_go() {
    let granularity = Alignment::of(4).unwrap();
    let (late, source) = with(LateConfig { copy_granularity: granularity, ..LateConfig::new("late") });
    let (other, target) = with(LateConfig::new("other"));
    let (third, bytewise) = with(LateConfig::new("third"));
    let expected = [vec![0], vec![1; 5], vec![2; 3], vec![0; 3]].concat();
    let pairs = [Device::host(), target]
        .into_iter()
        .flat_map(|to| [&source, &bytewise, &to.clone()].map(|beside| (to.clone(), beside.clone())));
    for (device, beside) in pairs {
        let value =
            || vec![up(Tensor::from(vec![1_u8; 5]), &source), up(Tensor::from(vec![2_u8; 3]), &beside)];
        let whole = Tensor::from(vec![0_u8; 12]);
        let whole = into(whole, Tensor::empty(&[12], DType::U8, &device).unwrap(), options());
        let parts = vec![whole.narrow(0, 1, 5).unwrap(), whole.narrow(0, 6, 3).unwrap()];
        drop(whole);
        let parts = into(value(), parts, options());
        assert_eq!(bytes(&parts), [vec![1; 5], vec![2; 3]]);
        if device.is_host() {
            let (start, _) = parts[0].buffer().unwrap().host_pointer().unwrap();
            // SAFETY: so many bytes are there, all of them zeros at first, and the copy is done.
            assert_eq!(unsafe { std::slice::from_raw_parts(start.as_ptr(), 12) }, expected);
        } else {
            assert_eq!(all_bytes(&parts[0], &device), expected);
        }
    }
    [late, other, third].iter().for_each(no_violations);
}

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
    assert!(there.iter().filter(|tensor| tensor.bytes() > 0).all(|tensor| !tensor.is_ready().unwrap()));
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
        device.shutdown().unwrap();
        no_violations(&late);
    }
}

/// Both structures, of a copy that failed or was stopped: the one cannot be read, and another copy fills it.
#[track_caller]
fn fills_once_more(device: &Device, (value, destination): (Option<Vec<Tensor>>, Option<Vec<Tensor>>)) {
    let (value, mut destination) =
        (value.expect("the value comes back"), destination.expect("so does the other"));
    let filled = destination.iter().filter(|tensor| tensor.bytes() > 0);
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
            assert!(failed.to_string().contains("told to fail"), "{failed}");
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

#[test]
fn structures_without_elements_are_copied_at_once() {
    let (late, device) = late();
    assert!(into(Vec::<Tensor>::new(), Vec::new(), options()).is_empty());
    let empty = || Tensor::from(Vec::<u8>::new());
    let there = up(empty(), &device);
    let shared = there.clone();
    assert_eq!(into(empty(), there, options()).device_id().unwrap(), device.id());
    drop(shared);
    no_violations(&late);
}

/// A structure that shows its tensors in another order from a certain visit on.
struct Fickle {
    tensors: Vec<Tensor>,
    visits: usize,
    until: usize,
}

impl Fickle {
    fn new(device: &Device, until: usize) -> Self {
        Self { tensors: vec![on(device, &[1; 4]), on(device, &[2; 8])], visits: 0, until }
    }
}

impl TensorTree for Fickle {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.visits += 1;
        if self.visits == self.until {
            self.tensors.reverse();
        }
        self.tensors.iter_mut().try_for_each(|tensor| visitor.tensor(tensor))
    }
}

/// catches: 113-sizes-not-compared-again
#[test]
fn a_structure_that_changes_is_an_error() {
    let (late, device) = late();
    // The value is looked at before its tensors are taken.
    let (value, destination) = (Fickle::new(&device, 2), Fickle::new(&device, 0));
    let failed = start_copy_into(value, destination, options()).unwrap_err();
    assert!(matches!(failed.error(), Error::TreeChanged { .. }), "{failed}");
    let (_, destination) = failed.into_both();
    assert_eq!(bytes(&destination.unwrap().tensors), [vec![1; 4], vec![2; 8]]);
    let (value, destination) = (Fickle::new(&device, 0), Fickle::new(&device, 2));
    let failed = start_copy_into(value, destination, options()).unwrap().wait().map(|_| ()).unwrap_err();
    assert!(matches!(failed.error(), Error::TreeChanged { .. }), "{failed}");
    assert!(matches!(failed.into_both(), (None, None)), "some of its tensors have no memory");
    device.synchronize().unwrap();
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

#[test]
fn what_lies_between_views_of_one_tensor_is_left_alone() {
    let (late, device) = late();
    let whole = on(&device, &[9; 24]);
    let parts = [0, 8].map(|start| whole.narrow(0, start, 4).unwrap()).to_vec();
    drop(whole);
    let values = [1_u8, 2].map(|value| Tensor::from(vec![value; 4])).to_vec();
    let parts = start_copy_into(values, parts, options()).and_then(CopyHandle::wait).unwrap();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let all = Kernel::of_whole_memory(&parts[0], &stream).result();
    assert_eq!(&all[..12], [[1; 4], [9; 4], [2; 4]].concat());
    no_violations(&late);
}

#[test]
fn tensors_without_elements_may_lie_anywhere() {
    let granules = LateConfig { copy_granularity: Alignment::of(4).unwrap(), ..LateConfig::new("late") };
    let (late, device) = with(granules);
    let empty = on(&device, &[9; 24]).narrow(0, 1, 3).unwrap().narrow(0, 0, 0).unwrap();
    let to = Tensor::empty(&[0], DType::U8, &Device::host()).unwrap();
    let copied = start_copy_into(vec![empty], vec![to], options()).and_then(CopyHandle::wait).unwrap();
    assert_eq!(copied[0].shape(), [0]);
    no_violations(&late);
}
