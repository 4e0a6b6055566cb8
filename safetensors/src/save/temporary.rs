//! Files that are not in their place yet.
//!
//! Each is locked as long as its writer lives. So the next one can tell what a dead writer has left behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::open_file::retry;
use crate::save::error::SaveError;
use crate::save::folder;

const PREFIX: &str = ".transship-";
const SUFFIX: &str = ".tmp";

/// A file that goes when this is dropped, unless it was [kept](Self::keep).
pub(crate) struct Temporary {
    file: File,
    /// Held by who writes: systems let one write to a file at a time, and those that wait for that would burn their processors.
    writing: Mutex<()>,
    path: PathBuf,
    target: PathBuf,
    is_kept: bool,
}

impl Temporary {
    /// A new file, in the folder of `target`, which it is to become.
    pub(crate) fn create(target: PathBuf) -> Result<Self, SaveError> {
        let folder = folder::of(&target);
        loop {
            let path = folder.join(format!("{PREFIX}{}{SUFFIX}", random()));
            let file = match File::options().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(SaveError::file(&path, "created"))?,
            };
            let writing = Mutex::default();
            let created = Self { file, writing, path, target: target.clone(), is_kept: false };
            folder::hold(&created.file);
            // Another writer may have found it before it was locked, and removed it.
            if created.path.exists() {
                return Ok(created);
            }
        }
    }

    /// The file that it is to become.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _writing = self.writing.lock();
        retry(|| write_at(&self.file, bytes, offset))
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes)
    }

    /// Puts its bytes on the disk.
    pub(crate) fn sync(&self) -> Result<(), SaveError> {
        self.file.sync_all().map_err(SaveError::file(&self.target, "synced"))
    }

    /// Puts it in its place. It still goes when this is dropped.
    pub(crate) fn rename(&mut self) -> Result<(), SaveError> {
        fs::rename(&self.path, &self.target).map_err(SaveError::file(&self.target, "put in its place"))?;
        self.path.clone_from(&self.target);
        Ok(())
    }

    /// From now on it stays.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // There is nobody to tell, and the next writer tries again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the temporary files that dead writers have left in `folder`. What cannot be removed stays.
pub(crate) fn remove_stale(folder: &Path) {
    remove_dead(folder, |name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
}

/// Removes the files of these names that no living writer holds.
pub(crate) fn remove_dead(folder: &Path, is_chosen: impl Fn(&str) -> bool) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_chosen)) {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if let Some(file) = is_file.then(|| File::options().write(true).open(entry.path()).ok()).flatten()
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Sixteen hexadecimal digits.
pub(crate) fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Whether it looks like [`random`].
pub(crate) fn is_random(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a file, as text.
pub(crate) fn name_of(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset)
}
