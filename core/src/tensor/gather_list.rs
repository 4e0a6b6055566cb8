//! Pieces of memory of the host that copies read as one run of bytes.

use std::any::Any;
use std::ptr::NonNull;

use crate::backend::host::foreign_memory::host_range;
use crate::backend::{Buffer, MemoryKind, RawMemory};
use crate::error::{Error, Result};
use crate::tensor::memory::Owner;
use crate::tensor::non_temporal::HostCopy;

/// Memory that lies nowhere as a whole: the host has no pointer to it. What is between two pieces is no memory, and reads as zeros.
pub(crate) struct GatherList {
    pieces: Vec<Piece>,
    bytes: usize,
    _owner: Owner,
}

struct Piece {
    from: NonNull<u8>,
    to: usize,
    bytes: usize,
}

impl GatherList {
    /// Each piece comes with its offset; none begins before the end of the one before it.
    ///
    /// # Safety
    ///
    /// All pieces are initialised and valid for reads until `owner` is dropped. No reference of this process points there.
    pub(crate) unsafe fn new(
        pieces: impl IntoIterator<Item = (RawMemory, usize)>,
        owner: Owner,
    ) -> Result<Self> {
        let pieces = pieces.into_iter();
        let (mut end, mut listed) = (0, Vec::with_capacity(pieces.size_hint().0));
        for (memory, to) in pieces {
            let RawMemory { address, bytes, .. } = memory;
            let from = host_range(memory)?;
            match to.checked_add(bytes).filter(|_| to >= end) {
                Some(next) => end = next,
                None => {
                    let reason = format!("its offset is {to}, and the piece before it ends at {end}");
                    return Err(Error::InvalidMemory { address, bytes, reason });
                }
            }
            listed.push(Piece { from, to, bytes });
        }
        Ok(Self { pieces: listed, bytes: end, _owner: owner })
    }

    /// It, if that is what the buffer is.
    pub(crate) fn of(buffer: &dyn Buffer) -> Option<&Self> {
        (buffer as &dyn Any).downcast_ref()
    }

    /// Copies `bytes` bytes from `skip` on: a copy may lie in memory that nobody has written before, so all of it is.
    ///
    /// # Safety
    ///
    /// `to` has room for them, lies in none of the pieces, and nobody else uses it before `writer` is dropped.
    pub(crate) unsafe fn copy(&self, skip: usize, to: *mut u8, bytes: usize, writer: &HostCopy) {
        let end = skip.saturating_add(bytes);
        let first = self.pieces.partition_point(|piece| piece.to + piece.bytes <= skip);
        let mut done = skip;
        for piece in self.pieces.iter().skip(first).take_while(|piece| piece.to < end) {
            let (begin, until) = (piece.to.max(skip), (piece.to + piece.bytes).min(end));
            // SAFETY: `begin` and `until` lie within the piece, which is valid for reads (`new`), and within what the caller has promised; `done` does not lie behind
            // `begin`, since pieces are in order.
            unsafe {
                // Mostly there is nothing between two, and clearing nothing is a call all the same.
                if begin > done {
                    to.add(done - skip).write_bytes(0, begin - done);
                }
                let from = piece.from.as_ptr().add(begin - piece.to);
                writer.copy(from, to.add(begin - skip), until - begin);
            }
            done = until;
        }
        // SAFETY: within what the caller has promised.
        unsafe { to.add(done - skip).write_bytes(0, end - done) };
    }
}

// SAFETY: the pieces are only read, by whoever relies on the promise made to `new`.
unsafe impl Send for GatherList {}
// SAFETY: as above.
unsafe impl Sync for GatherList {}

// SAFETY: it says of no address that the memory is there.
unsafe impl Buffer for GatherList {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }

    fn address(&self) -> Option<u64> {
        None
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        None
    }
}
