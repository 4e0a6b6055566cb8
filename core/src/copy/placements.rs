//! Where the results of a copy lie, for who makes tensors of another library over them.

use std::fmt;

use crate::backend::MemoryKind;
use crate::copy::handle::CopyHandle;
use crate::device::stream::Stream;
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::job::job::Job;
use crate::job::transfer_path::PathKind;
use crate::tensor::storage::Storage;

/// Where the result of one tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Placement {
    /// The number of the chunk, an allocation that results share, counted from 0.
    pub chunk: usize,
    /// Where its first element is in the chunk, in bytes.
    pub offset: usize,
    /// Whether its elements lie in one run there, in order. Else it keeps the strides of its source.
    pub is_contiguous: bool,
}

/// Where the results of a copy lie: see [`CopyHandle::placements`].
#[derive(Clone, Copy)]
pub struct Placements<'a> {
    job: &'a Job,
}

/// The memory of a chunk, which stays while there is one of these, a clone, or a tensor in it. It is no way to read or write it.
#[derive(Clone)]
pub struct ChunkMemory(Storage);

impl<S> CopyHandle<S> {
    /// Where the results lie, in the order in which the structure shows its tensors: known before the copy is done, for who makes tensors of
    /// another library over the same memory. `None` once this handle was waited for or polled until the copies were put in, and for
    /// [`start_copy_into`](crate::start_copy_into()), whose results lie where its second structure had its tensors.
    ///
    /// ```
    /// use transship_core::{CopyOptions, CopyPolicy, Device, Tensor, start_copy};
    ///
    /// let batch = vec![Tensor::from(vec![1_u8; 3]), Tensor::from(vec![2_u8; 5])];
    /// let copy = start_copy(batch, &Device::host(), CopyOptions::default().policy(CopyPolicy::Always))?;
    /// let placements = copy.placements().expect("nobody has waited for it");
    /// let places = placements.iter().map(|place| place.map(|place| (place.chunk, place.offset)));
    /// assert_eq!(places.collect::<Vec<_>>(), [Some((0, 0)), Some((0, 16))]);
    /// let chunk = placements.chunk(0)?;
    /// let batch = copy.wait()?;
    /// assert_eq!(batch[1].address()?, chunk.address().map(|start| start + 16));
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    pub fn placements(&self) -> Option<Placements<'_>> {
        let job = self.job.as_deref().filter(|job| job.held().is_none())?;
        Some(Placements { job })
    }
}

impl<'a> Placements<'a> {
    /// One for each tensor of the structure; `None` for one that stays where it is or has no elements. Tensors over the same memory have the
    /// same one.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Option<Placement>> + 'a {
        let plan = &*self.job.plan;
        self.job.leaves.iter().zip(plan.routes()).map(|(leaf, route)| {
            let (chunk, offset) = plan.placement_by(*route)?;
            Some(Placement { chunk: chunk as usize, offset, is_contiguous: leaf.is_gathered() })
        })
    }

    /// How many chunks there are.
    pub fn chunks(self) -> usize {
        self.job.plan.chunks().len()
    }

    /// The memory of chunk number `chunk`, which may be yet to be filled. Once the copy is done it is the memory of any tensor in it as well
    /// ([`Tensor::address`](crate::Tensor::address)).
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] as long as a worker has not allocated it, which is not so with
    /// [`CopyOptions::allocator`](crate::CopyOptions::allocator); and for results in ordinary memory of the host that come from a device, which are not
    /// there before [`CopyHandle::wait`] has returned. [`Error::OutOfRange`] if there is no such chunk.
    pub fn chunk(self, chunk: usize) -> Result<ChunkMemory> {
        let destinations = self.job.destinations.get().ok_or(Error::NotReady)?;
        let comes_down = || self.job.paths.iter().any(|path| matches!(path.kind, PathKind::Download));
        if destinations.pageable && comes_down() {
            return Err(Error::NotReady);
        }
        let limit = destinations.chunks.len();
        let known = destinations.chunks.get(chunk);
        known.map(|known| ChunkMemory(known.storage.clone())).ok_or(Error::OutOfRange {
            what: "chunk",
            start: chunk,
            end: chunk.saturating_add(1),
            limit,
        })
    }
}

impl ChunkMemory {
    /// Where it starts: on the host or on the device, as its kind says. `None` where memory has no addresses (wgpu).
    pub fn address(&self) -> Option<u64> {
        self.0.buffer().address()
    }

    /// Its size in bytes, what lies between its tensors included.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Its device.
    pub fn device_id(&self) -> DeviceId {
        self.0.device_id()
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> MemoryKind {
        self.0.kind()
    }

    /// Keeps it from being given back, or used again, before the work submitted to `stream` up to the end of all that holds it is done. Orders
    /// nothing: [`CopyHandle::wait_on`] does.
    ///
    /// # Errors
    ///
    /// [`Error::StreamLost`].
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        // What a lost stream is handed is leaked.
        stream.queue().check()?;
        self.0.hand_to(stream.queue().handed());
        Ok(())
    }
}

impl fmt::Debug for Placements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for ChunkMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkMemory({} bytes on {})", self.bytes(), self.device_id())
    }
}
