//! A tree that another process has handed over.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use transship_core::backend::{ImportedPool, MemoryName};
use transship_core::{
    Device, Layout, Manifest, MemoryKind, RawMemory, Result, SharedOwner, Tensor, TensorTree,
};

use crate::error::{IpcError, broken};
use crate::loan::Loan;
use crate::mapped_piece::{MappedPiece, MappedPieces};
use crate::mapping::Mapping;
use crate::packed::bytes_of_both;
use crate::received::Received;

/// The largest manifest that is believed, in bytes: that of more than a million tensors.
const LARGEST_MANIFEST: usize = 64 << 20;

/// A tree that another process has handed over, in the memory that both share.
///
/// Tensors on a device are ordinary ones that are read-only. Those on the host are to be copied, to a device or to the host, and can be read in no other way: the other
/// process can still write to their memory. Once they and this are dropped, and no copy and no stream uses them any more, the exporter is told. They stay valid when it has gone.
pub struct Imported {
    received: Received,
}

/// What tensors own. Dropped, the memory is free for a tree to come before the exporter is told.
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

impl Imported {
    /// What `memory` has: a chunk, and a manifest behind it, of so many bytes.
    pub(crate) fn new(
        loan: Loan,
        memory: &OwnedFd,
        sizes: [u64; 2],
        device: &Device,
        (pieces, last): (&Arc<MappedPieces>, &mut LastManifest),
    ) -> std::result::Result<Self, IpcError> {
        let [chunk_bytes, manifest_bytes] = sizes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let bytes = bytes_of_both(chunk_bytes, manifest_bytes);
        let bytes = bytes.ok_or_else(|| broken("a tree is larger than any memory"))?;
        if manifest_bytes > LARGEST_MANIFEST {
            return Err(broken("a manifest is larger than any"));
        }
        let mut piece = pieces.take(memory, bytes)?;
        let manifest = last.read(&piece.mapping, chunk_bytes, manifest_bytes)?;
        check_chunk(&manifest, chunk_bytes)?;
        let kind = piece.lock_for(device)?;
        let start = piece.mapping.at(0, chunk_bytes).ok_or_else(|| broken("a tree lies nowhere"))?;
        let chunk = RawMemory::new(start.as_ptr().expose_provenance() as u64, chunk_bytes, kind);
        let held = Held { piece: Some(piece), pieces: Arc::clone(pieces), _loan: loan };
        let owner = SharedOwner::new(held, &Device::host());
        // SAFETY: the chunk is mapped, and locked for the driver of its kind, until `held` is dropped. Its memory was made of zeros. No reference points there (`Mapping`).
        let chunk = unsafe { owner.shared_memory(chunk)? };
        Ok(Self { received: Received::new(manifest, chunk) })
    }

    /// What lies in memory of `pool`, a pool of `device`: `memory` has the name of that, and a manifest behind it, of so many bytes.
    pub(crate) fn on_device(
        loan: Loan,
        memory: &OwnedFd,
        sizes: [u64; 2],
        (pool, device): (&dyn ImportedPool, &Device),
        (pieces, last): (&Arc<MappedPieces>, &mut LastManifest),
    ) -> std::result::Result<Self, IpcError> {
        let [chunk_bytes, manifest_bytes] = sizes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let (name, manifest) = name_and_manifest(memory, chunk_bytes, manifest_bytes, pieces, last)?;
        let chunk = pool.import(&name, Box::new(loan))?;
        let address = chunk.address();
        let end = address.checked_add(chunk_bytes as u64);
        let has_room =
            |there: Range<u64>| there.contains(&address) && end.is_some_and(|end| end <= there.end);
        if !device.backend().allocation_of(address).is_none_or(has_room) {
            return Err(broken("a tree ends behind its memory"));
        }
        let owner = SharedOwner::new(chunk, device);
        // SAFETY: each piece lies in the chunk of its manifest (`Manifest::from_bytes`), whose end was looked at above, and by `tensors` again. The memory is there until `owner` is
        // dropped (`PeerMemory`). The exporter does not write to it meanwhile; one that does changes bytes of the device, where no reference points.
        let tensors = unsafe { owner.tensors(places(&manifest, address)?)? };
        Ok(Self { received: Received::on_device(manifest, tensors) })
    }

    /// Which tensors it has.
    pub fn manifest(&self) -> &Manifest {
        self.received.manifest()
    }

    /// Puts its tensors into the places of those of `tree`, which must have the same paths, types and shapes: the structure that was handed over, with any bytes.
    ///
    /// # Errors
    ///
    /// As [`Manifest::put_tensors`]; [`Misaligned`](transship_core::Error::Misaligned) if the other process has put a tensor where its type cannot lie.
    pub fn put_into<S: TensorTree + ?Sized>(&self, tree: &mut S) -> Result<()> {
        self.received.put_into(tree)
    }

    /// Its tensors with the path to each, in the order of the paths.
    ///
    /// # Errors
    ///
    /// As [`put_into`](Self::put_into).
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        self.received.tensors()
    }
}

/// The name of memory and the manifest of a chunk of so many bytes, which lie one behind the other.
fn name_and_manifest(
    memory: &OwnedFd,
    chunk_bytes: usize,
    manifest_bytes: usize,
    pieces: &MappedPieces,
    last: &mut LastManifest,
) -> std::result::Result<(MemoryName, Manifest), IpcError> {
    let bytes = bytes_of_both(size_of::<MemoryName>(), manifest_bytes);
    let bytes = bytes.filter(|_| manifest_bytes <= LARGEST_MANIFEST);
    let bytes = bytes.ok_or_else(|| broken("a manifest is larger than any"))?;
    let piece = pieces.take(memory, bytes)?;
    let mapping = &piece.mapping;
    let name = mapping.copy(0, size_of::<MemoryName>()).and_then(|name| name.try_into().ok());
    let name = name.ok_or_else(|| broken("a tree has no name"))?;
    let manifest = last.read(mapping, size_of::<MemoryName>(), manifest_bytes)?;
    check_chunk(&manifest, chunk_bytes)?;
    pieces.put(piece);
    Ok((name, manifest))
}

/// Where each tensor lies in the chunk at `start`.
fn places(manifest: &Manifest, start: u64) -> Result<Vec<(RawMemory, Layout)>> {
    let mut places = Vec::with_capacity(manifest.len());
    manifest.for_each_leaf(|leaf| {
        let address = start.saturating_add(leaf.offset() as u64);
        let memory = RawMemory::new(address, leaf.layout().span(), MemoryKind::Device);
        places.push((memory, leaf.layout().clone()));
        Ok(())
    })?;
    Ok(places)
}

/// The manifest of the tree before: mostly the next one has the same, and need not be checked.
#[derive(Default)]
pub(crate) struct LastManifest(Option<Manifest>);

impl LastManifest {
    /// The manifest at `at`, which is copied before it is looked at.
    fn read(
        &mut self,
        mapping: &Mapping,
        at: usize,
        bytes: usize,
    ) -> std::result::Result<Manifest, IpcError> {
        let copy = mapping.copy(at, bytes).ok_or_else(|| broken("a manifest does not lie in its memory"))?;
        match &self.0 {
            Some(last) if last.to_bytes() == copy => Ok(last.clone()),
            _ => {
                let manifest = Manifest::from_bytes(copy).map_err(|_| broken("a manifest is none"))?;
                Ok(self.0.insert(manifest).clone())
            }
        }
    }
}

/// Fails unless all tensors lie in one chunk of so many bytes.
fn check_chunk(manifest: &Manifest, bytes: usize) -> std::result::Result<(), IpcError> {
    let is_of_it = match manifest.chunks() {
        [] => bytes == 0,
        [chunk] => *chunk == bytes,
        _ => false,
    };
    if is_of_it { Ok(()) } else { Err(broken("a manifest is of another tree")) }
}

impl std::fmt::Debug for Imported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Imported").field("manifest", self.manifest()).finish()
    }
}
