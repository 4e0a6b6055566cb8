//! What a thread reads that does not go straight to its destination.

use std::io;

use crate::direct::{ALIGNMENT, DirectReads};
use crate::open_file::OpenFile;

/// So many bytes are read at a time through the page cache: what the processor's own cache has room for.
pub(crate) const BUFFERED: usize = 256 << 10;
/// And past it, where each is a round trip to the disk.
pub(crate) const DIRECT: usize = 1 << 20;

/// A part of a file, in memory.
pub(crate) struct Window {
    direct_reads: DirectReads,
    memory: Vec<u8>,
    /// The number of the file.
    file: usize,
    /// Where the part begins in the file.
    offset: u64,
    /// Where it lies in the memory.
    start: usize,
    bytes: usize,
    /// Where to look whether a part is cached.
    random: u64,
}

impl Window {
    pub(crate) fn new(direct_reads: DirectReads, random: u64) -> Self {
        Self { direct_reads, memory: Vec::new(), file: 0, offset: 0, start: 0, bytes: 0, random }
    }

    /// What it has of this file from `offset` on, if that is at least `least` bytes.
    pub(crate) fn have(&self, file: usize, offset: u64, least: usize) -> Option<&[u8]> {
        let skip = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        let part = self.memory.get(self.start.checked_add(skip)?..self.start + self.bytes)?;
        (file == self.file && part.len() >= least).then_some(part)
    }

    /// Whether these bytes are to be read past the page cache.
    pub(crate) fn wants_direct(&mut self, file: &OpenFile, offset: u64, bytes: u64) -> bool {
        // As good as any for that (Knuth).
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.direct_reads.suit(file, offset, bytes, self.random >> 33)
    }

    /// Reads the bytes from `offset` on through the page cache, at most up to `until`.
    pub(crate) fn read(&mut self, number: usize, file: &OpenFile, offset: u64, until: u64) -> io::Result<()> {
        let bytes = (until - offset).min(BUFFERED as u64) as usize;
        self.begin(number, offset, BUFFERED);
        file.read_exact_at(self.memory.get_mut(..bytes).unwrap_or_default(), offset)?;
        self.bytes = bytes;
        Ok(())
    }

    /// The same past it, or through it where the file system refuses that; returns how many bytes were read past it.
    pub(crate) fn read_direct(
        &mut self,
        number: usize,
        file: &OpenFile,
        offset: u64,
        until: u64,
    ) -> io::Result<usize> {
        let begin = offset - offset % ALIGNMENT as u64;
        let end = until.min(offset + DIRECT as u64);
        self.begin(number, begin, DIRECT + 3 * ALIGNMENT);
        self.start = self.memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let wanted = (end - begin) as usize;
        let room = self.memory.get_mut(self.start..self.start + wanted.next_multiple_of(ALIGNMENT));
        let Some(room) = room else { return self.read(number, file, offset, until).map(|()| 0) };
        let direct = read_aligned(file, room, begin, wanted);
        if direct < wanted {
            let rest = room.get_mut(direct..wanted).unwrap_or_default();
            file.read_exact_at(rest, begin + direct as u64)?;
        }
        self.bytes = wanted.max(direct);
        Ok(direct)
    }

    /// Empty, with memory for so many bytes.
    fn begin(&mut self, file: usize, offset: u64, room: usize) {
        (self.file, self.offset, self.start, self.bytes) = (file, offset, 0, 0);
        if self.memory.len() < room {
            self.memory = vec![0; room];
        }
    }
}

/// Reads past the page cache until there are `wanted` bytes or that goes no further; returns how many there are.
fn read_aligned(file: &OpenFile, room: &mut [u8], begin: u64, wanted: usize) -> usize {
    let mut read = 0;
    while read < wanted && read % ALIGNMENT == 0 {
        let rest = room.get_mut(read..).unwrap_or_default();
        match file.read_direct_at(rest, begin + read as u64) {
            Some(bytes) if bytes > 0 => read += bytes,
            _ => break,
        }
    }
    read
}
