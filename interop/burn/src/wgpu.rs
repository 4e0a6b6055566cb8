//! Memory of cubecl on wgpu, for tensors of transship.

use std::any::Any;
use std::iter;

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::server::{Handle, Server as _, ServerError, ServerStorage as _};
use burn_cubecl::cubecl::wgpu::{AutoCompiler, WgpuServer, wgpu};
use burn_tensor::StreamId;
use transship::wgpu::{BufferSource, OwnedBuffer, WgpuBuffer, WgpuSlice};
use transship::{Alignment, Device, DeviceId, Tensor};

use crate::error::{Result, explain_allocation};
use crate::loan::{Loan, Refused};
use crate::part::Part;

/// burn's wgpu runtime.
pub(crate) struct Wgpu {
    server: CubeServer,
    client: Client,
}

impl Wgpu {
    pub(crate) fn new(client: &Client) -> Self {
        let server = CubeServer(DeviceHandle::new(client.service_id().device));
        Self { server, client: client.clone() }
    }

    /// cubecl's allocator.
    pub(crate) fn memory(&self) -> CubeMemory {
        let demanded = usize::try_from(self.client.properties().memory.alignment).ok();
        let alignment = demanded.and_then(Alignment::new).unwrap_or(Alignment::ONE);
        CubeMemory { server: self.server.clone(), client: self.client.clone(), alignment }
    }

    /// As [`Runtime::lend`](crate::runtime::Runtime::lend).
    pub(crate) fn lend(&self, loans: Vec<Loan>, device: &Device) -> Result<Vec<Tensor>, Refused> {
        let places = self.server.places(loans.iter().map(|loan| &loan.cube.handle))?;
        loans.into_iter().zip(places).map(|(loan, place)| lend(loan, place, device)).collect()
    }
}

fn lend(
    Loan { number, cube, layout }: Loan,
    place: Result<Place, ServerError>,
    device: &Device,
) -> Result<Tensor, Refused> {
    let place = place.map_err(|error| Refused::at(number, error))?;
    let (buffer, offset) = (place.buffer.clone(), place.offset as usize);
    let owned = OwnedBuffer { buffer, offset, owner: Box::new((cube, place)) };
    let elements = layout.span() / layout.dtype().size();
    let run = transship::wgpu::lend_buffer(device, owned, &[elements], layout.dtype());
    let tensor = run.and_then(|run| run.as_strided(layout.shape(), &layout.strides(), 0));
    tensor.map_err(|error| Refused::at(number, error))
}

/// cubecl's allocator of one device.
pub(crate) struct CubeMemory {
    server: CubeServer,
    client: Client,
    alignment: Alignment,
}

// SAFETY: 1. `WgpuStorage` makes its buffers with STORAGE, COPY_SRC, COPY_DST and INDIRECT, and maps none of them; the device is the one
// that was shared (`SharedDevice`), and cubecl's pools keep its alignment. 2. The handle keeps the range, and the place keeps it where
// it is. Work on it that came before is in the encoder of this thread's stream, which `flush` submits, or pinned the range until it was
// done. What comes behind is submitted to the same queue later. 3. Both are counters.
unsafe impl BufferSource for CubeMemory {
    fn alignment(&self) -> Alignment {
        self.alignment
    }

    fn largest(&self) -> usize {
        usize::try_from(self.client.properties().memory.max_page_size).unwrap_or(usize::MAX)
    }

    fn allocate(&self, bytes: usize, device: DeviceId) -> transship::Result<OwnedBuffer> {
        let handle = self.client.empty(bytes);
        let place = self.server.place(&handle);
        let place = place.map_err(|error| explain_allocation(&error, bytes, device))?;
        let (buffer, offset) = (place.buffer.clone(), place.offset as usize);
        Ok(OwnedBuffer { buffer, offset, owner: Box::new(Chunk { handle, place }) })
    }
}

/// As [`Runtime::part_of`](crate::runtime::Runtime::part_of). There is one queue, on which all that is submitted later comes behind the copy.
pub(crate) fn part_of(tensor: &Tensor) -> Result<Option<Part>> {
    let WgpuSlice { offset, bytes, .. } = transship::wgpu::wgpu_view(tensor)?;
    let buffer: &dyn Any = tensor.buffer()?;
    let owner = buffer.downcast_ref().and_then(WgpuBuffer::owner);
    let chunk = owner.and_then(|owner| owner.downcast_ref::<Chunk>());
    Ok(chunk.map(|chunk| {
        let (handle, start) = (chunk.handle.clone(), offset - chunk.place.offset);
        Part { handle, place: offset, start, bytes }
    }))
}

/// A run of bytes that cubecl has allocated: the owner of memory that transship copies into.
struct Chunk {
    handle: Handle,
    /// Keeps the memory where it is.
    place: Place,
}

/// Where cubecl has put a handle. It is neither moved nor used for something else as long as this is there.
struct Place {
    buffer: wgpu::Buffer,
    offset: u64,
    _keeps: Box<dyn Any + Send + Sync>,
}

/// cubecl's server of the device.
#[derive(Clone)]
struct CubeServer(DeviceHandle<WgpuServer<AutoCompiler>>);

impl CubeServer {
    fn place(&self, handle: &Handle) -> Result<Place, ServerError> {
        self.places(iter::once(handle))?.pop().unwrap_or(Err(ServerError::TornDown))
    }

    /// Where each of `handles` lies, or why it lies nowhere; with all work submitted that this thread has given to cubecl, and the threads that
    /// have made the memory. One question to the server's thread.
    ///
    /// In cubecl 0.11.3 `get_resource` submits what both have recorded by itself, but does not promise it; `flush` does, for this thread.
    fn places<'a>(
        &self,
        handles: impl Iterator<Item = &'a Handle> + Send,
    ) -> Result<Vec<Result<Place, ServerError>>, ServerError> {
        let id = StreamId::current();
        let ask = |server: &mut WgpuServer<AutoCompiler>| {
            let places = handles.map(|handle| place(server, handle, id)).collect();
            server.flush(id)?;
            Ok(places)
        };
        // A panic there, which its hook has printed.
        self.0.submit_blocking(ask).unwrap_or(Err(ServerError::TornDown))
    }
}

fn place(server: &mut WgpuServer<AutoCompiler>, handle: &Handle, id: StreamId) -> Result<Place, ServerError> {
    let kept = server.get_resource(handle.clone().binding(), id)?;
    let (buffer, offset) = (kept.resource().buffer.clone(), kept.resource().offset);
    Ok(Place { buffer, offset, _keeps: Box::new(kept) })
}
