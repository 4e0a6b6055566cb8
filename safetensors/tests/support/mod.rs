//! What the tests share: files, devices, and the bytes of tensors.

#![allow(dead_code, reason = "no test file uses all of it")]

#[path = "../../../tests/support/required.rs"]
mod required;

use std::fs;
use std::path::{Path, PathBuf};

use late_backend::{LateConfig, LateHandle};
use required::required;
use tempfile::TempDir;
use transship::{Alignment, CopyOptions, Device, Tensor, start_copy};
use transship_safetensors::{LoadError, LoadOptions, load};

/// A tensor of a file: its name, its type, its shape, its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Types of the format that transship has as well, and the bytes of an element.
pub(crate) const DTYPES: [(&str, usize); 17] = [
    ("BOOL", 1),
    ("U8", 1),
    ("U16", 2),
    ("U32", 4),
    ("U64", 8),
    ("I8", 1),
    ("I16", 2),
    ("I32", 4),
    ("I64", 8),
    ("F16", 2),
    ("BF16", 2),
    ("F32", 4),
    ("F64", 8),
    ("C64", 8),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("F8_E8M0", 1),
];

/// A tensor of the type of this number, with bytes of `seed`.
pub(crate) fn entry(name: &str, dtype: usize, shape: &[usize], seed: usize) -> Entry {
    let (dtype, size) = DTYPES[dtype % DTYPES.len()];
    let bytes = shape.iter().product::<usize>() * size;
    let bytes = (0..bytes).map(|at| (at * 7 + at / 251 + seed * 31) as u8);
    let bytes = bytes.map(|byte| if dtype == "BOOL" { byte & 1 } else { byte }).collect();
    Entry { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

/// Tensors of all types and many sizes, none and misaligned ones included.
pub(crate) fn mixed(prefix: &str, seed: usize) -> Vec<Entry> {
    let shapes: [&[usize]; 8] = [&[], &[3], &[0, 16], &[5, 7], &[40_000], &[1], &[2, 3, 4], &[100_001]];
    let one = |number: usize| entry(&format!("{prefix}.{number}"), number, shapes[number % 8], seed + number);
    let mut all: Vec<_> = (0..32).map(one).collect();
    all.push(entry(&format!("{prefix}.large"), 1, &[(1 << 20) + 12_345], seed));
    all.push(entry(&format!("{prefix}.larger"), 11, &[3, 200_003], seed));
    all
}

/// A file of these tensors, one behind the other in this order, however that aligns them.
pub(crate) fn file_of(entries: &[Entry]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    header.push(r#""__metadata__":{"format":"pt","made by":"a test"}"#.to_owned());
    for Entry { name, dtype, shape, bytes } in entries {
        let (start, end) = (data.len(), data.len() + bytes.len());
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
        data.extend(bytes);
    }
    with_header(&format!("{{{}}}", header.join(",")), &data)
}

pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A folder with files of these names.
pub(crate) fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// An index that says that `entries` of each file are there.
pub(crate) fn index_of(files: &[(&str, &[Entry])]) -> Vec<u8> {
    let lines: Vec<_> = files
        .iter()
        .flat_map(|(file, entries)| entries.iter().map(move |entry| format!(r#""{}":"{file}""#, entry.name)))
        .collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, lines.join(",")).into_bytes()
}

/// The host, simulated devices of several kinds, and those of the drivers that are compiled in.
pub(crate) fn devices() -> Vec<(Device, Option<LateHandle>)> {
    let granule = Alignment::new(4).unwrap();
    let configs = [
        LateConfig::new("late"),
        LateConfig { seed: Some(5), polls_per_op: 2, ..LateConfig::new("late-slow") },
        LateConfig { copy_granularity: granule, mapped_staging: true, ..LateConfig::new("late-mapped") },
        LateConfig { staging_memory: 0, ..LateConfig::new("late-unstaged") },
    ];
    let simulated = configs.map(|config| {
        let late = late(config);
        (late.1, Some(late.0))
    });
    let list = Device::list();
    for required in required() {
        assert!(list.contains(&required.id), "there is no {} among {list:?}", required.id);
        required.check_kind().unwrap();
    }
    let real = list.into_iter().map(|id| (Device::open(id).unwrap(), None));
    simulated.into_iter().chain(real).collect()
}

pub(crate) fn late(config: LateConfig) -> (LateHandle, Device) {
    let late = LateHandle::new(config).unwrap();
    let device = Device::from_backend(late.backend(0)).unwrap();
    (late, device)
}

pub(crate) fn no_violations(late: Option<&LateHandle>) {
    assert!(late.is_none_or(|late| late.violations().is_empty()), "{:?}", late.map(LateHandle::violations));
}

/// The bytes of a tensor, wherever it lies.
pub(crate) fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let host = start_copy(tensor.clone(), &Device::host(), CopyOptions::default()).unwrap();
    host.wait().unwrap().to_bytes().unwrap()
}

/// Every tensor of `entries` and no other is in `tensors`, on `device`, with each of its bytes.
#[track_caller]
pub(crate) fn check(tensors: &transship_safetensors::Tensors, entries: &[Entry], device: &Device) {
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(tensors.names().collect::<Vec<_>>(), names);
    for Entry { name, dtype, shape, bytes } in entries {
        let tensor = tensors.get(name).unwrap();
        assert_eq!(tensor.shape(), shape, "{name}");
        assert_eq!(dtype_name(tensor), *dtype, "{name}");
        assert_eq!(tensor.device_id().unwrap(), device.id(), "{name}");
        assert!(bytes_of(tensor) == *bytes, "{name} of {dtype} {shape:?} on {device:?} has other bytes");
    }
}

fn dtype_name(tensor: &Tensor) -> String {
    let name = tensor.dtype().to_string().to_uppercase();
    let short = [("UINT", "U"), ("INT", "I"), ("BFLOAT", "BF"), ("FLOAT", "F"), ("COMPLEX", "C")];
    let found = short.iter().find_map(|(long, short)| Some(format!("{short}{}", name.strip_prefix(long)?)));
    // The format has no other type of this name.
    found.unwrap_or(name).replace("E4M3FN", "E4M3").replace("E8M0FNU", "E8M0")
}

pub(crate) fn options() -> LoadOptions {
    LoadOptions::default()
}

/// The error of what must not load, on the host and on a device.
#[track_caller]
pub(crate) fn refused(path: &Path) -> LoadError {
    let (handle, device) = late(LateConfig::new("late"));
    let on_device = load(path, &device, options()).map(|_| ()).unwrap_err();
    let on_host = load(path, &Device::host(), options()).map(|_| ()).unwrap_err();
    assert_eq!(on_device.to_string(), on_host.to_string());
    no_violations(Some(&handle));
    on_host
}

pub(crate) fn path_of(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}
