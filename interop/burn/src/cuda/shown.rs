//! Memory of results that burn has been shown.
//!
//! burn's kernels read it on streams that transship knows nothing of. Each has a clone of a tensor over it here, so that no copy may write
//! to it (`start_copy_into`) until they have ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_cubecl::cubecl::server::{Handle, ServerError};
use transship::{Stream, Tensor};

use crate::cuda::memory::Chunk;
use crate::cuda::server::{CubeServer, Place};
use crate::error::Result;

#[derive(Default)]
pub(crate) struct Shown(Mutex<Vec<Entry>>);

struct Entry {
    chunk: Arc<Chunk>,
    tensor: Tensor,
}

impl Shown {
    /// The handle of the chunk that `tensor` lies in. Every stream of burn's that uses it waits for the copy that fills the tensor, for
    /// which the stream `filled` waits.
    pub(crate) fn show(
        &self,
        chunk: &Arc<Chunk>,
        tensor: &Tensor,
        server: &CubeServer,
        filled: &Stream,
    ) -> Result<Handle> {
        let mut entries = self.entries();
        let mut state = chunk.state();
        if state.is_shown && entries.iter().any(|entry| entry.tensor.shares_memory_with(tensor)) {
            return Ok(state.handle.clone());
        }
        if state.is_shown {
            // Another part of it (`Tensor::split`): streams that have waited for the first one do not wait again.
            filled.synchronize()?;
        } else {
            let renamed = server.rename(&state.handle)?;
            state.rename(renamed);
        }
        entries.push(Entry { chunk: chunk.clone(), tensor: tensor.clone() });
        Ok(state.handle.clone())
    }

    /// Allocates, and lets go of what burn no longer uses.
    pub(crate) fn allocate(&self, bytes: u64, server: &CubeServer) -> Result<(Handle, Place), ServerError> {
        let (allocated, free) = self.try_allocate(bytes, server);
        let may_have_room = !free.is_empty();
        // Not under the lock, nor on the server's thread: more may go with a tensor.
        drop(free);
        match allocated {
            Err(_) if may_have_room => self.try_allocate(bytes, server).0,
            allocated => allocated,
        }
    }

    /// Allocates; with what burn was found not to use any more, which lies there until it is dropped.
    fn try_allocate(
        &self,
        bytes: u64,
        server: &CubeServer,
    ) -> (Result<(Handle, Place), ServerError>, Vec<Entry>) {
        let mut entries = self.entries();
        let (all, mut free) = (&mut *entries, Vec::new());
        let allocated = server.allocate(bytes, || {
            free = all.extract_if(.., |entry| entry.chunk.state().look_whether_free()).collect();
        });
        (allocated, free)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
