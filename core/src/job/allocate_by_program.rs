//! Has the program allocate what a copy fills.

use std::any::Any;

use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::backend::{MemoryKind, RawMemory};
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::in_flight::copy_metrics::Phase;
use crate::in_flight::memory_budget::Reservation;
use crate::in_flight::stream_uses::StreamUses;
use crate::job::allocator::{AllocatedMemory, Allocator};
use crate::job::chunk_memory::{Destination, Destinations};
use crate::job::job::Job;
use crate::job::options::CopyOptions;
use crate::job::transfer_path::PathKind;
use crate::plan::plan::Chunk;
use crate::runtime::foreign;
use crate::runtime::trace::span;
use crate::tensor::allocate;
use crate::tensor::storage::Storage;

/// No element type needs more, in bytes.
const LARGEST_ELEMENT: Alignment = match Alignment::new(16) {
    Some(alignment) => alignment,
    None => unreachable!(),
};

impl Job {
    /// Has the allocator that `options` name, if they do, allocate what the copy fills. On the thread that starts it, before anything else
    /// of it happens: the program's code runs, and may block.
    pub(crate) fn allocate_by_program(&self, options: &CopyOptions) -> Result<()> {
        let Some(allocator) = &options.allocator else { return Ok(()) };
        if self.is_trivial() {
            return Ok(());
        }
        if !self.target.backend().takes_addresses() {
            let what = "let results lie in memory of another allocator, which has no address there; copy without CopyOptions::allocator";
            return Err(Error::Unsupported { device: self.target.id(), what });
        }
        let _span = span!("allocate");
        let alignment = self.alignment_of_chunks(options);
        let made = || self.destinations_by_program(allocator, alignment);
        let made = self.completion.metrics.time(Phase::Allocate, made)?;
        self.destinations.get_or_init(|| made);
        Ok(())
    }

    fn destinations_by_program(&self, allocator: &Allocator, alignment: Alignment) -> Result<Destinations> {
        let mut before: SmallVec<[Stream; 1]> = SmallVec::new();
        let mut chunks = SmallVec::new();
        for path in &self.paths {
            let device = path.runs_on(&self.target);
            let stream = Stream::of_queue(device, &path.queue);
            for chunk in self.plan.chunks_of(path.source) {
                let AllocatedMemory { mut memory, owner, behind } =
                    self.ask(allocator, chunk.bytes, alignment, &stream)?;
                self.check(&memory, chunk.bytes, alignment)?;
                before.extend(behind.filter(|new| before.iter().all(|known| !known.is_same(new))));
                memory.bytes = chunk.bytes;
                // SAFETY: the promises of `Allocate`.
                let storage = unsafe { self.storage_over(memory, owner, chunk) }?;
                if path.on_callers_stream && !self.target.is_host() {
                    storage.hand_to(path.queue.handed());
                }
                chunks.push(Destination::whole(storage));
            }
        }
        let pageable = self.paths.iter().any(|path| matches!(path.kind, PathKind::Download));
        let uses = used_so_far(&before)?;
        let empty = self.nothing(&mut Reservation::nothing())?;
        Ok(Destinations { chunks, empty, pageable, open: SmallVec::new(), uses })
    }

    /// Calls the program's code, which may block, fail and panic.
    fn ask(
        &self,
        allocator: &Allocator,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> Result<AllocatedMemory> {
        let called = foreign::call(|| foreign::caught_or(|| allocator.0.allocate(bytes, alignment, stream)));
        match called {
            Ok(Ok(memory)) => Ok(memory),
            Ok(Err(error)) => match error.downcast::<Error>() {
                Ok(known) => Err(*known),
                Err(error) => {
                    let device = self.target.id();
                    Err(Error::AllocatorFailed { device, requested: bytes, error: error.into() })
                }
            },
            Err(panic) => {
                let error = Error::panicked(&*panic);
                foreign::forget_payload(panic);
                Err(error)
            }
        }
    }

    /// # Safety
    ///
    /// `memory` is what [`Allocate::allocate`](crate::Allocate::allocate) is promised to return.
    unsafe fn storage_over(
        &self,
        memory: RawMemory,
        owner: Box<dyn Any + Send + Sync>,
        chunk: &Chunk,
    ) -> Result<Storage> {
        // SAFETY: the caller's promise is that of `wrap`.
        let buffer = unsafe { allocate::wrap_writable(memory, owner, &self.target) }?;
        let device = (!self.target.is_host()).then(|| self.target.clone());
        Ok(Storage::planned_in_lent(buffer, device, self.completion.clone(), chunk))
    }

    /// Fails unless the memory is as was asked for. Whether it is there at all is asked of the backend (`wrap`).
    fn check(&self, memory: &RawMemory, requested: usize, alignment: Alignment) -> Result<()> {
        let RawMemory { address, bytes, kind } = *memory;
        let invalid = |reason: String| Error::InvalidMemory { address, bytes, reason };
        if bytes < requested {
            return Err(invalid(format!(
                "the allocator was asked for {requested} bytes; let it return as many"
            )));
        }
        let on_device = matches!(kind, MemoryKind::Device | MemoryKind::Managed);
        if on_device == self.target.is_host() {
            let target = self.target.id();
            return Err(invalid(format!(
                "it is {kind:?} memory, and results go to {target}; let the allocator return memory of that"
            )));
        }
        match usize::try_from(address) {
            Ok(start) if alignment.divides(start) => Ok(()),
            _ => {
                let cure =
                    "let the allocator of the options return memory that is aligned as it was asked for";
                Err(Error::Misaligned { what: "address", value: address, alignment: alignment.bytes(), cure })
            }
        }
    }

    /// What the memory of each chunk is a multiple of: as packed tensors are aligned, which keep that at their offsets alone.
    fn alignment_of_chunks(&self, options: &CopyOptions) -> Alignment {
        let devices = [&self.target].into_iter().chain(self.source_devices());
        devices.map(|device| options.alignment_on(device.limits())).fold(LARGEST_ELEMENT, Alignment::max)
    }
}

/// All that was submitted to the streams so far. Not later, when workers order the copy: the program goes on using them.
fn used_so_far(streams: &[Stream]) -> Result<StreamUses> {
    let position = |stream: &Stream| {
        let stream = stream.backend_stream();
        Ok((stream.clone(), Some(stream.record()?)))
    };
    streams.iter().map(position).collect()
}
