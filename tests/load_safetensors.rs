//! The file of the example `load_safetensors`, on every device that there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

#[path = "../examples/load_safetensors/mapped.rs"]
mod mapped;
#[path = "../examples/load_safetensors/tiny.rs"]
mod tiny;

use std::fs;
use std::path::Path;

use transship::prelude::*;
use transship::safetensors::{LoadOptions, load};

#[test]
fn the_file_of_the_example_is_what_the_example_writes() {
    assert_eq!(fs::read(tiny::PATH).unwrap(), tiny::file().unwrap());
}

#[test]
fn every_tensor_of_the_file_is_loaded() {
    for id in Device::list() {
        let device = Device::open(id).unwrap();
        let tensors = load(tiny::PATH, &device, LoadOptions::default()).unwrap();
        assert_eq!(tensors.len(), tiny::ENTRIES.len());
        assert_eq!(mapped::load(Path::new(tiny::PATH), &device).unwrap().len(), tensors.len());
        let tensors = transship::start_copy(tensors, &Device::host(), CopyOptions::default());
        let tensors = tensors.unwrap().wait().unwrap();
        for (index, (name, dtype, shape)) in tiny::ENTRIES.into_iter().enumerate() {
            let tensor = tensors.get(name).unwrap();
            assert_eq!(tensor.shape(), shape, "{name}");
            assert_eq!(tensor.nbytes() * 8, shape.iter().product::<usize>() * dtype.bitsize(), "{name}");
            assert_eq!(tensor.to_bytes().unwrap(), tiny::data(index), "{name} from {id}");
        }
    }
}
