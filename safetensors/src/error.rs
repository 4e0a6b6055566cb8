//! What can go wrong, with the file, the tensor and the place in the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use transship_core::DType;

/// Why files could not be loaded. Offsets are bytes from the start of the file. What the system or the device says is the
/// [`source`](std::error::Error::source), which the text does not repeat.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file or folder cannot be opened.
    #[error(
        "{}{} cannot be opened ({}); {}",
        path.display(),
        named_by(index.as_deref()),
        source.kind(),
        match is_too_many_open_files(source) {
            true => "raise the limit of open files (ulimit -n)",
            false => "see to the path and its permissions, or fetch the file",
        }
    )]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The index that names it, if one does.
        index: Option<PathBuf>,
        /// The system's own words.
        source: io::Error,
    },
    /// A pipe, a device, or a folder where there should be a file.
    #[error("{} is no regular file; name one", path.display())]
    NoFile {
        /// What is none.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error(
        "{} cannot be read at byte {offset} ({}); see to the disk or the network that it is on, and load it again",
        path.display(),
        source.kind()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// The system's own words.
        source: io::Error,
    },
    /// Truncated before the first tensor, or no `.safetensors` file.
    #[error("{}: {reason}, at byte {offset}; it is truncated or no .safetensors file: fetch or write it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Where the header is wrong.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The header says of a tensor what cannot be.
    #[error("{}: tensor {tensor:?} at byte {offset} {reason}; fetch or write the file again", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The file ends within a tensor.
    #[error("{} is truncated: tensor {tensor:?} at byte {offset} ends behind its {bytes} bytes; fetch or write the file again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// How long the file is.
        bytes: u64,
    },
    /// There are bytes behind the last tensor.
    #[error("{}: {bytes} bytes from byte {offset} on belong to no tensor; fetch or write the file again", path.display())]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Where the tensors end.
        offset: u64,
        /// How many bytes follow.
        bytes: u64,
    },
    /// A tensor holds elements of a type that transship does not know.
    #[error(
        "{}: tensor {tensor:?} at byte {offset} holds {dtype:?}, which transship does not know; leave it out \
         (LoadOptions::filter), or convert it",
        path.display()
    )]
    UnknownDType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// The type, as the file has it.
        dtype: String,
    },
    /// The range that [`LoadOptions::narrow`](crate::LoadOptions::narrow) was told is not one of the tensor.
    #[error(
        "{}: tensor {tensor:?} at byte {offset} has the shape {shape:?}, and no items {start}..{end} of dimension {dim}; see to what \
         LoadOptions::narrow is given",
        path.display()
    )]
    Narrow {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// Its shape.
        shape: Vec<usize>,
        /// The dimension.
        dim: usize,
        /// The first item.
        start: usize,
        /// The one behind the last.
        end: usize,
    },
    /// A tensor has a value that the type to which it is to be cast cannot hold.
    #[error(
        "{}: element {element} of tensor {tensor:?} at byte {offset} is {value}, which {to} cannot hold; say Cast::saturating, or load {from} \
         without a cast",
        path.display()
    )]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// The number of the element in what is loaded of the tensor, counted from 0 in row-major order.
        element: usize,
        /// Its value.
        value: i128,
        /// The type that the file has.
        from: DType,
        /// The type to which it is to be cast.
        to: DType,
    },
    /// A file was changed or replaced while it was read.
    #[error("{} was changed or replaced while it was read; load it again when it is complete", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The index of a sharded model is wrong.
    #[error("{} is no index of .safetensors files: {reason}; fetch or write it again", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The index says that a tensor is in a file, and it is not.
    #[error("{}: there is no tensor {tensor:?}, which {} says is there; fetch both again", path.display(), index.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index.
        index: PathBuf,
    },
    /// A file of a sharded model has a tensor that the index does not know, or says is elsewhere.
    #[error(
        "{}: {} does not say that tensor {tensor:?}, at byte {offset}, is there; fetch both again, or load the files without the \
         index (load_files)",
        path.display(),
        index.display()
    )]
    NotInIndex {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset: u64,
        /// The index.
        index: PathBuf,
    },
    /// Two files have a tensor of the same name.
    #[error("{}: tensor {tensor:?} at byte {offset} is in {} as well; load one of the files", path.display(), other.display())]
    Twice {
        /// The second file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins in the second file.
        offset: u64,
        /// The first file.
        other: PathBuf,
    },
    /// A folder does not hold one model.
    #[error("{} holds {found}; name the file or the index to load", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// An option has a value that it cannot have.
    #[error(transparent)]
    Option(transship_core::Error),
    /// There is no memory for a tensor, or the device failed.
    #[error("{at} could not be loaded")]
    Device {
        /// The tensor that was to be loaded.
        at: Box<Place>,
        /// What the device says.
        source: transship_core::Error,
    },
    /// The device failed at the end.
    #[error("the copies to the device failed")]
    Finish(#[source] transship_core::Error),
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The tensor.
    pub tensor: String,
    /// Where it begins.
    pub offset: u64,
}

fn named_by(index: Option<&Path>) -> String {
    index.map_or_else(String::new, |index| format!(", which {} names,", index.display()))
}

/// Whether the process, or the system, has as many files open as it may.
pub(crate) fn is_too_many_open_files(error: &io::Error) -> bool {
    #[cfg(unix)]
    return [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .map(rustix::io::Errno::raw_os_error)
        .into_iter()
        .any(|number| error.raw_os_error() == Some(number));
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// What a file says, for a message: no control characters, and not much of it.
pub(crate) fn printable(text: &str) -> String {
    const MOST: usize = 300;
    let plain = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    let mut printable: String = text.chars().take(MOST).map(plain).collect();
    if text.chars().nth(MOST).is_some() {
        printable.push_str(" ...");
    }
    printable
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: tensor {:?} at byte {}", self.path.display(), self.tensor, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_short_and_move_no_cursor() {
        assert_eq!(printable("a\n\u{1b}[2Jb"), "a\u{fffd}\u{fffd}[2Jb");
        assert_eq!(printable(&"ä".repeat(300)), "ä".repeat(300));
        assert_eq!(printable(&"ä".repeat(301)), format!("{} ...", "ä".repeat(300)));
    }
}
