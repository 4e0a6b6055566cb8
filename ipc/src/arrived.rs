//! Memory that an exporter has sent, with the manifest of what is in it.

use std::any::Any;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use transship_core::backend::{ImportedPool, MemoryName};
use transship_core::{Device, Manifest, MemoryKind, RawMemory, RepeatedPut};

use crate::error::{IpcError, broken};
use crate::loan::Loan;
use crate::mapped_piece::{MappedPiece, MappedPieces};
use crate::mapping::Mapping;
use crate::packed::bytes_of_both;
use crate::wire::LARGEST_MANIFEST;

/// A chunk that two processes have. Each tensor of its manifest lies in it.
pub(crate) struct Arrived {
    pub(crate) put: Arc<RepeatedPut>,
    /// Where the chunk lies, in this process, until `owner` is dropped. No reference ever points there.
    pub(crate) memory: RawMemory,
    /// What has it. Dropped, the exporter is told.
    pub(crate) owner: Box<dyn Any + Send + Sync>,
    /// The host, or where the chunk lies.
    pub(crate) device: Device,
}

/// What is kept of what has come before, for what comes.
pub(crate) struct Kept<'a> {
    pub(crate) pieces: &'a Arc<MappedPieces>,
    pub(crate) last: &'a mut LastManifest,
}

/// Has a piece of shared memory. Dropped, that is free for a tree to come before the exporter is told.
struct Held {
    piece: Option<MappedPiece>,
    pieces: Arc<MappedPieces>,
    _loan: Loan,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.piece.take().into_iter().for_each(|piece| self.pieces.put(piece));
    }
}

impl Arrived {
    /// What `memory` has: a chunk, and a manifest behind it, of so many bytes. It is page-locked for copies to `device`.
    pub(crate) fn on_host(
        loan: Loan,
        memory: &OwnedFd,
        sizes: [u64; 2],
        device: &Device,
        kept: Kept<'_>,
    ) -> Result<Self, IpcError> {
        let [chunk_bytes, manifest_bytes] = sizes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let bytes = bytes_of_both(chunk_bytes, manifest_bytes);
        let bytes = bytes.ok_or_else(|| broken("a tree is larger than any memory"))?;
        if manifest_bytes > LARGEST_MANIFEST {
            return Err(broken("a manifest is larger than any"));
        }
        let mut piece = kept.pieces.take(memory, bytes)?;
        let put = kept.last.read(&piece.mapping, chunk_bytes, manifest_bytes)?;
        check_chunk(put.manifest(), chunk_bytes)?;
        let kind = piece.lock_for(device)?;
        let start = piece.mapping.at(0, chunk_bytes).ok_or_else(|| broken("a tree lies nowhere"))?;
        let memory = RawMemory::new(start.as_ptr().expose_provenance() as u64, chunk_bytes, kind);
        let held = Held { piece: Some(piece), pieces: Arc::clone(kept.pieces), _loan: loan };
        Ok(Self { put, memory, owner: Box::new(held), device: Device::host() })
    }

    /// What lies in memory of `pool`, a pool of `device`: `memory` has the name of that, and a manifest behind it, of so many bytes.
    pub(crate) fn in_pool(
        loan: Loan,
        memory: &OwnedFd,
        sizes: [u64; 2],
        (pool, device): (&dyn ImportedPool, &Device),
        kept: Kept<'_>,
    ) -> Result<Self, IpcError> {
        let [chunk_bytes, manifest_bytes] = sizes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let (name, put) = name_and_manifest(memory, chunk_bytes, manifest_bytes, kept)?;
        let chunk = pool.import(&name, Box::new(loan))?;
        let address = chunk.address();
        let end = address.checked_add(chunk_bytes as u64);
        let has_room =
            |there: Range<u64>| there.contains(&address) && end.is_some_and(|end| end <= there.end);
        if !device.backend().allocation_of(address).is_some_and(has_room) {
            return Err(broken("a tree does not lie in memory whose bounds the driver tells"));
        }
        let memory = RawMemory::new(address, chunk_bytes, MemoryKind::Device);
        Ok(Self { put, memory, owner: Box::new(chunk), device: device.clone() })
    }
}

/// The name of memory and the manifest of a chunk of so many bytes, which lie one behind the other.
fn name_and_manifest(
    memory: &OwnedFd,
    chunk_bytes: usize,
    manifest_bytes: usize,
    Kept { pieces, last }: Kept<'_>,
) -> Result<(MemoryName, Arc<RepeatedPut>), IpcError> {
    let bytes = bytes_of_both(size_of::<MemoryName>(), manifest_bytes);
    let bytes = bytes.filter(|_| manifest_bytes <= LARGEST_MANIFEST);
    let bytes = bytes.ok_or_else(|| broken("a manifest is larger than any"))?;
    let piece = pieces.take(memory, bytes)?;
    let mapping = &piece.mapping;
    let name = mapping.copy(0, size_of::<MemoryName>()).and_then(|name| name.try_into().ok());
    let name = name.ok_or_else(|| broken("a tree has no name"))?;
    let put = last.read(mapping, size_of::<MemoryName>(), manifest_bytes)?;
    check_chunk(put.manifest(), chunk_bytes)?;
    pieces.put(piece);
    Ok((name, put))
}

/// The manifest of the tree before: mostly the next one has the same, and need not be checked, nor what it is put into be sorted.
#[derive(Default)]
pub(crate) struct LastManifest(Option<Arc<RepeatedPut>>);

impl LastManifest {
    /// The manifest at `at`, which is copied before it is looked at.
    fn read(&mut self, mapping: &Mapping, at: usize, bytes: usize) -> Result<Arc<RepeatedPut>, IpcError> {
        self.of(mapping.copy(at, bytes).ok_or_else(|| broken("a manifest does not lie in its memory"))?)
    }

    /// The manifest that these bytes are.
    pub(crate) fn of(&mut self, copy: Vec<u8>) -> Result<Arc<RepeatedPut>, IpcError> {
        match &self.0 {
            Some(last) if last.manifest().to_bytes() == copy => Ok(Arc::clone(last)),
            _ => {
                let manifest = Manifest::from_bytes(copy).map_err(|_| broken("a manifest is none"))?;
                Ok(Arc::clone(self.0.insert(Arc::new(RepeatedPut::new(manifest)))))
            }
        }
    }
}

/// Fails unless all tensors lie in one chunk of so many bytes.
fn check_chunk(manifest: &Manifest, bytes: usize) -> Result<(), IpcError> {
    let is_of_it = match manifest.chunks() {
        [] => bytes == 0,
        [chunk] => *chunk == bytes,
        _ => false,
    };
    if is_of_it { Ok(()) } else { Err(broken("a manifest is of another tree")) }
}
