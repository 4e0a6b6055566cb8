//! Copies into memory that the caller holds: what arrives there, and what does not change.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use late_backend::LateConfig;
use support::held::{MODES, batch, bytes, into, options, ordinary, up};
use support::{Kernel, bytes_of, late, no_violations, on, two, with};
use transship_core::backend::StreamPriority;
use transship_core::{Alignment, CopyHandle, DType, Device, Tensor, start_copy, start_copy_into};

/// All bytes of the memory that a tensor lies in.
fn all_bytes(tensor: &Tensor, device: &Device) -> Vec<u8> {
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let bytes = Kernel::of_whole_memory(tensor, &stream).result();
    stream.synchronize().unwrap();
    bytes
}

fn addresses(tensors: &[Tensor]) -> Vec<Option<u64>> {
    tensors.iter().map(|tensor| tensor.address().unwrap()).collect()
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
            let granularity = Alignment::new(if gather.is_none() { 4 } else { 1 }).unwrap();
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

/// catches: 114-whole-granules-written
#[test]
fn sources_in_larger_granules_are_written_no_further_than_they_go() {
    let granularity = Alignment::new(4).unwrap();
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

/// Memory without a tensor is on no device: a stream of any finds it filled.
#[test]
fn a_stream_need_not_wait_for_a_copy_of_nothing() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    let nothing = Vec::<Tensor>::new;
    let copy = start_copy_into(nothing(), nothing(), options()).unwrap();
    assert!(copy.wait_on(&stream).unwrap().is_empty());
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
    let granules = LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("late") };
    let (late, device) = with(granules);
    let empty = on(&device, &[9; 24]).narrow(0, 1, 3).unwrap().narrow(0, 0, 0).unwrap();
    let to = Tensor::empty(&[0], DType::U8, &Device::host()).unwrap();
    let copied = start_copy_into(vec![empty], vec![to], options()).and_then(CopyHandle::wait).unwrap();
    assert_eq!(copied[0].shape(), [0]);
    no_violations(&late);
}

/// A segment may begin behind the end of what the caller's memory has of the last granule, by that of another source.
#[test]
fn a_paced_copy_from_devices_with_other_granules_ends_where_the_memory_does() {
    let (bytes, words) = (
        with(LateConfig::new("late-bytes")),
        with(LateConfig { copy_granularity: Alignment::new(4).unwrap(), ..LateConfig::new("late-words") }),
    );
    let long: Vec<u8> = (0..4097).map(|index| (index % 251) as u8).collect();
    let paced = || options().max_bytes_in_flight(4098);
    let (one, other) = (on(&bytes.1, &long), on(&words.1, &[7; 8]));
    let held = vec![
        Tensor::empty(&[4097], DType::U8, &Device::host()).unwrap(),
        Tensor::empty(&[8], DType::U8, &Device::host()).unwrap(),
    ];
    let down = into(vec![one, other], held, paced());
    assert_eq!((bytes_of(&down[0]), bytes_of(&down[1])), (long.clone(), vec![7; 8]));
    // The same way up.
    let other = on(&words.1, &[9; 8]);
    let held = vec![
        Tensor::empty(&[4097], DType::U8, &bytes.1).unwrap(),
        Tensor::empty(&[8], DType::U8, &bytes.1).unwrap(),
    ];
    let up = into(vec![Tensor::from(long.clone()), other], held, paced());
    assert_eq!((bytes_of(&up[0]), bytes_of(&up[1])), (long, vec![9; 8]));
    no_violations(&bytes.0);
    no_violations(&words.0);
}
