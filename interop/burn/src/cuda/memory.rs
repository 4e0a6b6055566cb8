//! Memory of cubecl, for results of copies.

use std::error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_cubecl::cubecl::server::Handle;
use cubecl_server::memory_management::ManagedMemoryBinding;
use transship::{Alignment, Allocate, AllocatedMemory, DeviceId, MemoryKind, RawMemory, Stream};

use crate::cuda::server::CubeServer;
use crate::error::explain_allocation;
use crate::shown::{Free, Shown};

/// cubecl's allocator of one device.
pub(crate) struct CubeMemory {
    server: CubeServer,
    filled: Stream,
    shown: Arc<Shown<Chunk>>,
    device: DeviceId,
}

/// A run of bytes that cubecl has allocated.
pub(crate) struct Chunk {
    pub(crate) address: u64,
    state: Mutex<ChunkState>,
}

pub(crate) struct ChunkState {
    pub(crate) handle: Handle,
    /// Keeps the memory where it is.
    keeps: Option<ManagedMemoryBinding>,
    /// Whether burn may have the handle.
    pub(crate) is_shown: bool,
}

impl CubeMemory {
    pub(crate) fn new(
        server: CubeServer,
        filled: Stream,
        shown: Arc<Shown<Chunk>>,
        device: DeviceId,
    ) -> Self {
        Self { server, filled, shown, device }
    }
}

// SAFETY: the memory is of the device, whose driver is asked about it (`Backend::wrap`). The handle of the chunk keeps it, and the binding
// keeps it where it is (`Chunk`), until the owner is dropped. cubecl hands out memory of `filled` when nobody has a handle, a kernel of
// another stream has ended (cubecl keeps a binding until then), and behind what `filled` was given. What burn is shown later comes behind
// the copy: `filled` waits for it, and other streams for `filled` (`Shown::show`). burn writes in place only to memory of which there is
// one handle; the chunk has one.
unsafe impl Allocate for CubeMemory {
    fn allocate(
        &self,
        bytes: usize,
        _: Alignment,
        _: &Stream,
    ) -> Result<AllocatedMemory, Box<dyn error::Error + Send + Sync>> {
        let explain = |error| explain_allocation(&error, bytes, self.device);
        let (handle, place) =
            self.shown.allocate(|look| self.server.allocate(bytes as u64, look)).map_err(explain)?;
        let state = ChunkState { handle, keeps: Some(place.keeps), is_shown: false };
        let chunk = Arc::new(Chunk { address: place.address, state: Mutex::new(state) });
        let memory = RawMemory::new(place.address, bytes, MemoryKind::Device);
        Ok(AllocatedMemory::new(memory, Box::new(chunk)).behind(&self.filled))
    }
}

impl Chunk {
    pub(crate) fn state(&self) -> MutexGuard<'_, ChunkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChunkState {
    /// The memory by another name, with what keeps it where it is.
    pub(crate) fn rename(&mut self, (handle, keeps): (Handle, ManagedMemoryBinding)) {
        self.keeps = Some(keeps);
        self.handle = handle;
        self.is_shown = true;
    }
}

impl Free for Chunk {
    /// Kernels of other streams than `filled`, where none is launched, have ended: cubecl keeps a binding until then.
    fn look_whether_free(&self) -> bool {
        let mut state = self.state();
        state.keeps = None;
        let is_free = state.handle.can_mut() && !state.handle.memory.is_bound();
        state.keeps = Some(state.handle.memory.clone().binding());
        state.is_shown &= !is_free;
        is_free
    }
}
