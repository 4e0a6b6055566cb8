//! Memory of cubecl on wgpu, for tensors of transship.

use std::any::Any;

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::server::{Handle, ServerError};
use burn_cubecl::cubecl::wgpu::{AutoCompiler, WgpuServer, wgpu};
use burn_cubecl::tensor::CubeTensor;
use transship::wgpu::{BufferSource, OwnedBuffer, WgpuBuffer, WgpuSlice};
use transship::{Alignment, DType, DeviceId, Tensor};

use crate::error::{Result, explain_allocation};
use crate::part::Part;

/// cubecl's allocator of one device.
pub(crate) struct CubeMemory {
    client: Client,
    alignment: Alignment,
}

impl CubeMemory {
    pub(crate) fn new(client: Client) -> Self {
        let demanded = usize::try_from(client.properties().memory.alignment).ok().and_then(Alignment::new);
        Self { client, alignment: demanded.unwrap_or(Alignment::ONE) }
    }
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
        let place =
            place(&self.client, &handle).map_err(|error| explain_allocation(&error, bytes, device))?;
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

/// As [`Runtime::lend`](crate::runtime::Runtime::lend).
pub(crate) fn lend(
    cube: CubeTensor,
    elements: usize,
    dtype: DType,
    (device, client): (&transship::Device, &Client),
) -> Result<Tensor> {
    let place = place(client, &cube.handle)?;
    let (buffer, offset) = (place.buffer.clone(), place.offset as usize);
    let owner = Box::new((cube, place));
    let owned = OwnedBuffer { buffer, offset, owner };
    Ok(transship::wgpu::lend_buffer(device, owned, &[elements], dtype)?)
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

/// Where a handle lies, with all work submitted that this thread has given to cubecl, and the thread that has made the memory.
///
/// In cubecl 0.11.3 `get_resource` submits what both have recorded by itself, but does not promise it; `flush` does, for this thread.
fn place(client: &Client, handle: &Handle) -> Result<Place, ServerError> {
    let kept = client.get_resource::<WgpuServer<AutoCompiler>>(handle.clone())?;
    client.flush()?;
    let (buffer, offset) = (kept.resource().buffer.clone(), kept.resource().offset);
    Ok(Place { buffer, offset, _keeps: Box::new(kept) })
}
