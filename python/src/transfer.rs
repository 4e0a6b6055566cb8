//! One copy: from leaves to memory on the target, by the library.

use std::any::Any;

use transship::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, Layout, MemoryKind, RawMemory, Result,
    SharedOwner, Stream, Tensor, start_copy_into,
};

use crate::gather::{self, Gather};
use crate::leaf::Leaf;
use crate::on_source::OnSource;
use crate::pieces::Piece;
use crate::place::Place;
use crate::released::Held;

/// How the library shall copy.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub pinned_staging: bool,
    /// Whether threads of the library may stage what is large.
    pub background: bool,
}

/// Memory on the target.
pub struct Memory {
    pub source: Source,
    /// Of the library's own kinds; only their size matters.
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
    /// As much memory of the device that the leaves are on, where they are gathered before they go to another device.
    pub beside: Option<Beside>,
}

/// Memory of PyTorch's.
pub struct Beside {
    pub address: u64,
    pub bytes: usize,
    pub held: Held,
}

/// Whose it is.
pub enum Source {
    /// At an address, kept by an object of Python.
    Lent(u64, MemoryKind, Held),
    /// The library's own, allocated when the copy starts; results on the host are page-locked by this device, if that has room for it.
    Own(Option<Place>),
}

/// Leaves of one place, on their way.
pub struct Group {
    pub from: Place,
    pub pieces: Vec<Piece>,
    /// Leaves of the host that are not among the pieces: a chunk each.
    pub gathers: Vec<Gather>,
    pub sources: Held,
    pub memory: Vec<Memory>,
    /// The stream that the copy runs on: of the target, or of the source where the target is the host.
    pub stream: Option<Stream>,
    /// What the stream waits for before that.
    pub behind: Option<Stream>,
}

/// A copy that was started.
pub type Running = CopyHandle<Vec<Tensor>>;

/// A copy, and where its results are.
pub struct Launched {
    pub running: Running,
    /// What it comes behind, if its leaves are gathered on their device first.
    pub before: Option<Running>,
    /// For each piece the number of the tensor that it is in, and the offset there, in bytes; where results lie in memory of the library.
    pub results: Vec<(usize, usize)>,
}

impl Group {
    /// Starts the copy of all pieces. Needs no GIL, and takes none.
    pub fn start(mut self, target: Place, how: How) -> Result<Launched> {
        let (device, source) = (target.device()?, self.from.device()?);
        let owner = SharedOwner::new(self.sources, &source);
        let on_source = OnSource::gather(&self.pieces, &mut self.memory, &owner, self.behind.as_ref());
        if let (Some(stream), Some(behind)) = (&self.stream, &self.behind) {
            stream.wait_stream(behind)?;
        }
        let groups = || self.pieces.chunk_by(|one, next| one.to.memory == next.to.memory);
        let whole = |pieces: &[Piece]| match pieces {
            [] => Ok(None),
            [first, ..] if on_source.of(first).is_some() => Ok(on_source.of(first).cloned()),
            [_] => Ok(None),
            // Where a device gathers nothing, each leaf is copied by itself.
            _ if self.from != Place::Host => Ok(gather::gathered(&owner, pieces).ok()),
            _ => gather::gathered(&owner, pieces).map(Some),
        };
        let gathered = groups().map(whole).collect::<Result<Vec<_>>>()?;
        let apart = groups().zip(&gathered).filter(|(_, whole)| whole.is_none());
        let mut sources = lend(&owner, apart.flat_map(|(pieces, _)| pieces))?;
        let (mut targets, mut wholes) = (Vec::with_capacity(sources.len()), Vec::new());
        let mut results = Vec::new();
        let is_own = self.memory.iter().any(|memory| matches!(memory.source, Source::Own(_)));
        let opened = self.memory.into_iter().map(|memory| memory.open(&device, &source));
        let memory = opened.collect::<Result<Vec<_>>>()?;
        for (pieces, whole) in groups().zip(gathered) {
            let Some(first) = pieces.first() else { continue };
            let to = memory.get(first.to.memory).ok_or(Error::Taken)?;
            let Some(whole) = whole else {
                if is_own {
                    results.extend((targets.len()..).zip(pieces).map(|(number, _)| (number, 0)));
                }
                for piece in pieces {
                    targets.push(piece.target(to)?);
                }
                continue;
            };
            if is_own {
                results.extend(pieces.iter().map(|piece| (sources.len(), piece.to.offset)));
            }
            wholes.push(to.clone());
            sources.push(whole);
        }
        for Gather { memory: number, listed } in self.gathers {
            wholes.push(memory.get(number).ok_or(Error::Taken)?.clone());
            sources.push(gather::of_list(&owner, listed)?);
        }
        targets.append(&mut wholes);
        drop((owner, memory));
        let background = if how.background { BackgroundWork::Auto } else { BackgroundWork::Never };
        let mut options = CopyOptions::default().pinned_staging(how.pinned_staging).background(background);
        if let Some(stream) = &self.stream {
            options = options.stream(stream);
        }
        Ok(Launched { running: start(sources, targets, options)?, before: on_source.copy, results })
    }
}

/// What the caller's thread cannot do without waiting is done by threads of the library after all.
pub fn start(sources: Vec<Tensor>, targets: Vec<Tensor>, options: CopyOptions) -> Result<Running> {
    start_copy_into(sources, targets, options.clone()).or_else(|failed| {
        let is_busy = matches!(failed.error(), Error::Busy { .. });
        match failed.error().clone() {
            error if !is_busy => Err(error),
            error => match failed.into_both() {
                (Some(sources), Some(targets)) => {
                    Ok(start_copy_into(sources, targets, options.background(BackgroundWork::Auto))?)
                }
                _ => Err(error),
            },
        }
    })
}

impl Memory {
    /// Memory for any leaf, or parts of it for several.
    pub fn of_bytes(source: Source, bytes: usize) -> Self {
        Self { source, dtype: DType::U8, shape: vec![bytes], bytes, beside: None }
    }

    /// Makes it that of a leaf with gaps, which is copied element by element.
    pub fn make_like(&mut self, leaf: &Leaf) {
        (self.dtype, self.shape) = (carrier(leaf), sizes(leaf.shape()));
    }

    /// As a tensor of `device` that the library may fill with what comes from `source`.
    fn open(self, device: &Device, source: &Device) -> Result<Tensor> {
        match self.source {
            Source::Own(None) => Tensor::empty(&self.shape, self.dtype, device),
            Source::Own(Some(locking)) => {
                let pinned = Tensor::empty_pinned(&self.shape, self.dtype, &locking.device()?);
                pinned.or_else(|_| Tensor::empty(&self.shape, self.dtype, device))
            }
            Source::Lent(address, kind, held) => {
                let memory = RawMemory::new(address, self.bytes, kind);
                let owner: Box<dyn Any + Send + Sync> = Box::new(held);
                // Page-locked memory is made for results of GPUs alone (`Request::is_pinned`), by the driver of them all.
                let device = if kind == MemoryKind::Pinned { source } else { device };
                // SAFETY: PyTorch has made this memory for the copy, `held` keeps it, and nobody else has it before the copy is done.
                unsafe { Tensor::from_raw_mut(memory, owner, &self.shape, self.dtype, device) }
            }
        }
    }
}

/// The memory of `pieces`, as tensors to copy.
pub fn lend<'a>(owner: &SharedOwner, pieces: impl Iterator<Item = &'a Piece>) -> Result<Vec<Tensor>> {
    let pieces = pieces.map(Piece::source).collect::<Result<Vec<_>>>()?;
    // SAFETY: the owner keeps the objects that this memory is of; what is between two leaves that are one piece is of their allocation (see
    // `Piece::join`). That others may write it meanwhile is said in the documentation, and is the same for every library that takes
    // tensors of Python: it is read through raw pointers.
    unsafe { owner.tensors(pieces) }
}

impl Piece {
    fn source(&self) -> Result<(RawMemory, Layout)> {
        let layout = match &self.strided {
            None => Layout::contiguous(DType::U8, &[self.bytes])?,
            Some(leaf) => Layout::strided(carrier(leaf), &sizes(leaf.shape()), &sizes(leaf.strides()))?,
        };
        Ok((RawMemory::new(self.address, layout.span(), self.kind), layout))
    }

    /// Its place in `memory`.
    pub fn target(&self, memory: &Tensor) -> Result<Tensor> {
        match &self.strided {
            None => memory.narrow(0, self.to.offset, self.bytes),
            Some(_) => Ok(memory.clone()),
        }
    }
}

/// Elements of the size of those of a leaf. Nothing but their size matters here.
fn carrier(leaf: &Leaf) -> DType {
    match leaf.type_of_elements().bytes() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        8 => DType::U64,
        _ => DType::Complex128,
    }
}

/// Of a leaf none is negative.
pub fn sizes(numbers: &[i64]) -> Vec<usize> {
    numbers.iter().map(|number| usize::try_from(*number).unwrap_or(0)).collect()
}
