//! Memory of results that burn has been shown.
//!
//! burn's kernels read it: on streams that transship knows nothing of, and some of them later, since cubecl records kernels and submits them
//! in groups. Each result has a clone of a tensor over it here, so that no copy may write to it (`start_copy_into`) until burn is done with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_cubecl::cubecl::server::ServerError;
use transship::Tensor;

pub(crate) struct Shown<C>(Mutex<Vec<Entry<C>>>);

pub(crate) struct Entry<C> {
    pub(crate) chunk: Arc<C>,
    pub(crate) tensor: Tensor,
}

/// A run of bytes that cubecl has allocated.
pub(crate) trait Free: Send + Sync {
    /// Whether burn has let go of it, and nothing that cubecl was given and has not submitted uses it. On the server's thread: no other one
    /// moves memory meanwhile.
    fn look_whether_free(&self) -> bool;
}

/// Takes out what burn no longer uses. To be called on the server's thread.
pub(crate) type Look<'a> = dyn FnMut() + Send + 'a;

impl<C> Default for Shown<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Free> Shown<C> {
    /// Allocates by a question to the server, which looks, and lets go of what burn no longer uses. Once more behind that if there was no room.
    pub(crate) fn allocate<T>(
        &self,
        allocate: impl Fn(&mut Look<'_>) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        match self.let_go(&allocate) {
            (Err(_), true) => self.let_go(&allocate).0,
            (allocated, _) => allocated,
        }
    }

    /// Lets go of what burn no longer uses, by a question to the server, which looks. With whether there was such memory.
    pub(crate) fn let_go<T>(&self, ask: impl FnOnce(&mut Look<'_>) -> T) -> (T, bool) {
        let mut entries = self.entries();
        let (all, mut free) = (&mut *entries, Vec::new());
        let answer = ask(&mut || free.extend(all.extract_if(.., |entry| entry.chunk.look_whether_free())));
        drop(entries);
        // Not under the lock, nor on the server's thread: more may go with a tensor.
        let is_less = !free.is_empty();
        drop(free);
        (answer, is_less)
    }

    pub(crate) fn entries(&self) -> MutexGuard<'_, Vec<Entry<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
