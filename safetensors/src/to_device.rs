//! Loading to a device, through blocks.

use std::collections::BTreeMap;
use std::io;

use transship_core::fill::{FillBlock, Filled, Filler};
use transship_core::{Cast, Device, Error, Tensor};

use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::options::Validated;
use crate::pack::{Packed, Segment};
use crate::read::{Destination, Reader, bytes_of};
use crate::sources::Sources;
use crate::team::{Team, share_out};
use crate::trace::span;

/// How tensors are aligned, unless the device copies larger granules: as its allocations are, for kernels of any kind.
const ALIGNMENT: usize = 256;

pub(crate) fn load<'a>(
    sources: &Sources,
    device: &Device,
    team: &Team,
    options: &Validated,
    reader: impl Fn() -> Reader<'a> + Sync,
) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let mut filler = Filler::new(device, options.budget).map_err(LoadError::Option)?;
    let alignment = device.limits().copy_granularity.bytes().max(ALIGNMENT);
    let packed = Packed::new(&sources.tensors, alignment, device.limits().largest_buffer);
    let packed = packed.map_err(|tensor| of_tensor(sources, tensor, too_large(device)))?;
    for memory in &packed.memories {
        let allocated = filler.allocate(memory.bytes, memory.tensors.len());
        allocated.map_err(|error| of_tensor(sources, memory.tensors.first().copied().unwrap_or(0), error))?;
    }
    let segments = packed.segments(&sources.tensors, alignment, filler.block_bytes());
    share_out(team, segments.into_iter(), reader, |reader, segment| {
        let bytes = carry(sources, &filler, reader, &segment)?;
        options.progress.note_read(bytes);
        Ok(())
    })?;
    let filled = filler.finish().map_err(LoadError::Finish)?;
    by_name(sources, &packed, &filled)
}

/// Reads what goes through one block, and submits it; returns how many bytes were read.
fn carry(
    sources: &Sources,
    filler: &Filler,
    reader: &mut Reader<'_>,
    segment: &Segment,
) -> Result<u64, LoadError> {
    let first = segment.pieces.first().map_or(0, |piece| piece.tensor);
    let of_first = |error| of_tensor(sources, first, error);
    let mut block = filler.block().map_err(of_first)?;
    let bytes = bytes_of(&segment.pieces);
    {
        let _span = span!("read", bytes);
        reader.read_all(&segment.pieces, &mut block)?;
    }
    filler.submit(block, &segment.parts).map_err(of_first)?;
    Ok(bytes)
}

fn by_name(
    sources: &Sources,
    packed: &Packed,
    filled: &Filled,
) -> Result<BTreeMap<String, Tensor>, LoadError> {
    let mut tensors = BTreeMap::new();
    for (number, (chosen, (memory, offset))) in sources.tensors.iter().zip(&packed.places).enumerate() {
        let tensor = filled.tensor(*memory, *offset, &chosen.shape, chosen.dtype);
        let tensor = tensor.map_err(|error| of_tensor(sources, number, error))?;
        tensors.insert(chosen.entry.name.clone(), tensor);
    }
    Ok(tensors)
}

fn of_tensor(sources: &Sources, number: usize, error: Error) -> LoadError {
    let tensor = sources.tensors.get(number);
    match tensor.and_then(|tensor| Some((sources.file(tensor.file)?, tensor))) {
        Some((file, tensor)) => tensor.entry.device_error(file, error),
        None => LoadError::Finish(error),
    }
}

fn too_large(device: &Device) -> Error {
    let limit = device.limits().largest_buffer;
    Error::TooLarge { device: device.id(), kind: "device", requested: usize::MAX, limit }
}

impl Destination for FillBlock {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.append(bytes)
    }

    fn put_cast(&mut self, cast: &Cast, elements: &[u8]) -> Result<(), Error> {
        self.append_cast(cast, elements)
    }

    fn pad(&mut self, bytes: usize) -> Result<(), Error> {
        self.append_zeros(bytes)
    }

    #[cfg(unix)]
    fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize> {
        crate::open_file::retry(|| {
            self.append_with(most, |room| {
                let (written, _) = rustix::io::pread(file.file(), room, offset)?;
                Ok(written)
            })
        })
    }

    /// Through memory of the thread: only initialised memory can be read into.
    #[cfg(not(unix))]
    fn read(&mut self, file: &OpenFile, offset: u64, most: usize) -> io::Result<usize> {
        let mut buffer = [0; 64 << 10];
        let room = buffer.len().min(most);
        let room = buffer.get_mut(..room).unwrap_or_default();
        let bytes = file.read_at(room, offset)?;
        self.append(room.get(..bytes).unwrap_or_default()).map_err(io::Error::other)?;
        Ok(bytes)
    }
}
