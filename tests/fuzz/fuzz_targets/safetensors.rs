//! `transship::safetensors`, on any file: it is refused, or every tensor of it arrives, on the host and on a simulated device, with
//! the bytes that the crate `safetensors` finds for it; and the same narrowed, cast and read past the page cache, with the bytes that copies make of those.
#![no_main]

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use late_backend::{LateConfig, LateHandle};
use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use transship::safetensors::{LoadError, LoadOptions, Tensors, load};
use transship::{Cast, CopyOptions, DType, Device, start_copy};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let file = if kind % 2 == 0 { rest.to_vec() } else { with_length(rest) };
    let device = if kind & 2 == 0 { &Device::host() } else { &*LATE };
    let mut scratch = SCRATCH.lock().unwrap();
    scratch.write(&file);
    let parts = Parts { kind: *kind };
    let Ok(loaded) = scratch.load(device, options()) else {
        assert!(scratch.load(device, parts.options()).is_err());
        return;
    };
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
    parts.check(&loaded, scratch.load(device, parts.options()).unwrap());
});

/// What the first byte says of casts, parts and direct reads.
#[derive(Clone, Copy)]
struct Parts {
    kind: u8,
}

impl Parts {
    fn options(self) -> LoadOptions {
        let options = options().direct_io(self.kind & 4 != 0).narrow(move |_, shape| self.items(shape));
        self.casts().into_iter().fold(options, LoadOptions::cast)
    }

    fn casts(self) -> Vec<Cast> {
        let casts = [
            Cast::new(DType::F32, DType::BF16),
            Cast::new(DType::U8, DType::F32),
            Cast::new(DType::I64, DType::U8).saturating(),
            Cast::new(DType::F16, DType::F64),
        ];
        if self.kind & 8 == 0 { Vec::new() } else { casts.to_vec() }
    }

    fn items(self, shape: &[usize]) -> Option<(usize, Range<usize>)> {
        let (dim, part) = (usize::from(self.kind >> 4) % 4, usize::from(self.kind >> 6));
        let count = *shape.get(dim)?;
        Some((dim, count / 4 * part..count - count / 5)).filter(|(_, items)| items.start <= items.end)
    }

    /// `loaded` is what copies make of `whole`, which is on the host.
    fn check(self, whole: &Tensors, loaded: Tensors) {
        let loaded = start_copy(loaded, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        let options = self.casts().into_iter().fold(CopyOptions::default(), CopyOptions::cast);
        assert_eq!(loaded.len(), whole.len());
        for (name, tensor) in whole.iter() {
            let items = self.items(tensor.shape());
            let part = items.map(|(dim, items)| tensor.narrow(dim, items.start, items.len()).unwrap());
            let part = part.unwrap_or_else(|| tensor.clone());
            let part = start_copy(part, &Device::host(), options.clone()).unwrap().wait().unwrap();
            let found = loaded.get(name).unwrap();
            assert_eq!((found.shape(), found.dtype()), (part.shape(), part.dtype()), "{name}");
            assert_eq!(found.to_bytes().unwrap(), part.to_bytes().unwrap(), "{name}");
        }
    }
}

fn options() -> LoadOptions {
    LoadOptions::default().threads(2).budget(64 << 10)
}

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

    fn write(&mut self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.rewind().unwrap();
        self.file.write_all(bytes).unwrap();
    }

    fn load(&self, device: &Device, options: LoadOptions) -> Result<Tensors, LoadError> {
        load(&self.path, device, options)
    }
}
