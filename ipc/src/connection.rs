//! One importer, as its exporter has it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use transship_core::{Device, DeviceId, Manifest, RepeatedPacking, TensorTree};

use crate::error::IpcError;
use crate::kept::Kept;
use crate::ledger::{Filling, Ledger};
use crate::offer::Offer;
use crate::packed::{ALIGNMENT, Packed, Packing, check_manifest};
use crate::pools::Shared;
use crate::window::Window;

/// One importer, to which trees are handed over. Dropped, it tells the importer that there will be no more; what was handed over stays there.
///
/// A thread of this process listens to the importer until that has gone, or has given everything back after this was dropped. A process that is forked from this one may drop it, which
/// changes nothing, and is refused all else ([`IpcError::Forked`]).
pub struct Connection {
    ledger: Arc<Ledger>,
    pools: Shared,
    /// How the last tree was packed, and where it lay.
    last: Option<(Arc<RepeatedPacking>, DeviceId)>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, IpcError> {
        Ok(Self { ledger: Ledger::open(socket)?, pools: Shared::default(), last: None })
    }

    /// Copies `tree`, all of which lies on the host or on one device, into memory there that both processes share, and hands it over. Waits until it is copied, behind all
    /// work that its tensors wait for, and not for the importer. `tree` is not used any more then.
    ///
    /// Trees of one look, by paths, types, shapes and what they share, that come one after the other are cheaper from the third one on: they lie in memory that the importer has mapped, and how they are packed is
    /// known. Four pieces of memory at most are kept so, of up to 64 MiB each on a device: with both processes, until the importer listens after a tree of another look was exported, or this was
    /// dropped, or it goes. Other memory of the host that the importer has given back is used again for trees of the same size.
    ///
    /// Small tensors that one copy has packed lie in one piece of a device's memory. A tree of such tensors alone, all that lie side by side there from a multiple of 64 bytes on, is copied as it lies, as one, with the
    /// padding between them: fewer than 16 bytes in each place. So are those of its look that follow and lie as it does. All other trees, and those of a look that was packed otherwise before, are packed tensor by tensor, each at a
    /// multiple of 64 bytes.
    ///
    /// Devices of CUDA can share memory. Each importer has a pool of its own on each device, apart from all other memory of this process; it keeps what was freed, for the trees
    /// to come, until this and the last tree have gone.
    ///
    /// # Errors
    ///
    /// [`IpcError::PeerGone`]; [`IpcError::Forked`]; [`IpcError::TooManyTrees`] if the importer has 128; [`IpcError::SeveralDevices`]; [`IpcError::ManifestTooLarge`] above 64 MiB, which
    /// take more than a million tensors, or very long paths; [`IpcError::System`] if there is no memory;
    /// [`IpcError::Tensors`] if `tree` does not show its tensors, one of them cannot be copied, or their device shares no memory
    /// ([`Unsupported`](transship_core::Error::Unsupported)) or has none left. Nothing is handed over then.
    pub fn export<S: TensorTree + ?Sized>(&mut self, tree: &S) -> Result<Offer, IpcError> {
        self.ledger.check_there()?;
        let tree = Packing::new(tree, self.last.as_ref().map(|(last, _)| last))?;
        check_manifest(tree.packing().manifest())?;
        let (packing, device) = (Arc::clone(tree.packing()), tree.device().id());
        let is_like_last = self.last.as_ref().is_some_and(|(last, of)| {
            *of == device && (Arc::ptr_eq(last, &packing) || last.has_places_of(&packing))
        });
        self.last = Some((Arc::clone(&packing), device));
        if !is_like_last {
            self.ledger.close_kept();
        } else if let Some(memory) = self.ledger.take_kept(&packing, device)? {
            return self.export_again(tree, memory);
        }
        let packed = self.memory_for(packing.manifest(), tree.device())?;
        let places = tree.copy_into(&packed)?;
        let kept = is_like_last.then_some(Kept { packing, device, places });
        Ok(Offer::new(&self.ledger, self.ledger.lend(packed, kept)?))
    }

    /// Hands a tree over in memory that the importer has mapped.
    fn export_again(&self, tree: Packing, mut memory: Filling) -> Result<Offer, IpcError> {
        match tree.copy_to(std::mem::take(&mut memory.kept.places)) {
            Ok(places) => {
                memory.kept.places = places;
                Ok(Offer::new(&self.ledger, self.ledger.lend_again(memory)?))
            }
            Err(error) => {
                self.ledger.close_memory(memory.ticket);
                Err(error.into())
            }
        }
    }

    /// Memory of `device` for a tree that looks like `tree`, which the importer writes again and again: a window, in the word of MPI. No byte of `tree` is copied. Tensors
    /// over the same piece of memory share it in the window, and must in what is written there. Windows are written until this is dropped.
    ///
    /// ```
    /// use std::{thread, time::Duration};
    /// use transship_core::{CopyOptions, Device, Tensor, start_copy};
    /// use transship_ipc::{Exporter, Importer};
    ///
    /// const LIMIT: Duration = Duration::from_secs(10);
    /// let weights = |value: u8| vec![Tensor::from(vec![value; 1000]), Tensor::from(vec![value; 10])];
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("weights");
    /// let device = Device::host(); // or a GPU
    /// let exporter = Exporter::bind(&path)?;
    ///
    /// // The process that trains, usually.
    /// let trainer = thread::spawn(move || {
    ///     let mut importer = Importer::connect(path, &Device::host())?;
    ///     for step in 1..4 {
    ///         let mut turn = importer.next_turn_within(LIMIT)?.ok_or("nobody wants weights")?;
    ///         turn.put(&weights(step))?;
    ///         turn.finish()?;
    ///     }
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// });
    ///
    /// let mut connection = exporter.accept_within(LIMIT)?;
    /// let window = connection.open_window(&weights(0), &device)?;
    /// for step in 1..4 {
    ///     let mut held = weights(0);
    ///     window.written_within(LIMIT)?.put_into(&mut held)?; // tensors over the window
    ///     let host = start_copy(held, &Device::host(), CopyOptions::default())?.wait()?;
    ///     assert_eq!(host[1].to_bytes()?, [step; 10]);
    /// } // once they are dropped, it is written again
    /// trainer.join().unwrap().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`export`](Self::export); but `tree` may lie anywhere.
    pub fn open_window<S: TensorTree + ?Sized>(
        &mut self,
        tree: &S,
        device: &Device,
    ) -> Result<Window, IpcError> {
        self.ledger.check_there()?;
        let manifest = Manifest::packed(tree, ALIGNMENT)?;
        check_manifest(&manifest)?;
        let packed = self.memory_for(&manifest, device)?;
        let ticket = self.ledger.open_window(&packed)?;
        Ok(Window::new(&self.ledger, ticket, (manifest, packed), device))
    }

    /// How many trees and windows the importer has, or will find. None, as a child that was forked from this process sees it.
    pub fn lent(&self) -> usize {
        self.ledger.lent()
    }

    /// Memory of `device` for the tensors of a manifest, which no other process has yet.
    fn memory_for(&mut self, manifest: &Manifest, device: &Device) -> Result<Packed, IpcError> {
        let piece = |bytes| self.ledger.piece(bytes);
        if device.is_host() {
            return Packed::on_host(manifest, piece);
        }
        let tell = |pool, uuid, descriptor| self.ledger.tell_pool(pool, uuid, &descriptor);
        let (number, pool) = self.pools.of(device, tell)?;
        Packed::in_pool(manifest, (number, &*pool), piece)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ledger.close();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("lent", &self.lent()).finish()
    }
}
