//! Good files: every byte of every tensor, on every kind of device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use late_backend::LateConfig;
use proptest::prelude::*;
use support::{
    check, devices, entry, file_of, folder, index_of, late, mixed, no_violations, options, path_of,
};
use transship::{CopyOptions, Device, start_copy, start_copy_into};
use transship_safetensors::{LoadError, Progress, SaveOptions, SaveProgress, load, load_files, save};

/// catches: 199-next-block-goes-to-the-start
#[test]
fn every_byte_arrives_on_every_device() {
    let entries = mixed("layer", 1);
    let folder = folder(&[("model.safetensors", file_of(&entries))]);
    let path = path_of(&folder, "model.safetensors");
    for (device, late) in devices() {
        for (budget, threads) in [(64 << 10, 1), (64 << 10, 5), (1 << 20, 3), (64 << 20, 8)] {
            let tensors = load(&path, &device, options().budget(budget).threads(threads)).unwrap();
            check(&tensors, &entries, &device);
        }
        device.drain().unwrap();
        no_violations(late.as_ref());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_tensors_arrive(
        shapes in proptest::collection::vec((0_usize..16, proptest::collection::vec(0_usize..40, 0..4)), 0..60),
        large in 0_usize..3 << 20,
        threads in 1_usize..6,
    ) {
        let one = |(number, (dtype, shape)): (usize, &(usize, Vec<usize>))| {
            entry(&format!("t{number}"), *dtype, shape, number)
        };
        let mut entries: Vec<_> = shapes.iter().enumerate().map(one).collect();
        entries.insert(entries.len() / 2, entry("large", 1, &[large], 7));
        let folder = folder(&[("a.safetensors", file_of(&entries))]);
        let (handle, device) = late(LateConfig::new("late"));
        for device in [Device::host(), device] {
            let options = options().budget(128 << 10).threads(threads);
            check(&load(path_of(&folder, "a.safetensors"), &device, options).unwrap(), &entries, &device);
        }
        no_violations(Some(&handle));
    }
}

#[test]
fn a_sharded_model_is_loaded_by_its_index_its_folder_and_its_files() {
    let (one, two) = (mixed("one", 1), mixed("two", 2));
    let index = index_of(&[("a.safetensors", &one), ("b.safetensors", &two)]);
    let folder = folder(&[
        ("a.safetensors", file_of(&one)),
        ("b.safetensors", file_of(&two)),
        ("model.safetensors.index.json", index),
        ("config.json", b"{}".to_vec()),
    ]);
    let all = [one.clone(), two.clone()].concat();
    for (device, late) in devices() {
        check(
            &load(path_of(&folder, "model.safetensors.index.json"), &device, options()).unwrap(),
            &all,
            &device,
        );
        check(&load(folder.path(), &device, options()).unwrap(), &all, &device);
        let files = [path_of(&folder, "b.safetensors"), path_of(&folder, "a.safetensors")];
        let tensors = load_files(&files, &device, options()).unwrap();
        check(&tensors, &all, &device);
        assert_eq!(tensors.files().iter().map(|file| file.path()).collect::<Vec<_>>(), files);
        no_violations(late.as_ref());
    }
    std::fs::remove_file(path_of(&folder, "model.safetensors.index.json")).unwrap();
    check(&load(folder.path(), &Device::host(), options()).unwrap(), &all, &Device::host());
}

#[test]
fn a_filter_leaves_tensors_out_and_files_that_hold_none() {
    let (one, two) = (mixed("one", 1), mixed("two", 2));
    let index = index_of(&[("a.safetensors", &one), ("not-there.safetensors", &two)]);
    let folder = folder(&[("a.safetensors", file_of(&one)), ("x.safetensors.index.json", index)]);
    for (device, late) in devices() {
        let tensors =
            load(folder.path(), &device, options().filter(|name| name.starts_with("one.1"))).unwrap();
        let kept: Vec<_> = one.iter().filter(|entry| entry.name.starts_with("one.1")).cloned().collect();
        assert!(kept.len() > 5);
        check(&tensors, &kept, &device);
        let none = load(folder.path(), &device, options().filter(|_| false)).unwrap();
        assert!(none.is_empty() && none.files().is_empty());
        no_violations(late.as_ref());
    }
    assert!(matches!(load(folder.path(), &Device::host(), options()), Err(LoadError::Open { .. })));
}

#[test]
fn a_type_that_does_not_exist_here_can_be_left_out() {
    for dtype in ["F8_E5M2FNUZ", "a type of later years"] {
        let mut entries = mixed("t", 1);
        entries[3].dtype = dtype;
        entries[3].shape = vec![entries[3].bytes.len()];
        let folder = folder(&[("a.safetensors", file_of(&entries))]);
        let tensors = load(folder.path(), &Device::host(), options().filter(|name| name != "t.3")).unwrap();
        entries.remove(3);
        check(&tensors, &entries, &Device::host());
    }
}

#[test]
fn tensors_are_a_map_that_copies_go_through() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (handle, device) = late(LateConfig::new("late"));
    let mut tensors = load(folder.path(), &device, options()).unwrap();
    assert_eq!((tensors.metadata("format"), tensors.metadata("nothing")), (Some("pt"), None));
    assert_eq!(tensors.files()[0].metadata()["made by"], "a test");
    assert_eq!((tensors.len(), tensors.iter().len()), (entries.len(), entries.len()));
    let down = start_copy(tensors.clone(), &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    check(&down, &entries, &Device::host());

    let other: Vec<_> = entries
        .iter()
        .map(|entry| support::Entry {
            bytes: entry.bytes.iter().map(|byte| byte & 1).collect(),
            ..entry.clone()
        })
        .collect();
    let new = support::folder(&[("a.safetensors", file_of(&other))]);
    let new = load(new.path(), &Device::host(), options()).unwrap();
    let filled = start_copy_into(new, tensors, CopyOptions::default()).unwrap().wait().unwrap();
    check(&filled, &other, &device);
    tensors = filled;

    let large = tensors.remove("t.large").unwrap();
    assert_eq!(
        (large.retained_bytes(), tensors.get("t.large").is_none()),
        (((1 << 20) + 12_345_usize).next_multiple_of(256), true)
    );
    let (name, first) = tensors.into_iter().next().unwrap();
    assert_eq!((name.as_str(), first.shape()), ("t.0", &[][..]));
    assert!(first.retained_bytes() > 1000, "small tensors share memory");
    no_violations(Some(&handle));
}

/// What was read of one file is not taken for the other, which has tensors in the same places.
///
/// catches: 437-window-of-another-file
#[test]
fn small_files_that_are_alike_are_told_apart() {
    let of = |name: &str, seed| {
        (0..40).map(|at| entry(&format!("{name}{at}"), 11, &[at, 10], seed + at)).collect()
    };
    let (one, two): (Vec<_>, Vec<_>) = (of("a", 1), of("b", 100));
    let folder = folder(&[("a.safetensors", file_of(&one)), ("b.safetensors", file_of(&two))]);
    for (device, late) in devices() {
        let tensors = load(folder.path(), &device, options().threads(1)).unwrap();
        check(&tensors, &[one.clone(), two.clone()].concat(), &device);
        no_violations(late.as_ref());
    }
}

#[test]
fn a_file_without_tensors_is_a_file() {
    let folder =
        folder(&[("a.safetensors", support::with_header("{}", &[])), ("b.safetensors", file_of(&[]))]);
    for (device, _late) in devices() {
        let tensors = load(folder.path(), &device, options()).unwrap();
        assert!(tensors.is_empty());
        assert_eq!(tensors.files().len(), 2);
    }
}

#[test]
fn tensors_without_elements_have_no_bytes_to_read() {
    let entries = [entry("a", 3, &[0], 0), entry("b", 12, &[4, 0, 2], 0)];
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    for (device, _late) in devices() {
        check(&load(folder.path(), &device, options()).unwrap(), &entries, &device);
    }
}

#[test]
fn progress_can_be_looked_at() {
    let entries = mixed("t", 3);
    let bytes = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (_late, device) = late(LateConfig::new("late"));
    for device in [Device::host(), device] {
        let progress = Arc::new(Progress::default());
        assert_eq!(progress.total_bytes(), 0);
        load(folder.path(), &device, options().progress(&progress)).unwrap();
        assert_eq!((progress.total_bytes(), progress.read_bytes()), (bytes, bytes));
    }
}

#[test]
fn progress_of_saving_can_be_looked_at() {
    let entries = mixed("t", 3);
    let bytes = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (_late, device) = late(LateConfig::new("late"));
    for device in [Device::host(), device] {
        let tensors = load(path_of(&folder, "a.safetensors"), &device, options()).unwrap();
        let progress = Arc::new(SaveProgress::default());
        assert_eq!((progress.total_bytes(), progress.written_bytes()), (0, 0));
        for path in [path_of(&folder, "b.safetensors"), path_of(&folder, "model")] {
            let options = SaveOptions::default().progress(&progress).budget(128 << 10);
            let options = if path.extension().is_none() { options.shard_bytes(100_000) } else { options };
            save(&tensors, path, options).unwrap();
            assert_eq!((progress.total_bytes(), progress.written_bytes()), (bytes, bytes));
        }
    }
}

#[test]
fn the_filter_is_asked_once_for_each_name() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let options = options().filter(move |_| count.fetch_add(1, Ordering::Relaxed) < 3);
    assert_eq!(load(folder.path(), &Device::host(), options).unwrap().len(), 3);
    assert_eq!(asked.load(Ordering::Relaxed), entries.len());
}
