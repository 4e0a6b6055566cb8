//! How burn is shown a result, for the streams that use it.

use std::sync::Arc;

use burn_cubecl::cubecl::server::Handle;
use transship::{Stream, Tensor};

use crate::cuda::memory::Chunk;
use crate::cuda::server::CubeServer;
use crate::error::Result;
use crate::shown::{Entry, Shown};

impl Shown<Chunk> {
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
}
