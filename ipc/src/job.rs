//! One batch that a loader makes.

use transship_core::{Manifest, TensorTree, for_each_path};

use crate::error::IpcError;
use crate::in_place::InPlace;
use crate::loader::Loader;
use crate::packed::ALIGNMENT;
use crate::wire::Message;

/// A batch to make. Dropped, it is said to have [failed](Self::fail). Where the feed has gone on purpose meanwhile, nobody wants it: no error, and
/// [`next_job`](Loader::next_job) gives `None`. A process that is forked from this one may drop it, which says nothing, and is refused all else ([`IpcError::Forked`]).
pub struct Job<'a> {
    loader: &'a Loader,
    ticket: u64,
    number: u64,
    slot: usize,
    is_told: bool,
}

impl<'a> Job<'a> {
    pub(crate) fn new(loader: &'a Loader, ticket: u64, number: u64, slot: usize) -> Self {
        Self { loader, ticket, number, slot, is_told: false }
    }

    /// Which batch it is.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Copies the tensors of `tree`, which lie on the host, into the slot, and hands the batch over.
    ///
    /// # Errors
    ///
    /// The batch has failed with each, for the reason that the error says: [`IpcError::TooLarge`]; [`IpcError::ManifestTooLarge`]; [`IpcError::Tensors`] if a tensor cannot be read or
    /// `tree` does not show its tensors. [`IpcError::PeerGone`]; [`IpcError::Forked`], and the batch is still to be made by the parent.
    pub fn write<S: TensorTree + ?Sized>(self, tree: &S) -> Result<(), IpcError> {
        let mut place = self.places(|| Manifest::packed(tree, ALIGNMENT))?;
        let written = for_each_path(tree, |path, tensor| match tensor.is_contiguous() {
            true => place.put(&path.to_string(), tensor.as_bytes()?),
            false => place.put(&path.to_string(), &tensor.to_bytes()?),
        });
        match written {
            Ok(()) => place.finish(),
            Err(error) => place.give_up(error.into()),
        }
    }

    /// Makes room in the slot for tensors of the paths, types and shapes that those of `like` have, to write their bytes there. Each has a place of its own, also where those of
    /// `like` share memory, as clones do.
    ///
    /// # Errors
    ///
    /// The batch has failed with each: [`IpcError::TooLarge`]; [`IpcError::ManifestTooLarge`]; [`IpcError::Tensors`] as [`Manifest::packed_apart`]. With [`IpcError::Forked`] it is still to be made by the parent.
    pub fn in_place<S: TensorTree + ?Sized>(self, like: &S) -> Result<InPlace<'a>, IpcError> {
        self.places(|| Manifest::packed_apart(like, ALIGNMENT))
    }

    fn places(
        self,
        manifest: impl FnOnce() -> transship_core::Result<Manifest>,
    ) -> Result<InPlace<'a>, IpcError> {
        self.loader.check_here()?;
        match manifest() {
            Ok(manifest) => InPlace::new(self, manifest),
            Err(error) => self.give_up(error.into()),
        }
    }

    /// Says that there is no such batch, and why, in at most 4,096 bytes: [`IpcError::Failed`] takes its place.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::Forked`].
    pub fn fail(mut self, message: &str) -> Result<(), IpcError> {
        self.tell_failure(message)
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.loader.slot_bytes
    }

    /// Where `offset` of its slot lies in the ring; `None` unless `bytes` bytes fit behind it there.
    pub(crate) fn place(&self, offset: usize, bytes: usize) -> Option<usize> {
        let is_within = offset.checked_add(bytes)? <= self.loader.slot_bytes;
        let start = self.slot.checked_mul(self.loader.slot_bytes)?;
        if is_within { start.checked_add(offset) } else { None }
    }

    pub(crate) fn loader(&self) -> &'a Loader {
        self.loader
    }

    /// Hands the batch over, whose manifest was written.
    pub(crate) fn tell_filled(mut self, manifest_at: usize, manifest_bytes: usize) -> Result<(), IpcError> {
        self.is_told = true;
        let (ticket, slot) = (self.ticket, self.slot as u64);
        let (manifest_at, manifest_bytes) = (manifest_at as u64, manifest_bytes as u64);
        self.loader.tell(Message::Filled { ticket, slot, manifest_at, manifest_bytes })
    }

    /// Says that it has failed with `error`, which is the answer.
    pub(crate) fn give_up<T>(mut self, error: IpcError) -> Result<T, IpcError> {
        self.tell_failure(&error.to_string())?;
        Err(error)
    }

    fn tell_failure(&mut self, message: &str) -> Result<(), IpcError> {
        self.loader.check_here()?;
        self.is_told = true;
        let text = message.as_bytes().get(..self.slot_bytes()).unwrap_or(message.as_bytes());
        let is_written = self.place(0, text.len()).is_some_and(|at| self.loader.mapping.write(at, text));
        let text_bytes = if is_written { text.len() as u64 } else { 0 };
        let (ticket, slot) = (self.ticket, self.slot as u64);
        self.loader.tell(Message::Failed { ticket, slot, text_bytes })
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // In a child the parent makes it.
        if !self.is_told && self.loader.is_of_this_process() {
            let _ = self.tell_failure("the loader has dropped the job");
        }
    }
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("number", &self.number).finish()
    }
}
