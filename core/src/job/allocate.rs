//! Allocates what a copy fills.

use smallvec::SmallVec;

use crate::backend::host::memory::HostMemory;
use crate::device::room::Room;
use crate::error::Result;
use crate::in_flight::carried::Carried;
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::memory_budget::{Allocated, Reservation};
use crate::job::chunk_memory::{Destination, Destinations};
use crate::job::job::Job;
use crate::job::result_blocks::{HostBlocks, HostResults};
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::plan::plan::Route;
use crate::runtime::trace::span;
use crate::tensor::storage::Storage;

type Buffers = SmallVec<[Allocated; 1]>;

fn are_open(buffers: &Buffers) -> bool {
    !buffers.is_empty() && buffers.iter().all(|memory| memory.buffer.window().is_some())
}

impl Job {
    /// Allocates what the copy fills, unless that is done: on a device, out of bytes that `reserve` counts as used. `None` if results
    /// may lie in idle blocks only and one is missing.
    pub(crate) fn allocate(
        &self,
        host_results: HostResults,
        reserve: impl FnOnce(usize) -> Result<Reservation>,
    ) -> Result<Option<&Destinations>> {
        if let Some(known) = self.destinations.get() {
            return Ok(Some(known));
        }
        let _span = span!("allocate");
        // All at once: who waits for room for a part of it would hold the others meanwhile.
        let reserved = match self.device_bytes()? {
            0 => Reservation::nothing(),
            bytes => reserve(bytes)?,
        };
        let made = self
            .completion
            .metrics
            .time(Phase::Allocate, || self.make_destinations(host_results, reserved))?;
        Ok(made.map(|made| self.destinations.get_or_init(|| made)))
    }

    /// Room on its device for all that it allocates there, or a place among those who wait for some. `None` where none is to be asked for
    /// before: without a budget, and if the memory is there. `copy` is in flight on all of its devices from now on.
    pub(crate) fn ask_for_room(&self, copy: Carried) -> Result<Option<Room>> {
        let is_limited = self.destinations.get().is_none() && self.target.budget().limit().is_some();
        let bytes = if is_limited { self.device_bytes()? } else { 0 };
        // First where it may wait: whoever finds it on another device comes behind it.
        let room = match bytes {
            0 => {
                self.target.note_background(copy.clone());
                None
            }
            bytes => Some(self.target.ask_for_room(bytes, Some(copy.clone()))?),
        };
        self.source_devices().for_each(|device| device.note_background(copy.clone()));
        Ok(room)
    }

    /// The bytes of all buffers that it allocates on its device.
    fn device_bytes(&self) -> Result<usize> {
        if self.held.is_some() || self.target.is_host() {
            return Ok(0);
        }
        let mut chunks = self.plan.chunks().iter();
        chunks.try_fold(0_usize, |sum, chunk| Ok(sum.saturating_add(self.target.granules(chunk.bytes)?)))
    }

    fn make_destinations(
        &self,
        host_results: HostResults,
        mut reserved: Reservation,
    ) -> Result<Option<Destinations>> {
        if let Some(held) = &self.held {
            return self.begin_to_fill(held).map(Some);
        }
        let fill = || self.completion.clone();
        let target = || (!self.target.is_host()).then(|| self.target.clone());
        let mut chunks = SmallVec::new();
        let mut pageable = false;
        let mut open = SmallVec::new();
        if let Some(blocks) = self.host_blocks(host_results)? {
            match blocks {
                HostBlocks::Pinned(blocks) => {
                    let all = blocks.into_iter().zip(self.plan.chunks());
                    let storages = all.map(|(block, chunk)| Storage::planned(block, None, fill(), chunk));
                    chunks.extend(storages.map(Destination::whole));
                }
                HostBlocks::Missing => return Ok(None),
                HostBlocks::Pageable => {
                    pageable = true;
                    for chunk in self.plan.chunks() {
                        let memory = Box::new(HostMemory::uninit(chunk.bytes)?);
                        self.completion.metrics.count_pageable_result(chunk.bytes);
                        chunks.push(Destination::whole(Storage::planned(memory, None, fill(), chunk)));
                    }
                }
            }
        } else {
            for path in &self.paths {
                let buffers = self.device_buffers(path, &mut reserved)?;
                if are_open(&buffers) {
                    open.push(path.source);
                }
                for (buffer, chunk) in buffers.into_iter().zip(self.plan.chunks_of(path.source)) {
                    let storage = Storage::planned(buffer, target(), fill(), chunk);
                    if path.on_callers_stream {
                        storage.hand_to(path.queue.handed());
                    }
                    chunks.push(Destination::whole(storage));
                }
            }
        }
        let empty = self.nothing(&mut reserved)?;
        Ok(Some(Destinations { chunks, empty, pageable, open, uses: SmallVec::new() }))
    }

    /// Memory for tensors without elements, if there are any.
    pub(crate) fn nothing(&self, reserved: &mut Reservation) -> Result<Option<Storage>> {
        if !self.plan.routes().contains(&Route::Empty) {
            return Ok(None);
        }
        // Worker threads have no queues of their own.
        let queue = self.paths.first().map_or_else(|| self.target.up(), |path| Ok(path.queue.clone()))?;
        let nothing = self.target.allocate_of(reserved, 0, &queue)?;
        let target = (!self.target.is_host()).then(|| self.target.clone());
        Ok(Some(Storage::new(nothing, target, None)))
    }

    /// Memory for the chunks of `path`. Either all of it is open, so that the host writes it in place, or none.
    fn device_buffers(&self, path: &TransferPath, reserved: &mut Reservation) -> Result<Buffers> {
        let target = &self.target;
        let may_open = self.plan.source_span(path.source) <= target.limits().largest_open;
        let chunks = self.plan.chunks_of(path.source).iter().map(|chunk| chunk.bytes);
        if !(may_open && matches!(path.kind, PathKind::Staged)) {
            return chunks.map(|bytes| target.allocate_of(reserved, bytes, &path.queue)).collect();
        }
        let open = |bytes| target.allocate_open_of(reserved, bytes, &path.queue);
        let buffers: Buffers = chunks.map(open).collect::<Result<_>>()?;
        if !are_open(&buffers) {
            // SAFETY: the buffers are new, and nobody else has them. `are_open` asks for their windows and keeps none.
            buffers.iter().try_for_each(|memory| unsafe { memory.buffer.close() })?;
        }
        Ok(buffers)
    }
}
