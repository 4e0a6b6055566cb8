//! A pinned block in the hands of a thread of the program.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::WriteWindow;
use crate::cast::Cast;
use crate::error::{Error, Result};
use crate::staging::block::Block;
use crate::staging::pool::StagingPool;

/// A pinned block that a thread appends bytes to. Dropping it gives it back; nothing is copied then.
pub struct FillBlock {
    pub(crate) block: Block,
    /// The pool of the filler that has given it out.
    pub(crate) pool: Arc<StagingPool>,
    window: WriteWindow,
    capacity: usize,
    filled: usize,
}

impl FillBlock {
    /// `block` is used by nobody else, and by no copy. `pool` tells its filler from others.
    pub(crate) fn new(block: Block, pool: Arc<StagingPool>, capacity: usize) -> Result<Self> {
        let window = block.staging().window().ok_or_else(|| block.why_no_access())?;
        let capacity = capacity.min(window.bytes());
        Ok(Self { block, pool, window, capacity, filled: 0 })
    }

    /// How many bytes it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes were appended.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if there is no room for all of them; then none is appended.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let to = self.place(bytes.len())?;
        // SAFETY: `place` has found room for all of them, which nobody else has (`room`); so it is no part of `bytes`.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.filled += bytes.len();
        Ok(())
    }

    /// Appends elements that `cast` converts: `from` has the bytes of whole ones, however they are aligned. Integers that do not fit become the nearest
    /// that does; [`Cast::first_that_does_not_fit`] finds them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a pair of types that no cast is for, and for a part of an element; [`Error::OutOfRange`] if there is no
    /// room for all. Then none is appended.
    pub fn append_cast(&mut self, cast: &Cast, from: &[u8]) -> Result<()> {
        let converted = cast.converted_bytes(from.len());
        cast.check_sizes(from.len(), converted)?;
        let to = self.place(converted)?;
        // SAFETY: `place` has found room for `converted` bytes, which `check_sizes` says the elements become. Nobody else has that room (`room`); so
        // it is no part of `from`.
        unsafe { cast.convert_to(from, to.as_ptr()) };
        self.filled += converted;
        Ok(())
    }

    /// Appends so many zeros.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_zeros(&mut self, bytes: usize) -> Result<()> {
        let to = self.place(bytes)?;
        // SAFETY: `place` has found room for so many bytes, which nobody else has (`room`).
        unsafe { to.write_bytes(0, bytes) };
        self.filled += bytes;
        Ok(())
    }

    /// Appends what `write` writes to the start of the room that it is given: at most `most` bytes. It returns the part that it
    /// has written; anything but a part from the start of the room counts as nothing. The room may be memory that is slow to
    /// read. Returns how many bytes were appended.
    ///
    /// # Errors
    ///
    /// What `write` says; then nothing is appended.
    pub fn append_with<E>(
        &mut self,
        most: usize,
        write: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<usize, E> {
        let room = self.room(most);
        let (start, bytes) = (room.as_ptr().addr(), room.len());
        let written = write(room)?;
        // A slice of bytes is initialised, and this one begins where the room does.
        let from_the_start = written.as_ptr().addr() == start && written.len() <= bytes;
        let appended = if from_the_start { written.len() } else { 0 };
        self.filled += appended;
        Ok(appended)
    }

    /// At most `most` bytes behind those that were appended.
    fn room(&mut self, most: usize) -> &mut [MaybeUninit<u8>] {
        let bytes = most.min(self.capacity - self.filled);
        match self.window.at(self.filled, bytes) {
            // SAFETY: `at` has checked that the window, which the block keeps valid, has so many bytes there. Nobody else has the
            // block, and no copy uses it before `Filler::submit` takes it. Uninitialised bytes may be of this type, and none is
            // read.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), bytes) },
            None => &mut [],
        }
    }

    /// Where the next `bytes` bytes go.
    fn place(&self, bytes: usize) -> Result<NonNull<u8>> {
        let (start, end, limit) = (self.filled, self.filled.saturating_add(bytes), self.capacity);
        let place = self.window.at(start, bytes).filter(|_| end <= limit);
        place.ok_or(Error::OutOfRange { what: "bytes", start, end, limit })
    }
}
