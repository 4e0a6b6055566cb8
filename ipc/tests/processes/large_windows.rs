//! Windows of so many tensors that they are filled in parts.

use std::collections::BTreeMap;
use std::time::Duration;

use late_backend::Call;
use libtest_mimic::Trial;
use transship_core::{CopyHandle, CopyOptions, DType, Device, Error, Tensor, start_copy, start_copy_into};
use transship_ipc::{IpcError, Window};

use crate::exported::pair;
use crate::support::{LONG, case, cuda_case, devices, folder, that_fails};
use crate::windows::write;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("all_parts_of_a_large_window_arrive", || all_parts_arrive(&Device::host())),
        cuda_case("cuda_all_parts_of_a_large_window_arrive", all_parts_arrive),
        case("a_part_that_fails_is_not_handed_over", a_part_that_fails_is_not_handed_over),
        case("a_tensor_that_nothing_has_filled_is_named_by_its_path", what_is_not_filled_is_named),
        case("large_trees_come_again_in_their_memory", large_trees_come_again),
    ]
}

const SHORT: Duration = Duration::from_millis(20);
const TENSORS: usize = 600;

/// Of several sizes, some of none, shown in another order than that of their paths, and one of them twice.
fn large(version: u8) -> BTreeMap<String, Vec<Tensor>> {
    let tensor = |number: usize| {
        let bytes = if number.is_multiple_of(50) { 0 } else { 60_000 + number };
        Tensor::from(vec![version.wrapping_add(number as u8); bytes])
    };
    let mut tree: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for number in 0..TENSORS {
        tree.entry(format!("layer {}", number % 7)).or_default().push(tensor(number));
    }
    let shared = tree["layer 1"][1].clone();
    tree.entry("tied".to_owned()).or_default().push(shared);
    tree
}

fn bytes_of(tree: &BTreeMap<String, Vec<Tensor>>) -> Vec<Vec<u8>> {
    let there = start_copy(tree.clone(), &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    there.values().flatten().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

fn check(window: &Window, version: u8) {
    let mut tree = large(0);
    window.written_within(LONG).unwrap().put_into(&mut tree).unwrap();
    assert!(bytes_of(&tree) == bytes_of(&large(version)), "other bytes than those of version {version}");
}

fn all_parts_arrive(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let window = connection.open_window(&large(0), device).unwrap();
    for version in [1, 100] {
        write(&mut importer, &large(version));
        check(&window, version);
        let there = start_copy(large(version + 1), device, CopyOptions::default()).unwrap().wait().unwrap();
        write(&mut importer, &there);
        check(&window, version + 1);
    }
}

/// catches: 698-a-part-that-fails-is-taken-for-copied, 699-places-of-a-part-that-fails-are-dropped
fn a_part_that_fails_is_not_handed_over() {
    let (late, device) = that_fails();
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let window = connection.open_window(&large(0), devices()[0]).unwrap();
    for after in 0..3 {
        let version = 10 * (after + 1);
        let there = start_copy(large(version), &device, CopyOptions::default()).unwrap().wait().unwrap();
        late.fail_next(Call::Submit, after.into());
        let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
        turn.put(&there).unwrap_err();
        late.fail_no_more();
        assert!(matches!(turn.finish(), Err(IpcError::HalfWritten)));
        assert!(matches!(window.written_within(SHORT), Err(IpcError::NotInTime { .. })));
        write(&mut importer, &there);
        check(&window, version);
    }
}

/// In any part, and in a tree that is copied as one.
///
/// catches: 703-named-by-its-number-in-a-part
fn what_is_not_filled_is_named() {
    let (late, device) = that_fails();
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let small = || BTreeMap::from([("layer 6".to_owned(), large(0)["layer 6"][..3].to_vec())]);
    for (tree, key, number) in [(large(0), "layer 0", 1), (large(0), "layer 6", 80), (small(), "layer 6", 2)]
    {
        let _window = connection.open_window(&tree, devices()[0]).unwrap();
        let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
        let mut there = tree.clone();
        let tensor = &mut there.get_mut(key).unwrap()[number];
        let place = Tensor::zeros(&[tensor.nbytes()], DType::U8, &device).unwrap();
        late.fail_next(Call::Submit, 0);
        let copy = start_copy_into(vec![tensor.clone()], vec![place], CopyOptions::default());
        let failed = copy.and_then(CopyHandle::wait).unwrap_err();
        late.fail_no_more();
        *tensor = failed.into_error_and_destination().1.unwrap().remove(0);
        let expected = format!("[\"{key}\"][{number}]");
        let error = turn.put(&there).unwrap_err();
        assert!(matches!(&error, Error::UnsuitedTensor { path, .. } if *path == expected), "{error}");
        turn.put(&tree).unwrap();
        turn.finish().unwrap();
    }
}

fn large_trees_come_again() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    for version in [1, 2, 3, 4] {
        let offer = connection.export(&large(version)).unwrap();
        let mut tree = large(0);
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut tree).unwrap();
        assert!(bytes_of(&tree) == bytes_of(&large(version)), "other bytes than those of version {version}");
        drop(tree);
        offer.wait_released(LONG).unwrap();
    }
}
