//! Memory that NCCL reads and writes: read where it lies if it lies as a block does, else packed by copies within the device, and given out
//! as tensors that are filled once its stream has come by.

use transship::backend::Ticket;
use transship::{CopyOptions, Device, Layout, MemoryKind, RawMemory, Stream, Tensor, start_copy_into};

use crate::blocks::{Block, part};
use crate::error::Result;
use crate::nccl::native;

/// Where the elements of a block lie, on the device.
pub(crate) struct BlockMemory {
    /// Begins where the block does.
    tensor: Tensor,
    /// Nobody else has it, and it may be written.
    pub(crate) is_own: bool,
}

impl BlockMemory {
    /// Memory for `elements` of the type of `block`.
    pub(crate) fn new(block: &Block, elements: usize, stream: &Stream) -> Result<Self> {
        let tensor = Tensor::empty(&[elements], block.dtype, stream.device())?;
        tensor.record_stream(stream)?;
        Ok(Self { tensor, is_own: true })
    }

    pub(crate) fn address(&self) -> Result<u64> {
        Ok(self.tensor.address()?.unwrap_or(0))
    }

    /// A tensor of `elements` over it, which is filled when `filled` is reached.
    pub(crate) fn filled(self, block: &Block, elements: usize, filled: &Ticket) -> Result<Tensor> {
        debug_assert!(self.is_own);
        let device = self.tensor.device()?;
        let layout = Layout::contiguous(block.dtype, &[elements])?;
        let memory = RawMemory::new(self.address()?, layout.nbytes(), MemoryKind::Device);
        // SAFETY: the owner is a tensor that begins at this address and has so many elements behind it (`new`, `pack`), and the only one
        // over its memory (`is_own`). It has recorded the stream of `filled`: its memory outlives what that writes.
        let buffer = unsafe { device.backend().wrap(memory, Box::new(OwnBlock { _memory: self.tensor })) }?;
        // SAFETY: the buffer is one of the device, without a host pointer; nobody else reads or writes it.
        Ok(unsafe { Tensor::from_buffer_mut(&device, buffer, Some(filled.clone()), layout) }?)
    }
}

/// What owns the memory of results: all of it is a block's, and was allocated by transship.
pub(crate) struct OwnBlock {
    _memory: Tensor,
}

/// The elements of each block, on the device of `stream` and in its order.
pub(crate) fn pack(tensors: &[Tensor], blocks: &[Block], stream: &Stream) -> Result<Vec<BlockMemory>> {
    let (mut sources, mut places) = (Vec::new(), Vec::new());
    let mut packed = Vec::with_capacity(blocks.len());
    for block in blocks {
        match in_place(block, tensors, stream.device()) {
            Some(tensor) => packed.push(Some(tensor)),
            None => {
                let whole = Tensor::empty(&[block.elements], block.dtype, stream.device())?;
                let leaves =
                    block.leaves.iter().filter_map(|(leaf, start)| Some((tensors.get(*leaf)?, *start)));
                let parts = leaves.clone().map(|(tensor, start)| part(&whole, start, tensor.shape()));
                places.push(parts.collect::<Result<Vec<_>>>()?);
                sources.push(leaves.map(|(tensor, _)| tensor.clone()).collect::<Vec<_>>());
                packed.push(None);
            }
        }
    }
    let copied = copy_into_place(sources, places, stream)?;
    // The first tensor of a block begins where the block does.
    let mut copied = copied.into_iter().filter_map(|parts| parts.into_iter().next());
    let memory = |there: Option<Tensor>| {
        let is_own = there.is_none();
        let tensor = there.or_else(|| copied.next()).ok_or(transship::Error::Taken)?;
        if !is_own {
            // What is packed comes behind them by its copy.
            tensor.wait_on_uses(stream)?;
        }
        tensor.record_stream(stream)?;
        Ok(BlockMemory { tensor, is_own })
    };
    packed.into_iter().map(memory).collect()
}

fn copy_into_place(
    sources: Vec<Vec<Tensor>>,
    places: Vec<Vec<Tensor>>,
    stream: &Stream,
) -> Result<Vec<Vec<Tensor>>> {
    if places.is_empty() {
        return Ok(places);
    }
    let copied = start_copy_into(sources, places, CopyOptions::default().stream(stream));
    Ok(copied.and_then(|copy| copy.wait_on(stream)).map_err(transship::Error::from)?)
}

/// The elements of the block where they lie, if NCCL can read them there: one tensor, or several that lie as they would in a block, as those of
/// a packed copy do. What lies between these is read as well, and comes to nobody.
fn in_place(block: &Block, tensors: &[Tensor], device: &Device) -> Option<Tensor> {
    let (leaf, _) = block.leaves.first()?;
    let first = tensors.get(*leaf).filter(|tensor| lies_there(tensor, device))?;
    if block.only().is_some() {
        return Some(first.clone());
    }
    // Between tensors in memory of somebody else lies what may not be read, or not by other devices.
    if !native::is_allocated_here(first) {
        return None;
    }
    let lies_in_block = |(leaf, start): &(usize, usize)| {
        tensors.get(*leaf).is_some_and(|tensor| {
            tensor.is_contiguous()
                && tensor.shares_memory_with(first)
                && tensor.offset().checked_sub(first.offset()) == Some(start * block.dtype.size())
        })
    };
    block.leaves.iter().all(lies_in_block).then(|| first.clone())
}

/// Whether NCCL reads the tensor where it lies: not one that is a list of pieces, which has no address.
fn lies_there(tensor: &Tensor, device: &Device) -> bool {
    tensor.is_contiguous()
        && tensor.address().is_ok_and(|address| address.is_some())
        && tensor.device_id().is_ok_and(|id| id == device.id())
        && tensor.memory_kind().is_ok_and(|kind| kind == MemoryKind::Device)
}
