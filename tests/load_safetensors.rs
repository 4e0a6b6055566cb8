//! The loader of the example `load_safetensors`, on good files and on bad ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

#[path = "../examples/load_safetensors/load.rs"]
mod load;
#[path = "../examples/load_safetensors/tiny.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};

use load::Loaded;
use transship::Value;
use transship::prelude::*;

/// A file of the name of its test, with `bytes` in it.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.safetensors"));
    fs::write(&path, bytes).unwrap();
    path
}

/// A file with this header, and so many bytes of data behind it.
fn with_header(name: &str, header: &str, data: usize) -> PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    file(name, &bytes)
}

/// The error of a file that must not load.
fn refused(path: &Path) -> String {
    match load::open(path) {
        Ok(Loaded { tensors, .. }) => panic!("{} was loaded as {tensors:?}", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_file_of_the_example_is_what_the_example_writes() {
    assert_eq!(fs::read(tiny::PATH).unwrap(), tiny::file().unwrap());
}

#[test]
fn every_tensor_of_the_file_is_loaded_in_order_and_without_a_copy() {
    let loaded = load::open(Path::new(tiny::PATH)).unwrap();
    let tensors = loaded.tensors.as_dict().unwrap();
    assert_eq!((tensors.len(), loaded.realigned), (tiny::ENTRIES.len(), 0));
    let mut bytes = 0;
    for (index, ((key, value), (name, dtype, shape))) in tensors.iter().zip(tiny::ENTRIES).enumerate() {
        let tensor = value.as_tensor().unwrap();
        assert_eq!(key.as_str(), Some(name));
        assert_eq!(tensor.shape(), shape, "{name}");
        assert_eq!(tensor.nbytes() * 8, shape.iter().product::<usize>() * dtype.bitsize(), "{name}");
        assert_eq!(tensor.as_bytes().unwrap(), tiny::data(index), "{name}");
        bytes += tensor.nbytes();
    }
    assert_eq!(loaded.bytes, bytes);
    assert_eq!(loaded.tensors.get("mask").and_then(Value::as_tensor).map(Tensor::dtype), Some(DType::Bool));
}

#[test]
fn a_loaded_file_is_copied_as_a_whole() {
    let loaded = load::open(Path::new(tiny::PATH)).unwrap();
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let copied = transship::start_copy(loaded.tensors, &Device::host(), options).unwrap().wait().unwrap();
    for (index, (name, ..)) in tiny::ENTRIES.into_iter().enumerate() {
        let tensor = copied.get(name).and_then(Value::as_tensor).unwrap();
        assert_eq!(tensor.to_bytes().unwrap(), tiny::data(index), "{name}");
    }
}

#[test]
fn a_truncated_file_is_an_error_wherever_it_ends() {
    let whole = tiny::file().unwrap();
    for length in (0..whole.len()).step_by(11).chain([7, 8, whole.len() - 1]) {
        let path = file("truncated", &whole[..length]);
        let error = refused(&path);
        assert!(error.contains("truncated") && error.contains("truncated.safetensors"), "{length}: {error}");
    }
}

#[test]
fn a_header_that_promises_what_is_not_there_is_an_error() {
    let tensor = |shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (name, header) in [
        ("too-large-a-shape", tensor("[5]", "[0,16]")),
        ("too-small-a-shape", tensor("[3]", "[0,16]")),
        ("behind-the-end", tensor("[8]", "[0,32]")),
        ("backwards", tensor("[4]", "[16,0]")),
        ("hole", tensor("[2]", "[8,16]")),
        ("overflow", tensor("[4611686018427387904,8]", "[0,16]")),
        ("no-json", "{".to_owned()),
    ] {
        let error = refused(&with_header(name, &header, 16));
        assert!(error.contains(name), "{error}");
    }
    let error = refused(&file("endless-header", &[0xff; 64]));
    assert!(error.contains("header"), "{error}");
}

#[test]
fn an_element_type_that_does_not_exist_here_is_named() {
    let header = r#"{"quantised":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}}"#;
    let error = refused(&with_header("f8", header, 16));
    assert!(error.contains("\"quantised\"") && error.contains("F8_E4M3"), "{error}");
}

#[test]
fn a_misaligned_tensor_is_copied_once_more_and_counted() {
    let header = concat!(
        r#"{"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"#,
        r#""word":{"dtype":"I64","shape":[1],"data_offsets":[1,9]}}"#
    );
    let loaded = load::open(&with_header("misaligned", header, 9)).unwrap();
    assert_eq!(loaded.realigned, 1);
    let word = loaded.tensors.get("word").and_then(Value::as_tensor).unwrap();
    assert_eq!(word.as_slice::<i64>().unwrap(), [0x0707_0707_0707_0707]);
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let error = refused(Path::new("no/such/file.safetensors"));
    assert!(error.contains("no/such/file.safetensors: cannot be read"), "{error}");
}
