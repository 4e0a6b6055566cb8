//! Many small leaves of a device, gathered there before they go to another one whose kernels do not read them (PyTorch's expandable segments, its memory of
//! `cudaMallocAsync`): a copy between devices for each of them takes ten times as long.

use transship::{
    BackgroundWork, CopyOptions, DType, Layout, MemoryKind, RawMemory, Result, SharedOwner, Stream, Tensor,
    start_copy_into,
};

use crate::gather;
use crate::pieces::Piece;
use crate::place::Place;
use crate::plan::Size;
use crate::transfer::{Beside, Memory, Running};

/// Leaves that were gathered.
#[derive(Default)]
pub struct OnSource {
    /// `None` if none were.
    pub copy: Option<Running>,
    /// What was gathered for a chunk, to be copied into it behind that, and the number of the chunk.
    pub tensors: Vec<(usize, Tensor)>,
}

/// Whether leaves on `from` that lie as this one are gathered there before they go to `to`.
pub fn gathers(leaf: &Size, from: Place, to: Place) -> bool {
    let is_read = || -> Result<bool> {
        let memory = RawMemory::new(leaf.address, leaf.bytes, MemoryKind::Device);
        let owner = SharedOwner::new((), &from.device()?);
        // SAFETY: the leaf is alive, and nothing reads it through this tensor.
        let tensor = unsafe { owner.tensor(memory, Layout::contiguous(DType::U8, &[leaf.bytes])?) }?;
        tensor.is_read_by_kernels_of(&to.device()?)
    };
    // Where it cannot be asked, the copy says why.
    is_read().is_ok_and(|is_read| !is_read)
}

impl OnSource {
    /// Gathers the leaves of the chunks that have memory beside them, on `stream`. Where that cannot be done at once, none are.
    pub fn gather(
        pieces: &[Piece],
        memory: &mut [Memory],
        owner: &SharedOwner,
        stream: Option<&Stream>,
    ) -> Self {
        let beside: Vec<Option<Beside>> = memory.iter_mut().map(|memory| memory.beside.take()).collect();
        match stream {
            Some(stream) if beside.iter().any(Option::is_some) => {
                gathered(pieces, beside, owner, stream).unwrap_or_default()
            }
            _ => Self::default(),
        }
    }

    /// What the leaf is a part of, if it was.
    pub fn of(&self, piece: &Piece) -> Option<&Tensor> {
        self.tensors.iter().find(|(number, _)| *number == piece.to.memory).map(|(_, tensor)| tensor)
    }
}

fn gathered(
    pieces: &[Piece],
    beside: Vec<Option<Beside>>,
    owner: &SharedOwner,
    stream: &Stream,
) -> Result<OnSource> {
    let device = stream.device();
    let whole = |beside: &Option<Beside>| {
        let Some(beside) = beside else { return Ok(None) };
        let memory = RawMemory::new(beside.address, beside.bytes, MemoryKind::Device);
        // SAFETY: PyTorch has made this memory for the copy, and nobody else has it. It is kept by what
        // is read of it later, which comes behind; where an error lets go of it earlier, PyTorch uses it again behind this: it was allocated on this stream.
        unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[beside.bytes], DType::U8, device) }.map(Some)
    };
    let mut whole = beside.iter().map(whole).collect::<Result<Vec<_>>>()?;
    let (mut sources, mut wholes) = (Vec::new(), Vec::new());
    for pieces in pieces.chunk_by(|one, next| one.to.memory == next.to.memory) {
        let Some(first) = pieces.first() else { continue };
        if let Some(whole) = whole.get_mut(first.to.memory).and_then(Option::take) {
            sources.push(gather::gathered(owner, pieces)?);
            wholes.push(whole);
        }
    }
    // What is not submitted when this returns could not be waited for by another stream.
    let options = CopyOptions::default().stream(stream).background(BackgroundWork::Never);
    let copy = start_copy_into(sources, wholes, options)?;
    let read = |(number, beside): (usize, Option<Beside>)| {
        let Beside { address, bytes, held } = beside?;
        let memory = RawMemory::new(address, bytes, MemoryKind::Device);
        // SAFETY: `held` keeps it. What is copied out of it comes behind what is gathered: the stream of that copy waits for this one.
        let tensor = unsafe { Tensor::from_raw(memory, Box::new(held), &[bytes], DType::U8, device) };
        Some(tensor.map(|tensor| (number, tensor)))
    };
    let tensors = beside.into_iter().enumerate().filter_map(read).collect::<Result<_>>()?;
    Ok(OnSource { copy: Some(copy), tensors })
}
