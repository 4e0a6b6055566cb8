//! Memory of cubecl on wgpu, for tensors of transship.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::server::{BufferBinding, Handle, Server as _, ServerError, ServerStorage as _};
use burn_cubecl::cubecl::wgpu::{AutoCompiler, WgpuServer, wgpu};
use burn_tensor::StreamId;
use transship::wgpu::{BufferSource, OwnedBuffer, WgpuBuffer, WgpuSlice};
use transship::{Alignment, Device, DeviceId, Tensor};

use crate::error::{Result, explain_allocation};
use crate::loan::{Loan, Refused};
use crate::part::Part;
use crate::shown::{Entry, Free, Look, Shown};

/// burn's wgpu runtime.
pub(crate) struct Wgpu {
    server: CubeServer,
    client: Client,
    shown: Arc<Shown<Chunk>>,
}

impl Wgpu {
    pub(crate) fn new(client: &Client) -> Self {
        let server = CubeServer(DeviceHandle::new(client.service_id().device));
        Self { server, client: client.clone(), shown: Arc::default() }
    }

    /// cubecl's allocator.
    pub(crate) fn memory(&self) -> CubeMemory {
        let demanded = usize::try_from(self.client.properties().memory.alignment).ok();
        let alignment = demanded.and_then(Alignment::new).unwrap_or(Alignment::ONE);
        CubeMemory {
            server: self.server.clone(),
            client: self.client.clone(),
            shown: self.shown.clone(),
            alignment,
        }
    }

    /// As [`Runtime::lend`](crate::runtime::Runtime::lend).
    pub(crate) fn lend(&self, loans: Vec<Loan>, device: &Device) -> Result<Vec<Tensor>, Refused> {
        let places = self.server.places(loans.iter().map(|loan| &loan.cube.handle))?;
        loans.into_iter().zip(places).map(|(loan, place)| lend(loan, place, device)).collect()
    }

    /// As [`Runtime::part_of`](crate::runtime::Runtime::part_of). There is one queue, on which all that is submitted later comes behind the copy.
    pub(crate) fn part_of(&self, tensor: &Tensor) -> Result<Option<Part>> {
        let WgpuSlice { offset, bytes, .. } = transship::wgpu::wgpu_view(tensor)?;
        let buffer: &dyn Any = tensor.buffer()?;
        let owner = buffer.downcast_ref().and_then(WgpuBuffer::owner);
        let Some(chunk) = owner.and_then(|owner| owner.downcast_ref::<Arc<Chunk>>()) else {
            return Ok(None);
        };
        let handle = self.show(chunk, tensor);
        Ok(Some(Part { handle, place: offset, start: offset - chunk.offset, bytes }))
    }

    /// The handle of the chunk that `tensor` lies in.
    fn show(&self, chunk: &Arc<Chunk>, tensor: &Tensor) -> Handle {
        let mut entries = self.shown.entries();
        // Under the lock: who looks meanwhile would find that burn has no handle.
        let handle = chunk.handle.clone();
        if entries.iter().any(|entry| entry.tensor.shares_memory_with(tensor)) {
            return handle;
        }
        let may_let_go = entries.iter().any(|entry| entry.chunk.handle.can_mut());
        entries.push(Entry { chunk: chunk.clone(), tensor: tensor.clone() });
        drop(entries);
        if may_let_go {
            self.let_go();
        }
        handle
    }

    /// Lets go of what burn no longer uses.
    fn let_go(&self) {
        // Nothing is let go of where the server fails.
        let _ = self.shown.let_go(|look| self.server.look(look));
    }
}

impl Drop for Wgpu {
    /// What burn still uses is kept, and the device with it, until something is allocated there: it has been promised that nobody writes to it.
    fn drop(&mut self) {
        self.let_go();
    }
}

fn lend(
    Loan { number, cube, layout }: Loan,
    place: Result<Place, ServerError>,
    device: &Device,
) -> Result<Tensor, Refused> {
    let place = place.map_err(|error| Refused::at(number, error))?;
    let (buffer, offset) = (place.buffer.clone(), place.offset as usize);
    let owned = OwnedBuffer { buffer, offset, owner: Box::new((cube, place.keeps)) };
    let elements = layout.span() / layout.dtype().size();
    let run = transship::wgpu::lend_buffer(device, owned, &[elements], layout.dtype());
    let tensor = run.and_then(|run| run.as_strided(layout.shape(), &layout.strides(), 0));
    tensor.map_err(|error| Refused::at(number, error))
}

/// cubecl's allocator of one device.
pub(crate) struct CubeMemory {
    server: CubeServer,
    client: Client,
    shown: Arc<Shown<Chunk>>,
    alignment: Alignment,
}

// SAFETY: 1. `WgpuStorage` makes its buffers with STORAGE, COPY_SRC, COPY_DST and INDIRECT, and maps none of them; the device is the one
// that was shared (`SharedDevice`), and cubecl's pools keep its alignment. 2. The handle keeps the range, and the place keeps it where
// it is (`Chunk`, whose binding is away only while the server's thread looks, which is the one that moves memory). Work on it that came
// before is submitted (`submit_all`), or pinned the range until it was done. What comes behind is submitted to the same queue later, or
// recorded by burn of a result that it was shown: no copy writes to that until it is submitted (`Shown`). 3. Both are counters.
unsafe impl BufferSource for CubeMemory {
    fn alignment(&self) -> Alignment {
        self.alignment
    }

    fn largest(&self) -> usize {
        usize::try_from(self.client.properties().memory.max_page_size).unwrap_or(usize::MAX)
    }

    fn allocate(&self, bytes: usize, device: DeviceId) -> transship::Result<OwnedBuffer> {
        let allocate = |look: &mut Look<'_>| {
            let handle = self.client.empty(bytes);
            Ok((self.server.place(&handle, look)?, handle))
        };
        let (place, handle) =
            self.shown.allocate(allocate).map_err(|error| explain_allocation(&error, bytes, device))?;
        let Place { buffer, offset, keeps } = place;
        let chunk = Chunk { handle, offset, keeps: Mutex::new(Some(keeps)) };
        Ok(OwnedBuffer { buffer, offset: offset as usize, owner: Box::new(Arc::new(chunk)) })
    }
}

/// A run of bytes that cubecl has allocated: the owner of memory that transship copies into.
struct Chunk {
    handle: Handle,
    offset: u64,
    /// Keeps the memory where it is.
    keeps: Mutex<Option<BufferBinding>>,
}

impl Free for Chunk {
    /// What cubecl has recorded may read the memory without a binding: it is submitted before (`submit_all`), so that copies come behind it on
    /// the queue.
    fn look_whether_free(&self) -> bool {
        let mut keeps = self.keeps.lock().unwrap_or_else(PoisonError::into_inner);
        *keeps = None;
        let is_free = self.handle.can_mut() && !self.handle.memory.is_bound();
        *keeps = Some(self.handle.clone().binding());
        is_free
    }
}

/// Where cubecl has put a handle. It is neither moved nor used for something else as long as this is there.
struct Place {
    buffer: wgpu::Buffer,
    offset: u64,
    keeps: BufferBinding,
}

/// cubecl's server of the device.
#[derive(Clone)]
struct CubeServer(DeviceHandle<Server>);

type Server = WgpuServer<AutoCompiler>;

impl CubeServer {
    /// Looks what burn no longer uses.
    fn look(&self, look: &mut Look<'_>) -> Result<(), ServerError> {
        self.run(|server| {
            submit_all(server)?;
            look();
            Ok(())
        })
    }

    /// Where `handle` lies, with all work submitted that cubecl was given; and looks what burn no longer uses.
    fn place(&self, handle: &Handle, look: &mut Look<'_>) -> Result<Place, ServerError> {
        let id = StreamId::current();
        self.run(|server| {
            submit_all(server)?;
            look();
            place(server, handle, id)
        })
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
        self.run(|server| {
            let places = handles.map(|handle| place(server, handle, id)).collect();
            server.flush(id)?;
            Ok(places)
        })
    }

    /// Runs `task` on the server's thread, and waits for it.
    fn run<R: Send>(
        &self,
        task: impl FnOnce(&mut Server) -> Result<R, ServerError> + Send,
    ) -> Result<R, ServerError> {
        // A panic there, which its hook has printed.
        self.0.submit_blocking(task).unwrap_or(Err(ServerError::TornDown))
    }
}

/// Submits what all threads have given to cubecl.
fn submit_all(server: &mut Server) -> Result<(), ServerError> {
    server.stream_ids().into_iter().try_for_each(|id| server.flush(id))
}

fn place(server: &mut Server, handle: &Handle, id: StreamId) -> Result<Place, ServerError> {
    let (keeps, kept) = (handle.clone().binding(), server.get_resource(handle.clone().binding(), id)?);
    let (buffer, offset) = (kept.resource().buffer.clone(), kept.resource().offset);
    Ok(Place { buffer, offset, keeps })
}
