//! The loader of `examples/load_safetensors`, on any file: it is refused, or every tensor of it can be read.
#![no_main]

#[path = "../../../examples/load_safetensors/load.rs"]
#[allow(dead_code, reason = "the example uses more of it")]
mod load;

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use transship::Value;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let file = if kind % 2 == 0 { rest.to_vec() } else { with_length(rest) };
    let Ok(loaded) = SCRATCH.lock().unwrap().load(&file) else { return };
    let mut bytes = 0;
    for (_, value) in loaded.tensors.as_dict().unwrap() {
        let tensor = value.as_tensor().unwrap();
        assert_eq!(tensor.to_bytes().unwrap().len(), tensor.nbytes());
        bytes += tensor.nbytes();
    }
    assert_eq!(bytes, loaded.bytes);
    assert!(bytes <= file.len(), "{bytes} bytes out of a file of {}", file.len());
    let count = loaded.tensors.as_dict().map_or(0, |tensors| tensors.len());
    assert!(loaded.realigned <= count && matches!(loaded.tensors, Value::Dict(_)));
});

/// What is in front of the first zero as a header of the right length, and the rest as data: most mutations of a length lead
/// no further than that.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let header = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let data = bytes.get(header + 1..).unwrap_or_default();
    [&(header as u64).to_le_bytes(), &bytes[..header], data].concat()
}

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

    /// No map of the file is left from the call before: its tensors are gone.
    fn load(&mut self, bytes: &[u8]) -> Result<load::Loaded, load::LoadError> {
        self.file.set_len(0).unwrap();
        self.file.rewind().unwrap();
        self.file.write_all(bytes).unwrap();
        load::open(&self.path)
    }
}
