//! An open file that is read from many threads at once.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(unix))]
use std::time::SystemTime;

use crate::direct;
use crate::error::LoadError;

/// An open file, and what it was like when it was opened.
pub(crate) struct OpenFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    file: File,
    stamp: Stamp,
    /// The same file for reads past the page cache, opened for the first of them.
    direct: OnceLock<Option<File>>,
    refuses_direct: AtomicBool,
}

impl OpenFile {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let cannot = |source| LoadError::Open { path: path.to_owned(), index: None, source };
        // Before it is opened: a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(cannot)?.is_file() {
            return Err(LoadError::NoFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        let (direct, refuses_direct) = (OnceLock::new(), AtomicBool::new(false));
        let (path, bytes) = (path.to_owned(), metadata.len());
        Ok(Self { path, bytes, file, stamp: stamp(&metadata), direct, refuses_direct })
    }

    /// Fails if the path leads to another file by now, or to a changed one.
    pub(crate) fn check_unchanged(&self) -> Result<(), LoadError> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if stamp(&metadata) == self.stamp => Ok(()),
            _ => Err(LoadError::Changed { path: self.path.clone() }),
        }
    }

    /// Reads at most as much as `to` has room for; 0 at the end of the file.
    pub(crate) fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| read_at(&self.file, &mut *to, offset))
    }

    /// Reads all of `to`; the end of the file is [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        let mut read = 0;
        while let Some(rest) = to.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, offset + read as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => read += bytes,
            }
        }
        Ok(())
    }

    /// Reads at most as much as `to` has room for, past the page cache; all is aligned for that. `None` where the file system refuses it, from then
    /// on without being asked.
    pub(crate) fn read_direct_at(&self, to: &mut [u8], offset: u64) -> Option<usize> {
        if self.refuses_direct() {
            return None;
        }
        let opened = self.direct.get_or_init(|| self.open_direct()).as_ref();
        let read = opened.and_then(|file| retry(|| read_at(file, &mut *to, offset)).ok());
        if read.is_none() {
            self.refuses_direct.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Whether the file system has refused such a read.
    pub(crate) fn refuses_direct(&self) -> bool {
        self.refuses_direct.load(Ordering::Relaxed)
    }

    /// Unless the path leads to another file by now.
    fn open_direct(&self) -> Option<File> {
        let file = direct::open(&self.path)?;
        let metadata = file.metadata().ok()?;
        (self.stamp == stamp(&metadata)).then_some(file)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The error of a read of a tensor.
    pub(crate) fn read_error(&self, tensor: &str, begin: u64, offset: u64, source: io::Error) -> LoadError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                let bytes = std::fs::metadata(&path).map_or(self.bytes, |metadata| metadata.len());
                LoadError::Truncated { path, tensor: tensor.to_owned(), offset: begin, bytes }
            }
            _ => LoadError::Read { path, offset, source },
        }
    }
}

/// Again, as long as signals interrupt it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, to, offset)
}

#[cfg(windows)]
fn read_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, to, offset)
}

/// Device, inode, size, and the time of the last change, which nobody can set back.
#[cfg(unix)]
type Stamp = (u64, u64, u64, i64, i64);

#[cfg(unix)]
fn stamp(metadata: &Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec())
}

/// The size, and the time of the last change.
#[cfg(not(unix))]
type Stamp = (u64, Option<SystemTime>);

#[cfg(not(unix))]
fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.len(), metadata.modified().ok())
}
