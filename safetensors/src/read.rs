//! Reading pieces of tensors.

use std::io;

use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::sources::{Chosen, Sources};

/// Neighbours that are together no larger are read at once, in bytes.
const SCRATCH: usize = 256 << 10;

/// A part of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// The number of the tensor.
    pub(crate) tensor: usize,
    /// Where it begins in its file.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// How many zeros follow.
    pub(crate) padding: usize,
}

/// What pieces are read into, one behind the other.
pub(crate) trait Destination {
    /// Bytes that were read already.
    fn put(&mut self, bytes: &[u8]) -> Result<(), transship_core::Error>;

    /// Zeros.
    fn pad(&mut self, bytes: usize) -> Result<(), transship_core::Error>;

    /// Reads at most so many bytes; 0 at the end of the file.
    fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize>;
}

/// Reads pieces. Each thread has one.
pub(crate) struct Reader<'a> {
    sources: &'a Sources,
    scratch: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(sources: &'a Sources) -> Self {
        Self { sources, scratch: vec![0; SCRATCH] }
    }

    pub(crate) fn read_all(&mut self, pieces: &[Piece], to: &mut impl Destination) -> Result<(), LoadError> {
        let mut rest = pieces;
        while let Some((first, _)) = rest.split_first() {
            let Some(tensor) = self.sources.tensors.get(first.tensor) else { return Ok(()) };
            let Some(file) = self.sources.file(tensor.file) else { return Ok(()) };
            let (now, later) = rest.split_at(self.neighbours(rest, tensor.file));
            match now {
                [piece] => read_one(file, tensor, piece, to)?,
                several => self.read_together(file, tensor, several, to)?,
            }
            rest = later;
        }
        Ok(())
    }

    /// How many of the first pieces lie one behind the other in the file of this number, and are small together; at least 1.
    fn neighbours(&self, pieces: &[Piece], file: usize) -> usize {
        let Some(first) = pieces.first() else { return 0 };
        let (mut end, mut count) = (first.offset + first.bytes as u64, 1);
        for piece in pieces.iter().skip(1) {
            let is_next = piece.offset == end
                && self.sources.tensors.get(piece.tensor).is_some_and(|tensor| tensor.file == file);
            end += piece.bytes as u64;
            if !is_next || end - first.offset > SCRATCH as u64 {
                break;
            }
            count += 1;
        }
        count
    }

    fn read_together(
        &mut self,
        file: &OpenFile,
        tensor: &Chosen,
        pieces: &[Piece],
        to: &mut impl Destination,
    ) -> Result<(), LoadError> {
        let Some(Piece { offset, .. }) = pieces.first().copied() else { return Ok(()) };
        let bytes = pieces.iter().map(|piece| piece.bytes).sum::<usize>();
        let Some(mut rest) = self.scratch.get_mut(..bytes) else { return Ok(()) };
        let entry = &tensor.entry;
        let read = file.read_exact_at(rest, offset);
        read.map_err(|error| file.read_error(&entry.name, entry.offset, offset, error))?;
        for piece in pieces {
            let (now, later) = rest.split_at_mut(piece.bytes.min(rest.len()));
            let put = to.put(now).and_then(|()| to.pad(piece.padding));
            put.map_err(|error| entry.device_error(file, error))?;
            rest = later;
        }
        Ok(())
    }
}

fn read_one(
    file: &OpenFile,
    tensor: &Chosen,
    piece: &Piece,
    to: &mut impl Destination,
) -> Result<(), LoadError> {
    let entry = &tensor.entry;
    let mut read = 0;
    while read < piece.bytes {
        let offset = piece.offset + read as u64;
        let outcome = match to.read(file, offset, piece.bytes - read) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            outcome => outcome,
        };
        read += outcome.map_err(|error| file.read_error(&entry.name, entry.offset, offset, error))?;
    }
    to.pad(piece.padding).map_err(|error| entry.device_error(file, error))
}
