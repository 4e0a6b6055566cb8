//! The system as its files describe it.

use std::path::{Path, PathBuf};

/// The root of the files: `/`, or that of a test.
pub(crate) struct System {
    root: PathBuf,
}

/// A GPU that the bus knows, whether there is a driver for it or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BusGpu {
    pub(crate) address: String,
    pub(crate) vendor: u32,
}

pub(crate) const NVIDIA: u32 = 0x10de;
pub(crate) const AMD: u32 = 0x1002;

impl System {
    pub(crate) fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }

    /// Where a file lies.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// What is in a file, if it is there.
    pub(crate) fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.path(file)).ok()
    }

    /// The names in a folder, in order; none if it is not there.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Displays and accelerators on the bus.
    pub(crate) fn gpus(&self) -> Vec<BusGpu> {
        let folder = "sys/bus/pci/devices";
        let number = |address: &str, file: &str| {
            let text = self.read(&format!("{folder}/{address}/{file}"))?;
            u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        let names = self.names(folder).into_iter();
        let gpu = |address: String| {
            let is_gpu = matches!(number(&address, "class")? >> 16, 0x03 | 0x12);
            is_gpu.then_some(BusGpu { vendor: number(&address, "vendor")?, address })
        };
        names.filter_map(gpu).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    /// A system with these files.
    pub(crate) fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let system = System::new(root.path());
        (root, system)
    }

    #[test]
    fn gpus_are_told_from_other_cards() {
        let (_root, system) = system(&[
            ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:02:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:c1:00.0/class", "0x120000\n"),
            ("sys/bus/pci/devices/0000:c1:00.0/vendor", "0x1002\n"),
        ]);
        let found: Vec<_> = system.gpus().into_iter().map(|gpu| (gpu.address, gpu.vendor)).collect();
        assert_eq!(found, [("0000:01:00.0".to_owned(), NVIDIA), ("0000:c1:00.0".to_owned(), AMD)]);
        assert_eq!(System::new("/nowhere").gpus(), []);
    }
}
