//! `transship::safetensors`, on any file: it is refused, or every tensor of it arrives, on the host and on a simulated device, with
//! the bytes that the crate `safetensors` finds for it.
#![no_main]

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use late_backend::{LateConfig, LateHandle};
use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use transship::safetensors::{LoadError, LoadOptions, Tensors, load};
use transship::{CopyOptions, Device, start_copy};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let file = if kind % 2 == 0 { rest.to_vec() } else { with_length(rest) };
    let device = if kind & 2 == 0 { &Device::host() } else { &*LATE };
    let Ok(loaded) = SCRATCH.lock().unwrap().load(&file, device) else { return };
    let expected = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(loaded.len(), expected.len());
    let loaded = start_copy(loaded, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    for (name, tensor) in loaded.iter() {
        let expected = expected.tensor(name).unwrap();
        assert_eq!(
            (tensor.shape(), &*tensor.to_bytes().unwrap()),
            (expected.shape(), expected.data()),
            "{name}"
        );
    }
});

/// What is in front of the first zero as a header of the right length, and the rest as data: most mutations of a length lead
/// no further than that.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let header = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let data = bytes.get(header + 1..).unwrap_or_default();
    [&(header as u64).to_le_bytes(), &bytes[..header], data].concat()
}

static LATE: LazyLock<Device> = LazyLock::new(|| {
    let late = LateHandle::new(LateConfig::new("late")).unwrap();
    Device::from_backend(late.backend(0)).unwrap()
});

static SCRATCH: LazyLock<Mutex<Scratch>> = LazyLock::new(|| Mutex::new(Scratch::new()));

/// A file that has no name any more.
struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let named = std::env::temp_dir().join(format!("transship-fuzz-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&named).unwrap();
        fs::remove_file(named).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        Self { file, path }
    }

    fn load(&mut self, bytes: &[u8], device: &Device) -> Result<Tensors, LoadError> {
        self.file.set_len(0).unwrap();
        self.file.rewind().unwrap();
        self.file.write_all(bytes).unwrap();
        load(&self.path, device, LoadOptions::default().threads(2).budget(64 << 10))
    }
}
