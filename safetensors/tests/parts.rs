//! What is loaded otherwise than it lies in the file: cast, narrowed, read past the page cache.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use late_backend::LateConfig;
use proptest::prelude::*;
use support::{Entry, bytes_of, check, devices, entry, file_of, folder, late, mixed, no_violations, options};
use tempfile::TempDir;
use transship::{Cast, CopyOptions, DType, Device, Error, Tensor, start_copy};
use transship_safetensors::{LoadError, LoadOptions, Progress, Tensors, load};

type Rule<'a> = &'a dyn Fn(&str, &[usize]) -> Option<(usize, Range<usize>)>;

/// On the disk that this was built on: temporary folders may be memory.
fn on_disk(entries: &[Entry]) -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path().join("a.safetensors"), file_of(entries)).unwrap();
    folder
}

/// Tensors whose parts lie close together, far apart, and in several blocks; the offsets of most are odd.
fn entries() -> Vec<Entry> {
    let mut entries = mixed("t", 1);
    for (number, (dtype, shape)) in [
        (11, vec![300, 333]),
        (1, vec![20, 90_000]),
        (8, vec![7, 3, 20_001]),
        (9, vec![600_001]),
        (10, vec![3, 800, 2]),
    ]
    .into_iter()
    .enumerate()
    {
        entries.push(entry(&format!("matrix.{number}"), dtype, &shape, number));
    }
    entries
}

/// Some items of the last dimension of half of the tensors, and of the first one of others.
fn rule(name: &str, shape: &[usize]) -> Option<(usize, Range<usize>)> {
    let dim = match name.len() + name.bytes().map(usize::from).sum::<usize>() {
        number if number % 3 == 0 => shape.len().checked_sub(1)?,
        number if number % 3 == 1 => 0,
        _ => return None,
    };
    let count = *shape.get(dim)?;
    Some((dim, count / 4..count - count / 3))
}

fn casts() -> Vec<Cast> {
    vec![
        Cast::new(DType::F32, DType::BF16),
        Cast::new(DType::F16, DType::F64),
        Cast::new(DType::I64, DType::I16).saturating(),
        Cast::new(DType::U8, DType::F32).scaled(0.5, -3.0),
        Cast::new(DType::I32, DType::I64),
    ]
}

fn with_casts(options: LoadOptions) -> LoadOptions {
    casts().into_iter().fold(options, LoadOptions::cast)
}

/// Each tensor of `whole`, narrowed and cast by a copy.
fn expected(whole: Tensors, rule: Rule<'_>) -> Vec<(String, Tensor)> {
    let options = casts().into_iter().fold(CopyOptions::default(), CopyOptions::cast);
    let part = |(name, tensor): (String, Tensor)| {
        let part = match rule(&name, tensor.shape()) {
            None => tensor,
            Some((dim, items)) => tensor.narrow(dim, items.start, items.len()).unwrap(),
        };
        (name, start_copy(part, &Device::host(), options.clone()).unwrap().wait().unwrap())
    };
    whole.into_iter().map(part).collect()
}

#[track_caller]
fn same(loaded: &Tensors, expected: &[(String, Tensor)], device: &Device, how: &str) {
    assert_eq!(loaded.len(), expected.len());
    for (name, tensor) in expected {
        let found = loaded.get(name).unwrap();
        assert_eq!((found.shape(), found.dtype()), (tensor.shape(), tensor.dtype()), "{name}");
        assert_eq!(found.device_id().unwrap(), device.id());
        assert!(bytes_of(found) == bytes_of(tensor), "{name} of {:?} on {device:?} {how}", tensor.shape());
    }
}

/// catches: 435-runs-without-their-distance, 436-block-cuts-what-the-file-has
#[test]
fn parts_and_casts_arrive_on_every_device() {
    let folder = on_disk(&entries());
    let expected = expected(load(folder.path(), &Device::host(), options()).unwrap(), &rule);
    for (device, late) in devices() {
        for (budget, threads, direct) in [(64 << 10, 3, false), (1 << 20, 3, true), (64 << 20, 2, false)] {
            let options =
                with_casts(options()).narrow(rule).direct_io(direct).budget(budget).threads(threads);
            let how = format!("with {budget} bytes, {threads} threads, direct: {direct}");
            same(&load(folder.path(), &device, options).unwrap(), &expected, &device, &how);
        }
        device.drain().unwrap();
        no_violations(late.as_ref());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_parts_arrive(
        tensors in proptest::collection::vec(
            (0_usize..16, proptest::collection::vec(0_usize..24, 1..4), 0_usize..3, 0_usize..24, 0_usize..24), 0..30),
        wide in (1_usize..20, 1_usize..40_000, 0_usize..1000, 1_usize..1000),
        is_direct in any::<bool>(),
    ) {
        let one = |(number, (dtype, shape, ..)): (usize, &(usize, Vec<usize>, usize, usize, usize))| {
            entry(&format!("{number}"), *dtype, shape, number)
        };
        let mut entries: Vec<_> = tensors.iter().enumerate().map(one).collect();
        let (rows, columns, start, share) = wide;
        entries.push(entry("wide", 11, &[rows, columns], 1));
        let items = move |name: &str, shape: &[usize]| {
            if name == "wide" {
                let start = columns * start / 1000;
                return Some((1, start..start + (columns - start) * share / 1000));
            }
            let (_, _, dim, start, count) = tensors[name.parse::<usize>().unwrap()];
            let size = *shape.get(dim)?;
            Some((dim, start.min(size)..(start + count).min(size)))
        };
        let folder = on_disk(&entries);
        let expected = expected(load(folder.path(), &Device::host(), options()).unwrap(), &items);
        let (handle, device) = late(LateConfig::new("late"));
        for device in [Device::host(), device] {
            let options = with_casts(options()).narrow(items.clone()).direct_io(is_direct).budget(128 << 10).threads(3);
            same(&load(folder.path(), &device, options).unwrap(), &expected, &device, "");
        }
        no_violations(Some(&handle));
    }
}

/// Of each type alone: on the host, and on a device.
fn refused(entries: &[Entry], options: impl Fn() -> LoadOptions) -> LoadError {
    let folder = folder(&[("bad.safetensors", file_of(entries))]);
    let (handle, device) = late(LateConfig::new("late"));
    let on_device = load(folder.path(), &device, options()).map(|_| ()).unwrap_err();
    let on_host = load(folder.path(), &Device::host(), options()).map(|_| ()).unwrap_err();
    assert_eq!(on_device.to_string(), on_host.to_string());
    device.drain().unwrap();
    assert_eq!(device.counters().device_bytes, 0);
    no_violations(Some(&handle));
    on_host
}

fn integers(name: &str, shape: &[usize], value: impl Fn(usize) -> i64) -> Entry {
    let bytes = (0..shape.iter().product()).flat_map(|at| value(at).to_le_bytes()).collect();
    Entry { name: name.to_owned(), dtype: "I64", shape: shape.to_vec(), bytes }
}

/// catches: 438-element-of-the-window, 439-values-not-looked-at
#[test]
fn an_integer_that_does_not_fit_is_named() {
    let entries = [
        entry("odd", 1, &[3], 1),
        integers("ids", &[1000, 100], |at| if at == 77_050 { -129 } else { (at % 256) as i64 - 128 }),
    ];
    let narrow = || options().cast(Cast::new(DType::I64, DType::I8));
    let error = refused(&entries, narrow);
    assert!(
        matches!(&error, LoadError::DoesNotFit { tensor, element: 77_050, value: -129, from: DType::I64, to: DType::I8, .. } if tensor == "ids")
    );
    for part in ["bad.safetensors", "element 77050", "\"ids\"", "-129", "int8", "saturating"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // Of the part that is loaded; and not looked at outside of it.
    let error = refused(&entries, || {
        narrow().narrow(|_, shape| Some((shape.len() - 1, 50..60)).filter(|_| shape.len() > 1))
    });
    assert!(matches!(error, LoadError::DoesNotFit { element: 7700, value: -129, .. }), "{error}");
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let without = narrow().narrow(|_, shape| Some((shape.len() - 1, 51..60)).filter(|_| shape.len() > 1));
    load(folder.path(), &Device::host(), without).unwrap();
    let saturating = options().cast(Cast::new(DType::I64, DType::I8).saturating());
    let tensors = load(folder.path(), &Device::host(), saturating).unwrap();
    assert_eq!(tensors.get("ids").unwrap().as_slice::<i8>().unwrap()[77_050], -128);
}

#[test]
fn the_rule_is_asked_once_and_progress_counts_what_is_wanted() {
    let entries = [entry("w", 11, &[4, 1000], 1), entry("whole", 11, &[7], 1), entry("not", 11, &[70], 1)];
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (progress, asked) = (Arc::new(Progress::default()), Arc::new(Mutex::new(Vec::new())));
    let noted = asked.clone();
    let options = options().progress(&progress).filter(|name| name != "not").narrow(move |name, shape| {
        noted.lock().unwrap().push((name.to_owned(), shape.to_vec()));
        (name == "w").then_some((1, 100..200))
    });
    load(folder.path(), &Device::host(), options.cast(Cast::new(DType::F32, DType::F64))).unwrap();
    assert_eq!(*asked.lock().unwrap(), [("w".to_owned(), vec![4, 1000]), ("whole".to_owned(), vec![7])]);
    let bytes = (4 * 100 + 7) * 4;
    assert_eq!((progress.total_bytes(), progress.read_bytes(), progress.direct_bytes()), (bytes, bytes, 0));
}

/// catches: 444-items-behind-the-last
#[test]
fn items_that_are_not_there_are_errors() {
    let entries = [entry("first", 1, &[3], 1), entry("w", 11, &[4, 6], 1)];
    for (dim, start, end) in
        [(0, 3, 5), (1, 7, 7), (1, 0, usize::MAX), (2, 0, 1), (usize::MAX, 0, 0), (0, 2, 1)]
    {
        let error = refused(&entries, || {
            options().narrow(move |name, _| (name == "w").then_some((dim, Range { start, end })))
        });
        assert!(matches!(&error, LoadError::Narrow { tensor, .. } if tensor == "w"), "{error}");
        for part in ["bad.safetensors", "\"w\"", "[4, 6]", &format!("{start}..{end} of dimension {dim}")] {
            assert!(error.to_string().contains(part), "no {part} in: {error}");
        }
    }
}

#[test]
fn the_last_cast_of_a_type_counts_and_those_that_cannot_be_are_errors() {
    let folder = folder(&[("a.safetensors", file_of(&[entry("w", 11, &[4], 1)]))]);
    let twice = options().cast(Cast::new(DType::F32, DType::BF16)).cast(Cast::new(DType::F32, DType::F64));
    assert_eq!(load(folder.path(), &Device::host(), twice).unwrap().get("w").unwrap().dtype(), DType::F64);
    let as_it_is = options().cast(Cast::new(DType::F32, DType::BF16)).cast(Cast::new(DType::F32, DType::F32));
    assert_eq!(load(folder.path(), &Device::host(), as_it_is).unwrap().get("w").unwrap().dtype(), DType::F32);
    for cast in [
        Cast::new(DType::F32, DType::I8),
        Cast::new(DType::F8E5M2, DType::F32),
        Cast::new(DType::F32, DType::BF16).saturating(),
    ] {
        let error = load(folder.path(), &Device::host(), options().cast(cast)).unwrap_err();
        assert!(matches!(error, LoadError::Option(Error::InvalidOption { name: "cast", .. })), "{error}");
    }
}

/// catches: 440-direct-window-begins-where-it-is-asked
#[test]
fn files_are_read_past_the_page_cache_where_that_is_asked_for() {
    let entries = entries();
    let folder = on_disk(&entries);
    let path = folder.path().join("a.safetensors");
    let file_bytes = std::fs::metadata(&path).unwrap().len();
    let (handle, device) = late(LateConfig::new("late"));
    for device in [Device::host(), device] {
        for (direct, filter) in [(Some(true), ""), (Some(false), ""), (None, ""), (Some(true), "t.1")] {
            let progress = Arc::new(Progress::default());
            let options = options().progress(&progress).filter(move |name| name.starts_with(filter));
            let options = direct.into_iter().fold(options, LoadOptions::direct_io);
            let kept: Vec<_> =
                entries.iter().filter(|entry| entry.name.starts_with(filter)).cloned().collect();
            check(&load(&path, &device, options).unwrap(), &kept, &device);
            match (direct, filter) {
                (Some(true), "") if takes_direct_reads(&path) => {
                    assert!(progress.direct_bytes() > file_bytes / 2, "{}", progress.direct_bytes());
                    assert!(
                        progress.direct_bytes() < file_bytes + file_bytes / 4,
                        "{}",
                        progress.direct_bytes()
                    );
                }
                (Some(true), _) => {}
                _ => assert_eq!(progress.direct_bytes(), 0),
            }
        }
    }
    no_violations(Some(&handle));
}

/// Whether the file system there has such reads.
#[cfg(target_os = "linux")]
fn takes_direct_reads(path: &std::path::Path) -> bool {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut memory = vec![0; 8192];
    let aligned = memory.as_ptr().align_offset(4096);
    let opened = std::fs::File::options().read(true).custom_flags(direct).open(path);
    opened.is_ok_and(|file| file.read_at(&mut memory[aligned..aligned + 4096], 0).is_ok())
}

#[cfg(not(target_os = "linux"))]
fn takes_direct_reads(_: &std::path::Path) -> bool {
    false
}
