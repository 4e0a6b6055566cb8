//! What happens while files are read: they change, or the device fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use late_backend::{Call, LateConfig};
use support::{check, file_of, folder, late, mixed, no_violations, options, path_of};
use transship::Device;
use transship_safetensors::{LoadError, load};

/// Loads a file to which `change` happens when its header is read and its tensors are not.
fn load_while(change: impl Fn(&Path) + Clone + Send + 'static) -> Vec<Result<usize, LoadError>> {
    let (_late, device) = late(LateConfig::new("late"));
    let one = |device: &Device| {
        let folder = folder(&[("a.safetensors", file_of(&mixed("t", 3)))]);
        let path = path_of(&folder, "a.safetensors");
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        drop(file);
        let (changed, change) = (path.clone(), change.clone());
        let filter = move |name: &str| {
            if name == "t.0" {
                change(&changed);
            }
            true
        };
        load(path, device, options().filter(filter)).map(|tensors| tensors.len())
    };
    vec![one(&device), one(&Device::host())]
}

/// catches: 209-changed-file-not-noticed
#[test]
fn a_file_that_changes_is_an_error() {
    for loaded in load_while(|_| ()) {
        assert_eq!(loaded.unwrap(), mixed("t", 3).len());
    }
    let changes: [fn(&Path); 5] = [
        // As long as before, with other bytes.
        |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        },
        // The same bytes in another file, of the same time.
        |path| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            let other = path.with_extension("new");
            fs::copy(path, &other).unwrap();
            fs::File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
            fs::rename(other, path).unwrap();
        },
        // Other bytes in the same place, and the time put back.
        |path| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
            fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
        },
        |path| fs::File::options().write(true).open(path).unwrap().set_len(100_000).unwrap(),
        |path| fs::remove_file(path).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        if [1, 2].contains(&number) && !cfg!(unix) {
            continue;
        }
        for loaded in load_while(change) {
            let error = loaded.unwrap_err();
            assert!(matches!(error, LoadError::Changed { .. }), "{number}: {error}");
            assert!(error.to_string().contains("a.safetensors"), "{error}");
        }
    }
}

#[test]
fn a_device_that_fails_at_any_call_is_an_error_and_leaves_nothing() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    for call in [Call::Allocate, Call::Staging, Call::Submit, Call::Record, Call::Query, Call::Wait] {
        let mut failed = 0;
        for after in [0, 1, 2, 5, 11] {
            let (late, device) = late(LateConfig::new("late"));
            late.fail_next(call, after);
            match load(folder.path(), &device, options().budget(256 << 10).threads(3)) {
                Ok(tensors) => {
                    late.fail_no_more();
                    check(&tensors, &entries, &device);
                }
                Err(error) => {
                    failed += 1;
                    late.fail_no_more();
                    let about = matches!(error, LoadError::Device { .. } | LoadError::Finish { .. });
                    assert!(about, "{call:?} {after}: {error}");
                }
            }
            device.drain().unwrap();
            // What a stream that fails has in flight is leaked.
            if !matches!(call, Call::Wait | Call::Query) {
                assert_eq!(device.counters().device_bytes, 0, "{call:?} {after}");
            }
            no_violations(Some(&late));
        }
        assert!(failed > 0 || matches!(call, Call::Wait | Call::Query), "no {call:?} has failed");
    }
}

#[test]
fn a_device_that_breaks_is_an_error() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (handle, device) = late(LateConfig::new("late"));
    let breaking = handle.clone();
    let options = options().filter(move |name| {
        if name == "t.9" {
            breaking.break_device();
        }
        true
    });
    let error = load(folder.path(), &device, options).unwrap_err();
    assert!(matches!(error, LoadError::Device { .. } | LoadError::Finish { .. }), "{error}");
    no_violations(Some(&handle));
}

#[test]
fn a_device_without_memory_names_the_tensor() {
    let entries = mixed("t", 3);
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    for config in [
        LateConfig { device_memory: 1 << 20, ..LateConfig::new("late") },
        LateConfig { largest_buffer: 1 << 20, ..LateConfig::new("late") },
    ] {
        let (handle, device) = late(config);
        let error = load(folder.path(), &device, options()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, LoadError::Device { .. }), "{text}");
        assert!(text.contains("a.safetensors") && text.contains("tensor \"t."), "{text}");
        device.drain().unwrap();
        assert_eq!(device.counters().device_bytes, 0);
        no_violations(Some(&handle));
    }
}
