//! The stand-ins, and putting one under the names of its driver.

use std::io::{Error, Result};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, process};

/// One stand-in.
pub(crate) struct Library {
    pub(crate) package: &'static str,
    /// As it is built.
    pub(crate) file: &'static str,
    /// Under which programs look for it: the file, and other names of the same file, so that it is loaded once only.
    name: &'static str,
    others: &'static [&'static str],
    /// What the names of its functions begin with.
    prefix: &'static str,
}

pub(crate) const LIBRARIES: &[Library] = &[
    Library {
        package: "driver-sim-cuda",
        file: "libdriver_sim_cuda.so",
        name: "libcuda.so.1",
        others: &["libcuda.so"],
        prefix: "cu",
    },
    Library {
        package: "driver-sim-hip-on-cuda",
        file: "libdriver_sim_hip_on_cuda.so",
        name: "libamdhip64.so",
        others: &[],
        prefix: "hip",
    },
];

impl Library {
    /// Copies it from `built` to `folder`, without these symbols.
    pub(crate) fn install(&self, built: &Path, folder: &Path, without: &[&str]) -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut content = fs::read(built.join(self.file))?;
        for symbol in without.iter().filter(|symbol| symbol.starts_with(self.prefix)) {
            hide(&mut content, symbol)?;
        }
        replace(folder, self.name, |new| fs::write(new, &content))?;
        self.others.iter().try_for_each(|other| replace(folder, other, |new| symlink(self.name, new)))
    }
}

/// Another run may have loaded the file that is there: it is replaced, never written to.
fn replace(folder: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let new = folder.join(format!("{name}.{}", process::id()));
    make(&new)?;
    fs::rename(new, folder.join(name))
}

/// Changes the name of a symbol in the library, so that nobody finds it.
fn hide(content: &mut [u8], symbol: &str) -> Result<()> {
    let name = [&[0], symbol.as_bytes(), &[0]].concat();
    let places: Vec<usize> = (0..=content.len().saturating_sub(name.len()))
        .filter(|start| content[*start..].starts_with(&name))
        .collect();
    if places.is_empty() {
        return Err(Error::other(format!("there is no symbol {symbol}")));
    }
    for place in places {
        content[place + 1] = b'_';
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn only_whole_names_are_hidden() {
        let mut content = b"\0cuFree\0cuFreeAsync\0xcuFree\0cuFree\0".to_vec();
        hide(&mut content, "cuFree").unwrap();
        assert_eq!(content, b"\0_uFree\0cuFreeAsync\0xcuFree\0_uFree\0");
        assert!(hide(&mut content, "cuFree").is_err());
    }
}
