//! What is asked of cubecl's server, on its thread.

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::server::{Handle, Server as _, ServerError, ServerStorage as _};
use burn_tensor::StreamId;
use cubecl_server::memory_management::ManagedMemoryBinding;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::WriteScoped as _;
use transship::cuda::cudarc::driver::sys::CUstream;

type Server = <CudaRuntime as Runtime>::Server;

/// cubecl's server of a device.
#[derive(Clone)]
pub(crate) struct CubeServer {
    device: DeviceHandle<Server>,
    client: Client,
    /// The stream whose memory copies fill. Nothing runs on it but waits, and what threads do that have the same one: numbers of streams
    /// count up, and cubecl takes them modulo the streams that it has (`max_streams`).
    pub(crate) filled: StreamId,
}

/// A stream of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawStream(usize);

/// Where a handle lies.
pub(crate) struct Place {
    pub(crate) address: u64,
    /// That of the thread that has made it, which may have worked on it in place since.
    pub(crate) made_on: RawStream,
    /// Keeps it there.
    pub(crate) keeps: ManagedMemoryBinding,
}

impl CubeServer {
    pub(crate) fn new(client: &Client) -> Self {
        let device = DeviceHandle::new(client.service_id().device);
        Self { device, client: client.clone(), filled: StreamId::allocate() }
    }

    /// The driver's handle of a stream, which is made if it was not yet.
    pub(crate) fn stream(&self, id: StreamId) -> Result<RawStream, ServerError> {
        self.run(move |server| raw_stream(server, id))
    }

    /// Memory of the stream `filled`, and where it lies. `first` runs before, on the server's thread.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        first: impl FnOnce() + Send,
    ) -> Result<(Handle, Place), ServerError> {
        let (id, handle) = (self.filled, Handle::new(self.client.service_id(), self.filled, bytes));
        let place = self.run(|server| {
            first();
            server.initialize_memory(handle.memory.clone(), bytes, id)?;
            place(server, &handle, id)
        })?;
        Ok((handle, place))
    }

    /// A new handle of the memory that `old` names, which names nothing from then on. Every stream that uses it waits for what
    /// `filled` was given before, once: it counts as allocated just now. With it what keeps the memory where it is.
    pub(crate) fn rename(&self, old: &Handle) -> Result<(Handle, ManagedMemoryBinding), ServerError> {
        let (id, old) = (self.filled, old.clone());
        let new = Handle::new(self.client.service_id(), id, old.size());
        let memory = new.memory.clone();
        let keeps = self.run(move |server| {
            let mut streams = server.write_streams().resolve(id, std::iter::empty())?;
            let now = streams.cursor;
            let (stream, failures) = streams.current_and_failures();
            stream.memory_management_gpu.bind(old.memory, memory.clone(), now, failures)?;
            // Here: the next task of this thread may move what nothing keeps.
            Ok(memory.binding())
        })?;
        Ok((new, keeps))
    }

    /// Where each of `handles` lies, or why it lies nowhere; with the stream `id`, which comes behind those that they were made on. One question
    /// to the server's thread.
    pub(crate) fn places<'a>(
        &self,
        handles: impl Iterator<Item = &'a Handle> + Send,
        id: StreamId,
    ) -> Result<(RawStream, Vec<Result<Place, ServerError>>), ServerError> {
        self.run(|server| {
            let places = handles.map(|handle| place(server, handle, id)).collect();
            Ok((raw_stream(server, id)?, places))
        })
    }

    /// Runs `task` on the server's thread, and waits for it.
    pub(crate) fn run<R: Send>(
        &self,
        task: impl FnOnce(&mut Server) -> Result<R, ServerError> + Send,
    ) -> Result<R, ServerError> {
        // A panic there, which its hook has printed.
        self.device.submit_blocking(task).unwrap_or(Err(ServerError::TornDown))
    }
}

impl RawStream {
    pub(crate) fn handle(self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

fn raw_stream(server: &mut Server, id: StreamId) -> Result<RawStream, ServerError> {
    let mut streams = server.write_streams().resolve(id, std::iter::empty())?;
    Ok(RawStream(streams.current().sys.expose_provenance()))
}

fn place(server: &mut Server, handle: &Handle, id: StreamId) -> Result<Place, ServerError> {
    let binding = handle.clone().binding();
    let keeps = binding.memory.clone();
    // Makes the stream wait, and fails where the work that was to write the memory has.
    let resource = server.get_resource(binding, id)?;
    let address = resource.resource().ptr;
    Ok(Place { address, made_on: raw_stream(server, handle.stream)?, keeps })
}
