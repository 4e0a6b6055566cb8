//! A tree in one piece of memory, of the host or of a device, that another process can have.

use std::sync::Arc;

use rustix::param::page_size;
use transship_core::backend::{PeerMemory, SharedPool};
use transship_core::{
    Alignment, CopyOptions, Device, DeviceId, Error, Layout, Manifest, MemoryKind, RawMemory, Result,
    SharedOwner, Tensor, TensorTree, start_copy_into,
};

use crate::error::IpcError;
use crate::shared_piece::SharedPiece;

/// How tensors in a chunk are aligned: to lines of the caches.
pub(crate) const ALIGNMENT: Alignment = match Alignment::new(64) {
    Some(alignment) => alignment,
    None => Alignment::ONE,
};

/// A tree in memory that another process may have.
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

/// The tensors of a tree, and where they are to lie.
pub(crate) struct Packing {
    manifest: Manifest,
    /// With the offset of each in the chunk.
    tensors: Vec<(usize, Tensor)>,
    /// Where they lie now.
    device: Device,
}

impl Packing {
    pub(crate) fn new<S: TensorTree + ?Sized>(tree: &S) -> std::result::Result<Self, IpcError> {
        let (manifest, tensors) = Manifest::packed_with_tensors(tree, ALIGNMENT)?;
        let device = device_of(&manifest, &tensors)?;
        Ok(Self { manifest, tensors, device })
    }

    /// The device that all of it lies on.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Copies it into memory of the host, which `piece` gives, by its size. Waits until that is done.
    pub(crate) fn into_shared_memory(
        self,
        piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
    ) -> std::result::Result<Packed, IpcError> {
        let chunk_bytes = chunk(&self.manifest);
        let piece = self.beside_manifest(chunk_bytes, piece)?;
        let start = piece.mapping.at(0, chunk_bytes).ok_or_else(too_large)?;
        let address = start.as_ptr().expose_provenance() as u64;
        let raw = RawMemory::new(address, chunk_bytes, MemoryKind::Pageable);
        let owner = SharedOwner::new(Arc::clone(&piece.mapping), &Device::host());
        let manifest_bytes = self.manifest.to_bytes().len();
        // SAFETY: the memory is mapped, and was made of zeros, until `owner` is dropped. Nothing else of this process writes there: `piece` gives what no tree lies in. No other
        // process has it, or the importer has given it back; one that still writes there changes bytes of its own tree, to which no reference points (`Mapping`).
        unsafe { self.copy(&owner, raw)? };
        Ok(Packed { chunk_bytes, manifest_bytes, piece, on_device: None })
    }

    /// Copies it, within its device, into new memory of a pool. Waits until that is done.
    pub(crate) fn into_pool(
        self,
        pool: u64,
        memory: &dyn SharedPool,
        piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
    ) -> std::result::Result<Packed, IpcError> {
        let (name, chunk_memory) = memory.allocate(chunk(&self.manifest))?;
        let piece = self.beside_manifest(name.len(), piece)?;
        if !piece.mapping.write(0, &name) {
            return Err(too_large().into());
        }
        let chunk_memory: Arc<dyn PeerMemory> = Arc::from(chunk_memory);
        let (chunk_bytes, manifest_bytes) = (chunk(&self.manifest), self.manifest.to_bytes().len());
        let raw = RawMemory::new(chunk_memory.address(), chunk_bytes, MemoryKind::Device);
        let owner = SharedOwner::new(Arc::clone(&chunk_memory), &self.device);
        // SAFETY: the memory is there until `owner` is dropped (`PeerMemory`). No other process knows its name yet, and nothing else of this one uses it.
        unsafe { self.copy(&owner, raw)? };
        let on_device = Some(OnDevice { pool, chunk: chunk_memory });
        Ok(Packed { chunk_bytes, manifest_bytes, piece, on_device })
    }

    /// Shared memory, with the manifest behind so many bytes.
    fn beside_manifest(
        &self,
        bytes: usize,
        piece: impl FnOnce(usize) -> std::result::Result<Arc<SharedPiece>, IpcError>,
    ) -> std::result::Result<Arc<SharedPiece>, IpcError> {
        let manifest = self.manifest.to_bytes();
        let piece = piece(bytes_of_both(bytes, manifest.len()).ok_or_else(too_large)?)?;
        if piece.mapping.write(bytes, manifest) { Ok(piece) } else { Err(too_large().into()) }
    }

    /// Copies each tensor to where the manifest says that it lies.
    ///
    /// # Safety
    ///
    /// As [`SharedOwner::parts_mut`], for `memory`.
    unsafe fn copy(self, owner: &SharedOwner, memory: RawMemory) -> Result<()> {
        let count = self.tensors.len();
        let (mut sources, mut parts) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (offset, tensor) in self.tensors {
            parts.push((offset, Layout::contiguous(tensor.dtype(), tensor.shape())?));
            sources.push(tensor);
        }
        // SAFETY: the caller's promise.
        let into = unsafe { owner.parts_mut(memory, parts)? };
        start_copy_into(sources, into, CopyOptions::default())?.wait()?;
        Ok(())
    }
}

/// How many bytes the only chunk of a manifest has.
fn chunk(manifest: &Manifest) -> usize {
    manifest.chunks().first().copied().unwrap_or(0)
}

/// The host, if none of them has elements.
fn device_of(manifest: &Manifest, tensors: &[(usize, Tensor)]) -> std::result::Result<Device, IpcError> {
    let mut own: Option<Device> = None;
    for (offset, tensor) in tensors {
        let device = tensor.device()?;
        match &own {
            None => own = Some(device),
            Some(own) if own.id() == device.id() => {}
            Some(own) => {
                let (path, other, own) = (path_at(manifest, *offset)?, device.id(), own.id());
                return Err(IpcError::SeveralDevices { path, other, own });
            }
        }
    }
    Ok(own.unwrap_or_else(Device::host))
}

/// Of the first tensor there.
#[cold]
fn path_at(manifest: &Manifest, offset: usize) -> Result<String> {
    let mut path = None;
    manifest.for_each_leaf(|leaf| {
        if path.is_none() && leaf.chunk().is_some() && leaf.offset() == offset {
            path = Some(leaf.path().to_owned());
        }
        Ok(())
    })?;
    Ok(path.unwrap_or_default())
}

#[cold]
fn too_large() -> Error {
    let limit = isize::MAX.unsigned_abs();
    Error::TooLarge { device: DeviceId::HOST, kind: "host", requested: usize::MAX, limit }
}
