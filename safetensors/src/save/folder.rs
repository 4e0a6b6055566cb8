//! Folders: what is done to them as a whole, on systems that can.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::open_file::retry;
use crate::save::error::SaveError;

/// The folder that a file of this path lies in.
pub(crate) fn of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Puts the names of the files on the disk.
pub(crate) fn sync(folder: &Path) -> Result<(), SaveError> {
    open(folder)?.map_or(Ok(()), |opened| match opened.sync_all() {
        // Some file systems cannot.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) => {
            Ok(())
        }
        result => result.map_err(SaveError::file(folder, "synced")),
    })
}

/// Waits until nobody else holds it; it is held until the result is dropped, or the process has ended.
pub(crate) fn lock(folder: &Path) -> Result<Option<File>, SaveError> {
    let opened = open(folder)?;
    opened.iter().for_each(hold);
    Ok(opened)
}

/// Locks a file. A file system without locks lets everybody go on: nobody can lock what another one writes then, and so nobody removes it.
pub(crate) fn hold(file: &File) {
    let _ = retry(|| file.lock());
}

#[cfg(unix)]
fn open(folder: &Path) -> Result<Option<File>, SaveError> {
    File::open(folder).map(Some).map_err(SaveError::file(folder, "opened"))
}

/// Folders cannot be opened there.
#[cfg(not(unix))]
fn open(_: &Path) -> Result<Option<File>, SaveError> {
    Ok(None)
}
