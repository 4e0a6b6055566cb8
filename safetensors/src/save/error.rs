//! What can go wrong when tensors are saved.

use std::io;
use std::path::{Path, PathBuf};

use transship_core::{DType, Error};

use crate::error::{Place, is_too_many_open_files};

/// Why tensors could not be saved. Offsets are bytes from the start of the file. What the system or the device says is the
/// [`source`](std::error::Error::source), which the text does not repeat.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The structure could not be gone through.
    #[error(transparent)]
    Tree(Error),
    /// A tensor has no name: the structure is the tensor, or its key is an empty text.
    #[error(
        "the tensor at {path:?} has no name; put it into a struct, or into a map with a key that is not empty"
    )]
    NoName {
        /// Where it is in the structure.
        path: String,
    },
    /// Two tensors have one name.
    #[error(
        "the tensors {first} and {second} are both named {name:?}; give one of them another field or key"
    )]
    SameName {
        /// The name.
        name: String,
        /// Where the first is in the structure.
        first: String,
        /// Where the second is.
        second: String,
    },
    /// A tensor is named like what the format keeps for itself.
    #[error(
        "the tensor at {path} is named __metadata__, which the format keeps for itself; give it another field or key"
    )]
    ReservedName {
        /// Where it is in the structure.
        path: String,
    },
    /// The format has no such type of elements.
    #[error("tensor {tensor:?} holds {dtype}, which the format does not have; convert it, or leave it out")]
    DType {
        /// The tensor.
        tensor: String,
        /// What it holds.
        dtype: DType,
    },
    /// There are more tensors, or longer names, than the format allows in one file.
    #[error(
        "{} would have a header of {bytes} bytes, and 100000000 are allowed; save to several files (SaveOptions::shard_bytes), or with less metadata, which is in each of them",
        path.display()
    )]
    Header {
        /// The file, or the folder of the file.
        path: PathBuf,
        /// How long it would be.
        bytes: usize,
    },
    /// An option has a value that it cannot have.
    #[error(transparent)]
    Option(Error),
    /// The path, or what lies there, is not for a model to be saved to.
    #[error("{} {found}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is there, and what to do.
        found: String,
    },
    /// A file or folder could not be created, synced, put in its place or read.
    #[error(
        "{} could not be {done} ({}); {}",
        path.display(),
        source.kind(),
        advice(source)
    )]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What could not be done with it.
        done: &'static str,
        /// The system's own words.
        source: io::Error,
    },
    /// A tensor could not be written.
    #[error("{at} could not be written ({}); {}", source.kind(), advice(source))]
    Write {
        /// The tensor, and where the write failed.
        at: Box<Place>,
        /// The system's own words.
        source: io::Error,
    },
    /// A tensor could not be copied to the host.
    #[error("{at} could not be copied to the host")]
    Device {
        /// The tensor, or the first of those that were copied together.
        at: Box<Place>,
        /// Why.
        source: Error,
    },
}

/// What to do about an error of the system.
fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind::{
        FileTooLarge, NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem,
        StorageFull,
    };
    match error.kind() {
        _ if is_too_many_open_files(error) => {
            "raise the limit of open files (ulimit -n), or save to fewer files (SaveOptions::shard_bytes)"
        }
        StorageFull | QuotaExceeded | FileTooLarge => "make room there, or save elsewhere",
        PermissionDenied | ReadOnlyFilesystem => "see to the permissions of the folder, or save elsewhere",
        NotFound | NotADirectory => "see to the path: its folder must be there",
        _ => "see to the disk or the network that it is on, or save elsewhere",
    }
}

impl SaveError {
    pub(crate) fn file(path: &Path, done: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, done, source }
    }

    pub(crate) fn path(path: &Path, found: impl Into<String>) -> Self {
        Self::Path { path: path.to_owned(), found: found.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_advice_is_about_what_went_wrong() {
        use rustix::io::Errno;
        for (error, words) in [
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "ulimit -n"),
            (Errno::NOSPC, "make room"),
            (Errno::DQUOT, "make room"),
            (Errno::ACCESS, "permissions"),
            (Errno::ROFS, "permissions"),
            (Errno::NOENT, "folder must be there"),
            (Errno::IO, "the disk or the network"),
        ] {
            let path = Path::new("a");
            let text = SaveError::file(path, "created")(error.into()).to_string();
            assert!(text.starts_with("a could not be created (") && text.contains(words), "{text}");
            let at = Box::new(Place { path: path.to_owned(), tensor: "t".to_owned(), offset: 8 });
            let text = SaveError::Write { at, source: error.into() }.to_string();
            assert!(text.contains("could not be written (") && text.contains(words), "{text}");
        }
    }
}
