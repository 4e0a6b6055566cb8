//! Loading to the host: straight into the tensors.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use transship_core::{Cast, Device, Error, Tensor};

use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::options::Progress;
use crate::read::{Destination, Piece, Reader, bytes_of};
use crate::sources::{Chosen, Sources};
use crate::team::{Team, share_out};
use crate::trace::span;

/// How many bytes a thread fills before it takes more work: whole elements.
const SHARE: usize = 4 << 20;

pub(crate) fn load<'a>(
    sources: &Sources,
    team: &Team,
    progress: &Progress,
    reader: impl Fn() -> Reader<'a> + Sync,
) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let mut tensors =
        sources.tensors.iter().map(|chosen| empty(sources, chosen)).collect::<Result<Vec<_>, _>>()?;
    let shares = shares(sources, &mut tensors)?;
    share_out(team, shares.into_iter(), reader, |reader, mut share| {
        let bytes = bytes_of(&share.pieces);
        let _span = span!("read", bytes);
        reader.read_all(&share.pieces, &mut share.slices)?;
        progress.note_read(bytes);
        Ok(())
    })?;
    let names = sources.tensors.iter().map(|chosen| chosen.entry.name.clone());
    Ok(names.zip(tensors).collect())
}

fn empty(sources: &Sources, chosen: &Chosen) -> Result<Tensor, LoadError> {
    Tensor::empty(&chosen.shape, chosen.dtype, &Device::host())
        .map_err(|error| of_tensor(sources, chosen, error))
}

/// What one thread reads at a time.
#[derive(Default)]
struct Share<'a> {
    pieces: Vec<Piece>,
    slices: Slices<'a>,
    bytes: usize,
}

fn shares<'a>(sources: &Sources, tensors: &'a mut [Tensor]) -> Result<Vec<Share<'a>>, LoadError> {
    let (mut shares, mut share) = (Vec::new(), Share::default());
    for (number, (chosen, tensor)) in sources.tensors.iter().zip(tensors).enumerate() {
        let mut first = 0;
        let bytes = tensor.as_mut_bytes().map_err(|error| of_tensor(sources, chosen, error))?;
        for slice in bytes.chunks_mut(SHARE) {
            if share.bytes + slice.len() > SHARE {
                shares.push(std::mem::take(&mut share));
            }
            let stored = chosen.stored_bytes(slice.len());
            share.pieces.push(Piece { tensor: number, first, bytes: stored, padding: 0 });
            share.bytes += slice.len();
            first += stored;
            share.slices.0.push_back(slice);
        }
    }
    shares.push(share);
    Ok(shares)
}

fn of_tensor(sources: &Sources, chosen: &Chosen, error: Error) -> LoadError {
    match sources.file(chosen.file) {
        Some(file) => chosen.entry.device_error(file, error),
        None => LoadError::Finish(error),
    }
}

/// Parts of tensors that are filled one behind the other: one for each piece.
#[derive(Default)]
struct Slices<'a>(VecDeque<&'a mut [u8]>);

impl<'a> Slices<'a> {
    /// Has `fill` fill the start of the first one, at most `most` bytes, and leaves that behind; returns how many bytes.
    fn fill_with(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some(first) = self.0.pop_front() else { return Ok(0) };
        let room = first.len().min(most);
        let filled = fill(first.get_mut(..room).unwrap_or_default())?;
        let rest = first.split_at_mut(filled.min(room)).1;
        if !rest.is_empty() {
            self.0.push_front(rest);
        }
        Ok(filled)
    }
}

impl Destination for Slices<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let copied = self.fill_with(bytes.len(), |room| {
            room.copy_from_slice(bytes.get(..room.len()).unwrap_or_default());
            Ok(room.len())
        });
        match copied {
            Ok(copied) if copied == bytes.len() => Ok(()),
            _ => Err(Error::NotReady),
        }
    }

    fn put_cast(&mut self, cast: &Cast, elements: &[u8]) -> Result<(), Error> {
        let bytes = elements.len() / cast.from_dtype().size() * cast.to_dtype().size();
        let mut converted = Ok(());
        let filled = self.fill_with(bytes, |room| {
            converted = cast.convert(elements, room);
            Ok(room.len())
        });
        converted?;
        match filled {
            Ok(filled) if filled == bytes => Ok(()),
            _ => Err(Error::NotReady),
        }
    }

    /// Each tensor has memory of its own.
    fn pad(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize> {
        self.fill_with(most, |room| file.read_at(room, offset))
    }
}
