//! Memory of a pool that two processes have: a file of the system's without a name. A page in front of each allocation says whose it is.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pages::{PAGE, Pages};

/// What the file begins with, and every name.
const MAGIC: u64 = u64::from_le_bytes(*b"DrvSmShd");
/// Word of the first page: a process has a descriptor of the pool to pass on.
const EXPORTED: u64 = 16;
/// Words of the page in front of an allocation.
const SERIAL: u64 = 0;
const BYTES: u64 = 8;
const IMPORTS: u64 = 16;
const IMPORTER: u64 = 24;
/// So long a process may take to end that was killed.
const GRACE: Duration = Duration::from_secs(3);

/// The file of a pool.
#[derive(Debug)]
pub(crate) struct PoolFile {
    file: Arc<File>,
    pub(crate) imported: bool,
    next: u64,
    serial: u64,
}

/// An allocation in it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    file: Arc<File>,
    imported: bool,
    /// Of the page in front.
    offset: u64,
    serial: u64,
}

impl PoolFile {
    /// A new one for a pool of a device.
    pub(crate) fn new(device: usize) -> Option<Self> {
        let file = without_a_name()?;
        file.set_len(PAGE as u64).ok()?;
        put(&file, 0, MAGIC)?;
        put(&file, 8, device as u64)?;
        Some(Self { file: Arc::new(file), imported: false, next: PAGE as u64, serial: 0 })
    }

    /// That of another process, and its device; `None` if the descriptor is of something else.
    pub(crate) fn import(descriptor: RawFd) -> Option<(Self, usize)> {
        // SAFETY: duplicates a descriptor, if it is one.
        let file = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
        if file < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        let device = get(&file, 8).filter(|_| get(&file, 0) == Some(MAGIC))?;
        Some((Self { file: Arc::new(file), imported: true, next: 0, serial: 0 }, device as usize))
    }

    /// Whether both are one pool, imported by this process.
    pub(crate) fn is_same_import(&self, other: &Self) -> bool {
        self.imported && other.imported && is_one(&self.file, &other.file)
    }

    /// A descriptor for another process.
    pub(crate) fn export(&self) -> Option<RawFd> {
        put(&self.file, EXPORTED, 1)?;
        // SAFETY: duplicates a descriptor.
        let file = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
        (file >= 0).then_some(file)
    }

    /// A place for so many bytes. No place is used twice: what is freed gives its memory back.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Piece> {
        let offset = self.next;
        let behind = offset + PAGE as u64 + (bytes as u64).next_multiple_of(PAGE as u64);
        self.file.set_len(behind).ok()?;
        self.next = behind;
        self.serial += 1;
        put(&self.file, offset + BYTES, bytes as u64)?;
        Some(Piece { file: self.file.clone(), imported: false, offset, serial: self.serial })
    }

    /// The allocation of this name, and how large it is; `None` if there is none. It counts as imported.
    pub(crate) fn find(&self, name: &[u64; 8]) -> Option<(Piece, usize)> {
        let [MAGIC, offset, serial, ..] = *name else { return None };
        let size = self.file.metadata().ok()?.len();
        if offset % PAGE as u64 != 0 || offset == 0 || offset >= size || serial == 0 {
            return None;
        }
        let bytes = get(&self.file, offset + BYTES)?;
        let is_there = get(&self.file, offset + SERIAL) == Some(serial);
        let is_within = offset.checked_add(PAGE as u64)?.checked_add(bytes)? <= size;
        if !is_there || !is_within || bytes == 0 {
            return None;
        }
        let piece = Piece { file: self.file.clone(), imported: true, offset, serial };
        piece.count(1)?;
        Some((piece, bytes as usize))
    }
}

impl Piece {
    /// Its bytes in this process: poison where they are new.
    pub(crate) fn map(&self, bytes: usize, poison: u8) -> Option<Pages> {
        let pages = Pages::map_file(self.file.as_raw_fd(), self.offset + PAGE as u64, bytes)?;
        if !self.imported {
            // SAFETY: so many bytes were mapped just now.
            unsafe { pages.start().write_bytes(poison, bytes) };
            put(&self.file, self.offset + SERIAL, self.serial)?;
        }
        Some(pages)
    }

    /// What another process imports it by. There is none before the pool was exported: a driver refuses that (H100, driver 580).
    pub(crate) fn name(&self) -> Option<[u64; 8]> {
        let is_exported = !self.imported && get(&self.file, EXPORTED) == Some(1);
        is_exported.then_some([MAGIC, self.offset, self.serial, 0, 0, 0, 0, 0])
    }

    /// It is freed here. Says what is wrong with that.
    pub(crate) fn end(&self) -> Result<(), &'static str> {
        if self.imported {
            return self.count(u64::MAX).ok_or("the file of a pool cannot be written");
        }
        let start = Instant::now();
        while get(&self.file, self.offset + IMPORTS) != Some(0)
            && get(&self.file, self.offset + IMPORTER).is_some_and(lives)
        {
            // One that was killed is there for a moment after its connections have gone.
            if start.elapsed() > GRACE || get(&self.file, self.offset + IMPORTER) == Some(own()) {
                return Err("memory is freed that another process has imported and not freed");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let length = get(&self.file, self.offset + BYTES).unwrap_or(0) as i64 + PAGE as i64;
        free_range(&self.file, self.offset as i64, length);
        Ok(())
    }

    /// Whether both are one allocation, imported by this process.
    pub(crate) fn is_same_import(&self, other: &Self) -> bool {
        self.imported && other.imported && self.offset == other.offset && is_one(&self.file, &other.file)
    }

    fn count(&self, change: u64) -> Option<()> {
        let imports = get(&self.file, self.offset + IMPORTS)?;
        put(&self.file, self.offset + IMPORTER, own())?;
        put(&self.file, self.offset + IMPORTS, imports.wrapping_add(change))
    }
}

fn is_one(file: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().ok().map(|data| (data.dev(), data.ino()));
    identity(file) == identity(other)
}

/// `None` where the system has no such files: pools are not shared there.
#[cfg(target_os = "linux")]
fn without_a_name() -> Option<File> {
    // SAFETY: the name is a string; the result is checked.
    let file = unsafe { libc::memfd_create(c"driver-sim-pool".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the descriptor is new and nobody else's.
    (file >= 0).then(|| File::from(unsafe { OwnedFd::from_raw_fd(file) }))
}

#[cfg(not(target_os = "linux"))]
fn without_a_name() -> Option<File> {
    None
}

#[cfg(target_os = "linux")]
fn free_range(file: &File, offset: i64, length: i64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: frees memory of the file; a failure leaves it there.
    let _ = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) };
}

#[cfg(not(target_os = "linux"))]
fn free_range(_: &File, _: i64, _: i64) {}

fn own() -> u64 {
    u64::from(std::process::id())
}

/// Whether there is such a process which has not ended.
fn lives(process: u64) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    let state = status.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn get(file: &File, offset: u64) -> Option<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, offset).ok()?;
    Some(u64::from_le_bytes(word))
}

fn put(file: &File, offset: u64, word: u64) -> Option<()> {
    file.write_all_at(&word.to_le_bytes(), offset).ok()
}
