//! A batch that is written where it will be copied from.

use std::ptr::NonNull;

use transship_core::{Error, Manifest, Result};

use crate::error::IpcError;
use crate::job::Job;

/// A batch that is written in its slot, tensor by tensor. What is not written has the bytes of an earlier batch. Dropped, it has failed.
/// A process that is forked from this one may drop it, which changes nothing, and is refused all else.
///
/// The memory is shared with the process of the feed, and so there is no slice of it: bytes are [copied there](Self::write), or written
/// through a [pointer](Self::address).
pub struct InPlace<'a> {
    job: Job<'a>,
    manifest: Manifest,
    /// By path, as those of the manifest.
    places: Vec<Place>,
}

struct Place {
    path: String,
    offset: usize,
    bytes: usize,
    is_put: bool,
}

impl<'a> InPlace<'a> {
    pub(crate) fn new(job: Job<'a>, manifest: Manifest) -> Result<Self, IpcError> {
        let (bytes, limit) = (manifest.to_bytes().len(), job.loader().largest_manifest);
        if bytes > limit {
            let cure = "let the feed take larger ones (FeedOptions::largest_manifest), or make paths shorter";
            return job.give_up(IpcError::ManifestTooLarge { bytes, limit, cure });
        }
        let needed = end(&manifest).saturating_add(bytes);
        let slot = job.slot_bytes();
        if needed > slot {
            return job.give_up(IpcError::TooLarge { needed, slot });
        }
        let mut places = Vec::with_capacity(manifest.len());
        let listed = manifest.for_each_leaf(|leaf| {
            let (path, offset, bytes) = (leaf.path().to_owned(), leaf.offset(), leaf.layout().nbytes());
            places.push(Place { path, offset, bytes, is_put: false });
            Ok(())
        });
        match listed {
            Ok(()) => Ok(Self { job, manifest, places }),
            Err(error) => job.give_up(error.into()),
        }
    }

    /// Which batch it is.
    pub fn number(&self) -> u64 {
        self.job.number()
    }

    /// Copies `bytes` into the tensor at `path`, as errors write it (`.samples[3]["image"]`), from byte `start` of it on. Elements lie in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if they do not lie in it; [`Error::ManifestMismatch`] if there is no such tensor; [`Error::Forked`] in a child of the process that makes the batch.
    pub fn write(&mut self, path: &str, start: usize, bytes: &[u8]) -> Result<()> {
        let place = self.find(path).and_then(|index| self.places.get(index)).ok_or_else(|| missing(path))?;
        let (offset, limit) = (place.offset, place.bytes);
        match start.checked_add(bytes.len()) {
            Some(end) if end <= limit => self.copy(offset.saturating_add(start), bytes),
            end => Err(Error::OutOfRange { what: "bytes", start, end: end.unwrap_or(usize::MAX), limit }),
        }
    }

    /// Where the tensor at `path` lies, and its size in bytes: to be written through the pointer, until this goes. Another process may write there too.
    /// `None` if there is no such tensor, and in a child of the process that makes the batch.
    pub fn address(&mut self, path: &str) -> Option<(NonNull<u8>, usize)> {
        self.job.loader().check_here().ok()?;
        let place = self.places.get(self.find(path)?)?;
        let start = self.job.place(place.offset, place.bytes)?;
        Some((self.job.loader().mapping.at(start, place.bytes)?, place.bytes))
    }

    /// Hands the batch over.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::Forked`].
    pub fn finish(self) -> Result<(), IpcError> {
        let (at, manifest) = (end(&self.manifest), self.manifest.to_bytes());
        match self.copy(at, manifest) {
            Ok(()) => self.job.tell_filled(at, manifest.len()),
            Err(error) => self.job.give_up(error.into()),
        }
    }

    /// Writes all of the next tensor at `path`: there may be several of the same.
    pub(crate) fn put(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        let first = self.find(path).ok_or_else(|| missing(path))?;
        let place = self.places.iter_mut().skip(first).find(|place| !place.is_put);
        let place = place.filter(|place| place.path == path && place.bytes == bytes.len());
        let place = place.ok_or_else(|| missing(path))?;
        place.is_put = true;
        let offset = place.offset;
        self.copy(offset, bytes)
    }

    pub(crate) fn give_up<T>(self, error: IpcError) -> Result<T, IpcError> {
        self.job.give_up(error)
    }

    fn find(&self, path: &str) -> Option<usize> {
        let first = self.places.partition_point(|place| place.path.as_str() < path);
        self.places.get(first).filter(|place| place.path == path).map(|_| first)
    }

    fn copy(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.job.loader().check_here().map_err(|_| Error::Forked)?;
        let (start, limit) = (offset, self.job.slot_bytes());
        let is_written =
            self.job.place(offset, bytes.len()).is_some_and(|at| self.job.loader().mapping.write(at, bytes));
        let end = offset.saturating_add(bytes.len());
        if is_written { Ok(()) } else { Err(Error::OutOfRange { what: "bytes", start, end, limit }) }
    }
}

/// Where the chunk ends.
fn end(manifest: &Manifest) -> usize {
    manifest.chunks().first().copied().unwrap_or(0)
}

fn missing(path: &str) -> Error {
    Error::ManifestMismatch {
        path: path.to_owned(),
        own: "a tensor to be written".to_owned(),
        other: "none in the slot".to_owned(),
    }
}

impl std::fmt::Debug for InPlace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InPlace").field("number", &self.number()).field("manifest", &self.manifest).finish()
    }
}
