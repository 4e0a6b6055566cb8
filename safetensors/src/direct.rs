//! Reads past the page cache (`O_DIRECT`): where there are any, and where they pay.

use std::fs::File;
use std::path::Path;

use crate::open_file::OpenFile;

/// Offsets, sizes and memory of such reads are multiples of it, in bytes: disks ask for that at most.
pub(crate) const ALIGNMENT: usize = 4096;
/// Smaller reads are left to the page cache, which reads ahead, in bytes.
pub(crate) const LEAST: u64 = 256 << 10;

/// Which reads are direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectReads {
    Never,
    /// Those of what is not in the page cache.
    NotCached,
    Always,
}

impl DirectReads {
    /// `asked` is what the program says. Otherwise so many bytes are left to the page cache unless they would take more than half of the memory
    /// that is free: it keeps the smaller ones for the next time, and would drop what others have there for larger ones.
    pub(crate) fn of(asked: Option<bool>, bytes: u64, free: Option<u64>) -> Self {
        match asked {
            Some(true) => Self::Always,
            Some(false) => Self::Never,
            None if free.is_some_and(|free| bytes > free / 2) => Self::NotCached,
            None => Self::Never,
        }
    }

    /// Whether these bytes of the file are read so. `random` chooses where to look.
    pub(crate) fn suit(self, file: &OpenFile, offset: u64, bytes: u64, random: u64) -> bool {
        match self {
            _ if bytes < LEAST || file.refuses_direct() => false,
            Self::Never => false,
            Self::Always => true,
            // What is looked at may be in the cache from then on: it is another place each time.
            Self::NotCached => is_cached(file.file(), offset + random % bytes) == Some(false),
        }
    }
}

/// The file once more, for direct reads; `None` where there are none.
#[cfg(target_os = "linux")]
pub(crate) fn open(path: &Path) -> Option<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe that lies there by now would wait for its other end.
    let flags = OFlags::DIRECT | OFlags::NONBLOCK;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(_: &Path) -> Option<File> {
    None
}

/// Whether the byte at `offset` is in the page cache; `None` where nobody can tell.
#[cfg(target_os = "linux")]
pub(crate) fn is_cached(file: &File, offset: u64) -> Option<bool> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut byte = [0];
    let mut room = [std::io::IoSliceMut::new(&mut byte)];
    match preadv2(file, &mut room, offset, ReadWriteFlags::NOWAIT) {
        Ok(bytes) => Some(bytes > 0),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_cached(_: &File, _: u64) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// catches: 446-all-files-past-the-page-cache
    #[test]
    fn what_memory_cannot_keep_is_read_past_the_cache_unless_the_program_says_otherwise() {
        assert_eq!(DirectReads::of(None, 51, Some(100)), DirectReads::NotCached);
        assert_eq!(DirectReads::of(None, 50, Some(100)), DirectReads::Never);
        assert_eq!(DirectReads::of(None, u64::MAX, None), DirectReads::Never);
        assert_eq!(DirectReads::of(Some(true), 1, Some(100)), DirectReads::Always);
        assert_eq!(DirectReads::of(Some(false), u64::MAX, Some(100)), DirectReads::Never);
    }

    /// On the disk that this was built on: temporary folders may be memory.
    ///
    /// catches: 445-cached-parts-read-from-the-disk
    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_in_the_cache_is_told_from_what_is_not() {
        use rustix::fs::{Advice, fadvise};
        let program = std::env::current_exe().unwrap();
        let named = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        std::fs::write(named.path(), vec![1; 1 << 20]).unwrap();
        let file = OpenFile::open(named.path()).unwrap();
        let suits = |reads: DirectReads| reads.suit(&file, 0, 1 << 20, 777_777);
        let Some(cached) = is_cached(file.file(), 777_777) else {
            // Nobody can tell: the page cache it is.
            assert!(!suits(DirectReads::NotCached));
            return;
        };
        assert!(cached && !suits(DirectReads::NotCached) && suits(DirectReads::Always));
        file.file().sync_all().unwrap();
        // A look may start the read of what it looks for, and a quick disk ends it before the look does: not each look tells.
        let is_told = (0..1_000).any(|_| {
            fadvise(file.file(), 0, None, Advice::DontNeed).unwrap();
            suits(DirectReads::NotCached)
        });
        assert!(is_told && !suits(DirectReads::Never));
        assert!(!DirectReads::Always.suit(&file, 0, LEAST - 1, 0));
    }
}
