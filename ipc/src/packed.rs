//! A tree in one piece of memory, of the host or of a device, that another process can have.

use std::sync::Arc;

use rustix::param::page_size;
use transship_core::backend::{PeerMemory, SharedPool};
use transship_core::{
    Alignment, Device, DeviceId, Error, Manifest, MemoryKind, RawMemory, RepeatedPacking, Result,
    SharedOwner, Tensor, TensorTree,
};

use crate::copy_in_parts::{Places, copy_in_parts, places_of};
use crate::error::IpcError;
use crate::shared_piece::SharedPiece;
use crate::wire::LARGEST_MANIFEST;

/// How tensors in a chunk are aligned, to lines of the caches, and pieces that are handed over as they lie.
pub(crate) const ALIGNMENT: Alignment = match Alignment::new(64) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// Memory for a tree that another process may have.
pub(crate) struct Packed {
    pub(crate) chunk_bytes: usize,
    pub(crate) manifest_bytes: usize,
    /// Of the host: the chunk and the manifest, or the name of the chunk and the manifest.
    pub(crate) piece: Arc<SharedPiece>,
    /// Where the chunk lies, if not there.
    pub(crate) on_device: Option<OnDevice>,
}

/// A chunk on a device.
pub(crate) struct OnDevice {
    pub(crate) pool: u64,
    pub(crate) chunk: Arc<dyn PeerMemory>,
}

/// The size of the memory of a chunk, or its name, and its manifest. `None` if there is no such memory.
pub(crate) fn bytes_of_both(chunk: usize, manifest: usize) -> Option<usize> {
    let bytes = chunk.checked_add(manifest)?.checked_next_multiple_of(page_size())?;
    isize::try_from(bytes).is_ok().then_some(bytes)
}

impl Packed {
    /// Memory of the host for the chunk of `manifest`, which `piece` gives, by its size.
    pub(crate) fn on_host(
        manifest: &Manifest,
        piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
    ) -> std::result::Result<Self, IpcError> {
        let (chunk_bytes, manifest_bytes) = sizes(manifest);
        let piece = beside_manifest(manifest, chunk_bytes, piece)?;
        Ok(Self { chunk_bytes, manifest_bytes, piece, on_device: None })
    }

    /// New memory of a pool, which has this number, for the same.
    pub(crate) fn in_pool(
        manifest: &Manifest,
        (pool, memory): (u64, &dyn SharedPool),
        piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
    ) -> std::result::Result<Self, IpcError> {
        let (chunk_bytes, manifest_bytes) = sizes(manifest);
        let (name, chunk) = memory.allocate(chunk_bytes)?;
        let piece = beside_manifest(manifest, name.len(), piece)?;
        if !piece.mapping.write(0, &name) {
            return Err(too_large().into());
        }
        let on_device = Some(OnDevice { pool, chunk: Arc::from(chunk) });
        Ok(Self { chunk_bytes, manifest_bytes, piece, on_device })
    }

    /// Where the chunk lies, in this process.
    pub(crate) fn memory(&self) -> Result<RawMemory> {
        if let Some(OnDevice { chunk, .. }) = &self.on_device {
            return Ok(RawMemory::new(chunk.address(), self.chunk_bytes, MemoryKind::Device));
        }
        let start = self.piece.mapping.at(0, self.chunk_bytes).ok_or_else(too_large)?;
        let address = start.as_ptr().expose_provenance() as u64;
        Ok(RawMemory::new(address, self.chunk_bytes, MemoryKind::Pageable))
    }

    /// Keeps it there.
    pub(crate) fn owner(&self, device: &Device) -> SharedOwner {
        match &self.on_device {
            Some(there) => SharedOwner::new(Arc::clone(&there.chunk), device),
            None => SharedOwner::new(Arc::clone(&self.piece.mapping), device),
        }
    }
}

/// The tensors of a tree, and where they are to lie.
pub(crate) struct Packing {
    packing: Arc<RepeatedPacking>,
    /// With the offset of each in the chunk; or all of them as one, in one piece.
    tensors: Vec<(usize, Tensor)>,
    /// Where they lie now.
    device: Device,
}

impl Packing {
    /// By what is known of the `last` tree, if this one is like it.
    pub(crate) fn new<S: TensorTree + ?Sized>(
        tree: &S,
        last: Option<&Arc<RepeatedPacking>>,
    ) -> std::result::Result<Self, IpcError> {
        let known = match last {
            Some(last) => last.tensors_of_same(tree)?.map(|tensors| (Arc::clone(last), tensors)),
            None => None,
        };
        let (packing, tensors) = match known {
            Some(known) => known,
            None => {
                let (packing, tensors) = Self::anew(tree, last)?;
                (Arc::new(packing), tensors)
            }
        };
        let device = device_of(packing.manifest(), &tensors)?;
        Ok(Self { packing, tensors, device })
    }

    /// As it lies, if that is in one piece and the last tree looked otherwise. Those of one look that lie now in one way and now in another are packed by their look alone: their memory is used again for all
    /// of them.
    fn anew<S: TensorTree + ?Sized>(
        tree: &S,
        last: Option<&Arc<RepeatedPacking>>,
    ) -> Result<(RepeatedPacking, Vec<(usize, Tensor)>)> {
        let by_look = || RepeatedPacking::of(tree, ALIGNMENT);
        let as_it_lies = || -> Result<Option<_>> {
            let found = RepeatedPacking::of_one_piece(tree, ALIGNMENT)?;
            Ok(found.map(|(packing, whole)| (packing, vec![(0, whole)])))
        };
        let Some(last) = last else { return as_it_lies()?.map_or_else(by_look, Ok) };
        let packed = by_look()?;
        if last.manifest().check_tensors(packed.0.manifest()).is_ok() {
            return Ok(packed);
        }
        Ok(as_it_lies()?.unwrap_or(packed))
    }

    pub(crate) fn packing(&self) -> &Arc<RepeatedPacking> {
        &self.packing
    }

    /// The device that all of it lies on.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Copies it into new memory for its manifest, within its device. Waits until that is done. Gives the places of its tensors there.
    pub(crate) fn copy_into(self, packed: &Packed) -> Result<Places> {
        let (owner, memory) = (packed.owner(&self.device), packed.memory()?);
        // SAFETY: the memory is there until `owner` is dropped: mapped, and made of zeros, or of a device (`PeerMemory`). Nothing else of this process uses it. No other process has it,
        // or the importer has given it back; one that still writes there changes bytes of its own tree, to which no reference points (`Mapping`). The packing has a place of its own for each tensor.
        let places = unsafe { places_of(&self.tensors, &owner, memory)? };
        self.copy_to(places)
    }

    /// The same into places that it has given for a tree of the same manifest. They are dropped on an error.
    pub(crate) fn copy_to(self, places: Places) -> Result<Places> {
        copy_in_parts(self.tensors, places, self.packing.manifest()).map_err(|(error, _)| error)
    }
}

/// Fails for one that no importer believes.
pub(crate) fn check_manifest(manifest: &Manifest) -> std::result::Result<(), IpcError> {
    let (bytes, limit) = (manifest.to_bytes().len(), LARGEST_MANIFEST);
    let cure = "make the paths of the tree shorter, or hand it over as several trees";
    if bytes <= limit { Ok(()) } else { Err(IpcError::ManifestTooLarge { bytes, limit, cure }) }
}

/// How many bytes the only chunk of a manifest has, and the manifest itself.
fn sizes(manifest: &Manifest) -> (usize, usize) {
    (manifest.chunks().first().copied().unwrap_or(0), manifest.to_bytes().len())
}

/// Shared memory, with the manifest behind so many bytes.
fn beside_manifest(
    manifest: &Manifest,
    bytes: usize,
    piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
) -> std::result::Result<Arc<SharedPiece>, IpcError> {
    let manifest = manifest.to_bytes();
    let piece = piece(bytes_of_both(bytes, manifest.len()).ok_or_else(too_large)?)?;
    if piece.mapping.write(bytes, manifest) { Ok(piece) } else { Err(too_large().into()) }
}

/// The host, if none of them has elements.
fn device_of(manifest: &Manifest, tensors: &[(usize, Tensor)]) -> std::result::Result<Device, IpcError> {
    let Some((_, first)) = tensors.first() else { return Ok(Device::host()) };
    let own = first.device_id()?;
    for (offset, tensor) in tensors {
        let other = tensor.device_id()?;
        if other != own {
            return Err(IpcError::SeveralDevices { path: leaf_at(manifest, *offset)?.1, other, own });
        }
    }
    Ok(first.device()?)
}

/// Which tensor it is, of all in the order of their paths, and the path, of the first one there.
#[cold]
pub(crate) fn leaf_at(manifest: &Manifest, offset: usize) -> Result<(usize, String)> {
    let (mut number, mut found) = (0, None);
    manifest.for_each_leaf(|leaf| {
        if found.is_none() && leaf.chunk().is_some() && leaf.offset() == offset {
            found = Some((number, leaf.path().to_owned()));
        }
        number += 1;
        Ok(())
    })?;
    Ok(found.unwrap_or_default())
}

#[cold]
fn too_large() -> Error {
    let limit = isize::MAX.unsigned_abs();
    Error::TooLarge { device: DeviceId::HOST, kind: "host", requested: usize::MAX, limit }
}
