//! burn's CUDA devices: memory of cubecl's, and the order of its streams.
//!
//! cubecl gives each thread a stream, and makes a stream that uses memory of another one wait for that. Copies fill memory of one
//! among them, which waits for the copies that burn is shown: what burn does with a result comes behind it, and so do copies that start
//! later.

mod memory;
mod server;
mod shown;

use std::any::Any;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::cubecl::client::Client;
use burn_tensor::StreamId;
use transship::backend::Ticket;
use transship::cuda::CudaBuffer;
use transship::{CopyOptions, Device, MemoryKind, RawMemory, SharedOwner, Stream, Tensor};

use crate::cuda::memory::{Chunk, CubeMemory};
use crate::cuda::server::{CubeServer, RawStream};
use crate::error::{Error, Result};
use crate::loan::{Loan, Refused};
use crate::part::Part;
use crate::shown::Shown;

pub(crate) struct Cuda {
    server: CubeServer,
    memory: Arc<CubeMemory>,
    shown: Arc<Shown<Chunk>>,
    /// cubecl's stream whose memory copies fill.
    filled: Stream,
    /// Streams of cubecl's that were met.
    known: Mutex<Vec<(RawStream, Stream)>>,
    alignment: u64,
}

impl Cuda {
    pub(crate) fn new(client: &Client, device: &Device) -> Result<Self> {
        let server = CubeServer::new(client);
        let filled = wrap(server.stream(server.filled)?, device)?;
        let shown = Arc::<Shown<Chunk>>::default();
        let memory = CubeMemory::new(server.clone(), filled.clone(), shown.clone(), device.id());
        let alignment = client.properties().memory.alignment;
        Ok(Self { server, memory: Arc::new(memory), shown, filled, known: Mutex::default(), alignment })
    }

    pub(crate) fn copy_options(&self) -> CopyOptions {
        let aligned =
            usize::try_from(self.alignment).ok().and_then(NonZero::new).unwrap_or(NonZero::<usize>::MIN);
        CopyOptions::default().allocator(self.memory.clone()).packed_multiple(aligned)
    }

    /// As [`Runtime::part_of`](crate::runtime::Runtime::part_of).
    pub(crate) fn part_of(&self, tensor: &Tensor) -> Result<Option<Part>> {
        // Blocks until the copy is submitted: until then nobody is shown the buffer.
        tensor.wait_on_backend(self.filled.backend_stream())?;
        let buffer: &dyn Any = tensor.buffer()?;
        let owner = buffer.downcast_ref().and_then(CudaBuffer::owner);
        let Some(chunk) = owner.and_then(|owner| owner.downcast_ref::<Arc<Chunk>>()) else {
            return Ok(None);
        };
        let place = tensor.address()?.ok_or(transship::Error::Taken)?;
        let handle = self.shown.show(chunk, tensor, &self.server, &self.filled)?;
        let bytes = (span(tensor.shape(), &tensor.strides()) * tensor.dtype().size()) as u64;
        Ok(Some(Part { handle, place, start: place - chunk.address, bytes }))
    }

    /// As [`Runtime::lend`](crate::runtime::Runtime::lend): behind what this thread has given to cubecl, and behind all that the streams
    /// were given that the memory was made on.
    pub(crate) fn lend(&self, loans: Vec<Loan>, device: &Device) -> Result<Vec<Tensor>, Refused> {
        let handles = loans.iter().map(|loan| &loan.cube.handle);
        let (raw, places) = self.server.places(handles, StreamId::current())?;
        let (mut pieces, mut kept) = (Vec::with_capacity(loans.len()), Vec::with_capacity(loans.len()));
        let mut made_on: Vec<RawStream> = Vec::new();
        for (Loan { number, cube, layout }, place) in loans.into_iter().zip(places) {
            let place = place.map_err(|error| Refused::at(number, error))?;
            if place.made_on != raw && !made_on.contains(&place.made_on) {
                made_on.push(place.made_on);
            }
            pieces.push((RawMemory::new(place.address, layout.span(), MemoryKind::Device), layout));
            kept.push((cube, place.keeps));
        }
        let stream = self.stream(raw, device)?.backend_stream().clone();
        for raw in made_on {
            // cubecl makes a stream wait once for memory of another one, and not again for what is done there in place.
            let made_on = self.stream(raw, device)?.backend_stream().clone();
            stream.wait_for(&*made_on, made_on.record()?)?;
        }
        let position = stream.record()?;
        let owner = SharedOwner::new(kept, device).filled_at(Ticket { stream, position });
        // SAFETY: the handles keep the memory, and the places keep it where it is. burn writes to memory in place only where one handle is all
        // there is, and the owner has one.
        Ok(unsafe { owner.tensors(pieces) }?)
    }

    fn stream(&self, raw: RawStream, device: &Device) -> Result<Stream> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = known.iter().find(|(other, _)| *other == raw) {
            return Ok(stream.clone());
        }
        let stream = wrap(raw, device)?;
        known.push((raw, stream.clone()));
        Ok(stream)
    }
}

fn wrap(raw: RawStream, device: &Device) -> Result<Stream> {
    // SAFETY: cubecl destroys none of its streams (`Stream` of cubecl-cuda has no `Drop`).
    unsafe { transship::cuda::stream_from_raw(device, raw.handle()) }.map_err(Error::from)
}

/// From the first element to behind the last one, in elements; there is one.
fn span(shape: &[usize], strides: &[usize]) -> usize {
    shape.iter().zip(strides).map(|(count, stride)| (count - 1) * stride).sum::<usize>() + 1
}
