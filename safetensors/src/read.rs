//! Reading pieces of tensors.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ops::Range;

use transship_core::Cast;

use crate::direct::DirectReads;
use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::options::Progress;
use crate::sources::{Chosen, Sources};
use crate::window::{BUFFERED, DIRECT, Window};

/// Runs of a narrowed tensor with no more bytes between them are read with what lies between, in bytes: a call of the system for each would
/// take longer.
const GAP: usize = 16 << 10;

/// A part of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// The number of the tensor.
    pub(crate) tensor: usize,
    /// The number of its first byte among those of the tensor that are wanted, before they are cast.
    pub(crate) first: usize,
    pub(crate) bytes: usize,
    /// How many zeros follow.
    pub(crate) padding: usize,
}

/// How many bytes of files these are.
pub(crate) fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes as u64).sum()
}

/// What pieces are read into, one behind the other.
pub(crate) trait Destination {
    /// Bytes that were read already.
    fn put(&mut self, bytes: &[u8]) -> Result<(), transship_core::Error>;

    /// Elements that were read already, converted.
    fn put_cast(&mut self, cast: &Cast, elements: &[u8]) -> Result<(), transship_core::Error>;

    /// Zeros.
    fn pad(&mut self, bytes: usize) -> Result<(), transship_core::Error>;

    /// Reads at most so many bytes; 0 at the end of the file.
    fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize>;
}

/// Reads pieces. Each thread has one.
pub(crate) struct Reader<'a> {
    sources: &'a Sources,
    progress: &'a Progress,
    window: Window,
}

/// Bytes that lie one behind the other in a file.
struct Extent<'a> {
    tensor: &'a Chosen,
    file: &'a OpenFile,
    offset: u64,
    bytes: usize,
    /// The number of the first one among those of the tensor.
    first: usize,
}

/// Where reading ahead of an extent ends: with it, or behind it.
#[derive(Clone, Copy)]
struct Ahead {
    buffered: u64,
    direct: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(sources: &'a Sources, direct_reads: DirectReads, progress: &'a Progress) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { sources, progress, window: Window::new(direct_reads, random) }
    }

    pub(crate) fn read_all(&mut self, pieces: &[Piece], to: &mut impl Destination) -> Result<(), LoadError> {
        let (mut rest, sources) = (pieces, self.sources);
        while let Some((piece, later)) = rest.split_first() {
            let Some(tensor) = sources.tensors.get(piece.tensor) else { return Ok(()) };
            let Some(file) = sources.file(tensor.file) else { return Ok(()) };
            let (mut first, ahead) = (piece.first, self.ahead_of(tensor, rest));
            for (offset, bytes) in tensor.selection.parts(piece.first, piece.bytes) {
                let extent = Extent { tensor, file, offset, bytes, first };
                self.read_extent(&extent, ahead.for_extent(offset + bytes as u64), to)?;
                first += bytes;
            }
            to.pad(piece.padding).map_err(|error| tensor.entry.device_error(file, error))?;
            rest = later;
        }
        Ok(())
    }

    /// How far to read ahead for the first of these pieces, which is one of `tensor`.
    fn ahead_of(&self, tensor: &Chosen, pieces: &[Piece]) -> Ahead {
        let Some(Piece { first, bytes, .. }) = pieces.first().copied() else { return Ahead::NOT };
        let (selection, span) = (&tensor.selection, tensor.selection.span(first, bytes));
        match selection.gap() {
            _ if self.have(tensor.file, &span) => Ahead::NOT,
            0 => Ahead {
                buffered: self.end_of_neighbours(tensor.file, pieces, BUFFERED),
                direct: self.end_of_neighbours(tensor.file, pieces, DIRECT),
            },
            1..=GAP => Ahead { buffered: span.end, direct: span.end },
            _ => Ahead::NOT,
        }
    }

    /// Whether all of these bytes were read already.
    fn have(&self, file: usize, span: &Range<u64>) -> bool {
        let bytes = usize::try_from(span.end - span.start);
        bytes.is_ok_and(|bytes| self.window.have(file, span.start, bytes).is_some())
    }

    /// Where the last of those of the first pieces ends that lie one behind the other in the file, and are together no larger than `most`; that of the
    /// first one at least.
    fn end_of_neighbours(&self, file: usize, pieces: &[Piece], most: usize) -> u64 {
        let mut spans = pieces.iter().map_while(|piece| {
            let tensor = self.sources.tensors.get(piece.tensor)?;
            let is_whole = tensor.file == file && tensor.selection.gap() == 0;
            is_whole.then(|| tensor.selection.span(piece.first, piece.bytes))
        });
        let Some(first) = spans.next() else { return 0 };
        let mut end = first.end;
        for span in spans {
            if span.start != end || span.end - first.start > most as u64 {
                break;
            }
            end = span.end;
        }
        end
    }

    fn read_extent(
        &mut self,
        extent: &Extent<'_>,
        ahead: Ahead,
        to: &mut impl Destination,
    ) -> Result<(), LoadError> {
        let Extent { tensor, file, offset, bytes, .. } = *extent;
        let element = tensor.cast.map_or(1, |cast| cast.from_dtype().size());
        let (mut done, mut is_direct) = (0, false);
        while done < bytes {
            let at = offset + done as u64;
            if let Some(there) = self.window.have(tensor.file, at, element) {
                let there = there.get(..bytes - done).unwrap_or(there);
                let whole = there.get(..there.len() - there.len() % element).unwrap_or_default();
                extent.put(done, whole, to)?;
                done += whole.len();
                continue;
            }
            let is_read_together = bytes < BUFFERED && ahead.buffered > offset + bytes as u64;
            // Its end as well, however short that is: the page cache would read on.
            is_direct = is_direct || self.window.wants_direct(file, at, ahead.direct - at);
            if is_direct {
                let direct = self.window.read_direct(tensor.file, file, at, ahead.direct);
                self.progress.note_direct(direct.map_err(|error| extent.read_error(at, error))? as u64);
            } else if is_read_together || tensor.cast.is_some() {
                let read = self.window.read(tensor.file, file, at, ahead.buffered);
                read.map_err(|error| extent.read_error(at, error))?;
            } else {
                return extent.read_straight(done, to);
            }
        }
        Ok(())
    }
}

impl Ahead {
    const NOT: Self = Self { buffered: 0, direct: 0 };

    /// To the end of an extent at least.
    fn for_extent(self, end: u64) -> Self {
        Self { buffered: self.buffered.max(end), direct: self.direct.max(end) }
    }
}

impl Extent<'_> {
    /// Appends bytes of it, the first of which has this number.
    fn put(&self, number: usize, bytes: &[u8], to: &mut impl Destination) -> Result<(), LoadError> {
        let put = match &self.tensor.cast {
            None => to.put(bytes),
            Some(cast) => {
                self.check_values(cast, number, bytes)?;
                to.put_cast(cast, bytes)
            }
        };
        put.map_err(|error| self.tensor.entry.device_error(self.file, error))
    }

    /// Fails if the type that `cast` makes cannot hold an element of `bytes`.
    fn check_values(&self, cast: &Cast, number: usize, bytes: &[u8]) -> Result<(), LoadError> {
        let Some((index, value)) = cast.first_that_does_not_fit(bytes) else { return Ok(()) };
        let entry = &self.tensor.entry;
        Err(LoadError::DoesNotFit {
            path: self.file.path.clone(),
            tensor: entry.name.clone(),
            offset: entry.offset,
            element: (self.first + number) / cast.from_dtype().size() + index,
            value,
            from: cast.from_dtype(),
            to: cast.to_dtype(),
        })
    }

    /// Reads the bytes from this number on without a copy in between.
    fn read_straight(&self, mut number: usize, to: &mut impl Destination) -> Result<(), LoadError> {
        while number < self.bytes {
            let at = self.offset + number as u64;
            let outcome = match to.read(self.file, at, self.bytes - number) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                outcome => outcome,
            };
            number += outcome.map_err(|error| self.read_error(at, error))?;
        }
        Ok(())
    }

    fn read_error(&self, at: u64, error: io::Error) -> LoadError {
        let entry = &self.tensor.entry;
        self.file.read_error(&entry.name, entry.offset, at, error)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::File;

    use rustix::fs::{Advice, fadvise};
    use transship_core::Error;

    use super::*;
    use crate::direct::is_cached;
    use crate::wanted::Wanted;

    impl Destination for Vec<u8> {
        fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
            self.extend_from_slice(bytes);
            Ok(())
        }

        fn put_cast(&mut self, _: &Cast, _: &[u8]) -> Result<(), Error> {
            Err(Error::NotReady)
        }

        fn pad(&mut self, bytes: usize) -> Result<(), Error> {
            self.resize(self.len() + bytes, 0);
            Ok(())
        }

        fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize> {
            let start = self.len();
            self.resize(start + most, 0);
            let read = file.read_at(self.get_mut(start..).unwrap(), offset)?;
            self.truncate(start + read);
            Ok(read)
        }
    }

    /// Counts reads that go straight there: each is a call of the system.
    #[derive(Default)]
    struct Counting {
        bytes: Vec<u8>,
        straight_reads: usize,
    }

    impl Destination for Counting {
        fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
            self.bytes.put(bytes)
        }

        fn put_cast(&mut self, cast: &Cast, elements: &[u8]) -> Result<(), Error> {
            self.bytes.put_cast(cast, elements)
        }

        fn pad(&mut self, bytes: usize) -> Result<(), Error> {
            self.bytes.pad(bytes)
        }

        fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize> {
            self.straight_reads += 1;
            self.bytes.read(file, offset, most)
        }
    }

    /// A file with a tensor of bytes of this shape.
    fn file_of(data: &[u8], shape: &[usize], folder: &std::path::Path) -> tempfile::NamedTempFile {
        let end = data.len();
        let header = format!(r#"{{"t":{{"dtype":"U8","shape":{shape:?},"data_offsets":[0,{end}]}}}}"#);
        let named = tempfile::NamedTempFile::new_in(folder).unwrap();
        let text = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        std::fs::write(named.path(), text).unwrap();
        named
    }

    /// A direct read ends with a whole block, which has some of the next piece: its runs are read together all the same.
    /// catches: 481-runs-behind-a-direct-read-one-by-one
    #[test]
    fn runs_behind_a_direct_read_are_read_together() {
        const ROW: usize = 100;
        const RUN: usize = 10;
        const BLOCK: u64 = 4096;
        let (rows, program) = (40_000, std::env::current_exe().unwrap());
        let data: Vec<u8> = (0..rows * ROW).map(|at| (at * 7 + at / 251) as u8).collect();
        let named = file_of(&data, &[rows, ROW], program.parent().unwrap());
        let narrow = |_: &str, _: &[usize]| Some((1, 0..RUN));
        let mut wanted = Wanted { filter: None, narrow: Some(Box::new(narrow)), casts: Vec::new() };
        let sources = Sources::of_files(&[named.path().to_owned()], &mut wanted).unwrap();
        let selection = &sources.tensors[0].selection;
        // The last row of a direct read whose last block has as much behind it as can be.
        let is_short = |rows: &usize| selection.span(0, rows * RUN).end % BLOCK < ROW as u64;
        let first = (rows / 4..).find(is_short).unwrap() * RUN;
        let pieces = [(0, first), (first, 100 * RUN)].map(|(first, bytes)| Piece {
            tensor: 0,
            first,
            bytes,
            padding: 0,
        });
        let (progress, mut read) = (Progress::default(), Counting::default());
        let mut reader = Reader::new(&sources, DirectReads::Always, &progress);
        reader.read_all(&pieces, &mut read).unwrap();
        let expected = data.chunks(ROW).flat_map(|row| &row[..RUN]).take(first + 100 * RUN);
        assert!(read.bytes.iter().eq(expected));
        assert!(read.straight_reads <= 1, "{} calls for 100 runs", read.straight_reads);
    }

    fn drop_from_cache(file: &File) {
        file.sync_all().unwrap();
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
    }

    /// On the disk that this was built on: temporary folders may be memory.
    #[test]
    fn what_is_not_cached_is_read_from_the_disk_and_the_rest_from_the_cache() {
        let data: Vec<u8> = (0..(3 << 20) + 12_345_usize).map(|at| (at * 7 + at / 251) as u8).collect();
        let program = std::env::current_exe().unwrap();
        let on_disk = program.parent().unwrap();
        let named = file_of(&data, &[data.len()], on_disk);
        let mut wanted = Wanted { filter: None, narrow: None, casts: Vec::new() };
        let sources = Sources::of_files(&[named.path().to_owned()], &mut wanted).unwrap();
        let file = sources.file(0).unwrap();
        let direct_bytes = |direct_reads| {
            let (progress, mut read) = (Progress::default(), Vec::new());
            let piece = Piece { tensor: 0, first: 0, bytes: data.len(), padding: 3 };
            let mut reader = Reader::new(&sources, direct_reads, &progress);
            reader.read_all(&[piece], &mut read).unwrap();
            assert!(read == [&data[..], &[0; 3]].concat());
            progress.direct_bytes()
        };
        assert_eq!(direct_bytes(DirectReads::NotCached), 0);
        // A look may start the read of what it looks for, and a quick disk ends it before the look does: not each look tells.
        let is_read_from_disk = (0..1_000).any(|_| {
            drop_from_cache(file.file());
            direct_bytes(DirectReads::NotCached) >= data.len() as u64
        });
        // Where nobody can tell, it is the page cache.
        assert_eq!(is_read_from_disk, is_cached(file.file(), 0).is_some());
        // Disks refuse what is not aligned, as other file systems refuse all.
        let is_refused = file.read_direct_at(&mut [0; 7], 1).is_none();
        assert_eq!(is_refused, direct_bytes(DirectReads::Always) == 0);
    }
}
