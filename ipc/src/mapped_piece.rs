//! Shared memory of an importer, which stays mapped and page-locked for the trees to come.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid};
use transship_core::{Device, MemoryKind, Registered};

use crate::error::IpcError;
use crate::locked::lock_for;
use crate::mapping::{FileId, Mapping};
use crate::shared_piece::MOST_KEPT;

/// Memory that an exporter has sent, mapped here.
pub(crate) struct MappedPiece {
    pub(crate) mapping: Arc<Mapping>,
    file: FileId,
    /// What keeps it page-locked. Nothing is read through it.
    registered: Option<Registered>,
}

impl MappedPiece {
    /// Page-locks it for copies to `device`, if it is not and that needs it. The kind of memory that it is then.
    pub(crate) fn lock_for(&mut self, device: &Device) -> Result<MemoryKind, IpcError> {
        if self.registered.is_none() {
            self.registered = lock_for(device, &self.mapping, Arc::clone(&self.mapping))?;
        }
        Ok(self.registered.as_ref().map_or(MemoryKind::Pageable, Registered::memory_kind))
    }
}

/// Pieces that no tree lies in any more. An exporter may send them again.
pub(crate) struct MappedPieces {
    process: Pid,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    pieces: Vec<MappedPiece>,
    is_closed: bool,
}

impl MappedPieces {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { process: getpid(), free: Mutex::default() })
    }

    /// The memory that `descriptor` is of, which must have so many bytes for good. It is mapped unless it is still. What an exporter has not sent again by the time
    /// that it sends new memory, it has not kept either.
    pub(crate) fn take(&self, descriptor: &OwnedFd, bytes: usize) -> Result<MappedPiece, IpcError> {
        let file = Mapping::check(descriptor, bytes)?;
        let (found, others) = {
            let pieces = &mut self.free().pieces;
            match pieces.iter().position(|piece| piece.file == file) {
                Some(at) => (Some(pieces.swap_remove(at)), Vec::new()),
                None => (None, std::mem::take(pieces)),
            }
        };
        drop(others);
        match found {
            Some(piece) => Ok(piece),
            None => {
                let mapping = Arc::new(Mapping::map(descriptor, bytes)?);
                Ok(MappedPiece { mapping, file, registered: None })
            }
        }
    }

    /// A tree does not lie there any more.
    pub(crate) fn put(&self, piece: MappedPiece) {
        // In a process that was forked, another thread may have had the lock then.
        if self.process != getpid() {
            return;
        }
        let mut free = self.free();
        if free.is_closed || free.pieces.len() >= MOST_KEPT {
            drop(free);
            drop(piece);
        } else {
            free.pieces.push(piece);
        }
    }

    /// There will be no more trees.
    pub(crate) fn close(&self) {
        let mut free = self.free();
        free.is_closed = true;
        let pieces = std::mem::take(&mut free.pieces);
        drop(free);
        drop(pieces);
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
