//! Copies that the library plans: those of leaves that it casts, and of leaves that go to several devices. Their results lie in memory that
//! it asks for.

use std::num::NonZero;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use transship::{
    BackgroundWork, Cast, CopyError, CopyOptions, CopyPolicy, Device, Error, MemoryKind, Result, Stream,
    start_copy_to_all,
};

use crate::errors;
use crate::kinds::Kinds;
use crate::leaf::Order;
use crate::leaf_slots::{At, Slot};
use crate::place::Place;
use crate::plan::LARGEST_PACKED;
use crate::released::{self, Held};
use crate::start::{Request, Started, streams};
use crate::torch::Torch;
use crate::torch_memory::TorchMemory;
use crate::transfer::Running;
use crate::typed::{Typed, casts_of, in_groups, lend};

/// A device that a structure goes to.
pub struct Target {
    pub request: Request,
    /// The leaves of the structure, and what they come to there.
    pub slots: Vec<Slot>,
    pub started: Started,
}

/// What says where a leaf is in its structure, for errors.
pub type PathOf<'a> = &'a dyn Fn(usize) -> Option<String>;

/// Leaves of one place that one copy of the library casts, and the devices that they go to.
struct Shipment<'a> {
    from: Place,
    leaves: Vec<Typed>,
    targets: Vec<&'a mut Target>,
}

/// Starts the copies of all leaves to all targets. `casts` has one for each leaf that gets another type.
pub fn start(
    py: Python<'_>,
    torch: Option<&Torch>,
    targets: &mut [Target],
    casts: &[Option<(Cast, usize)>],
    path_of: PathOf<'_>,
) -> PyResult<()> {
    for target in targets.iter_mut() {
        settle_empty(py, torch, target, casts)?;
    }
    let mut places: Vec<Place> =
        targets.iter().flat_map(|target| target.slots.iter().filter_map(Slot::place)).collect();
    places.sort_unstable();
    places.dedup();
    for from in places {
        for mut together in alike(targets, from) {
            let Some(first) = together.first() else { continue };
            for leaves in in_groups(leaves_of(py, first, from, casts)) {
                let targets = together.iter_mut().map(|target| &mut **target).collect();
                Shipment { from, leaves, targets }.start(py, torch, path_of)?;
            }
        }
    }
    Ok(())
}

/// Of a leaf without elements PyTorch makes the copy.
fn settle_empty(
    py: Python<'_>,
    torch: Option<&Torch>,
    target: &mut Target,
    casts: &[Option<(Cast, usize)>],
) -> PyResult<()> {
    let Some(torch) = torch.filter(|_| !target.request.own_memory) else { return Ok(()) };
    for (slot, cast) in target.slots.iter_mut().zip(casts) {
        if let Slot::Leaf(At::Source(_), leaf) = slot
            && leaf.bytes == 0
        {
            let to = leaf.copied_as(cast.map_or(leaf.element(), |(_, element)| element));
            *slot = Slot::There(torch.allocate_like(py, &to, target.request.target, false)?.unbind());
        }
    }
    Ok(())
}

/// The targets that get leaves from `from`, those together that get the same ones. What lies on a device is staged nowhere: there each
/// target has a copy of its own.
fn alike(targets: &mut [Target], from: Place) -> Vec<Vec<&mut Target>> {
    let mut groups: Vec<(Vec<usize>, Vec<&mut Target>)> = Vec::new();
    for target in targets {
        let numbers = numbers_of(&target.slots, from);
        let known = groups.iter_mut().find(|(others, _)| from == Place::Host && *others == numbers);
        match known {
            _ if numbers.is_empty() => {}
            Some((_, group)) => group.push(target),
            None => groups.push((numbers, vec![target])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn numbers_of(slots: &[Slot], from: Place) -> Vec<usize> {
    (0..slots.len()).filter(|number| slots[*number].place() == Some(from)).collect()
}

fn leaves_of(py: Python<'_>, target: &Target, from: Place, casts: &[Option<(Cast, usize)>]) -> Vec<Typed> {
    let leaf = |number: usize| match &target.slots[number] {
        Slot::Leaf(At::Source(object), leaf) => {
            let cast = casts.get(number).copied().flatten();
            Some(Typed::new(number, object.clone_ref(py), leaf.clone(), cast))
        }
        _ => None,
    };
    numbers_of(&target.slots, from).into_iter().filter_map(leaf).collect()
}

impl Shipment<'_> {
    fn start(self, py: Python<'_>, torch: Option<&Torch>, path_of: PathOf<'_>) -> PyResult<()> {
        let Some(request) = self.targets.first().map(|target| target.request) else { return Ok(()) };
        let memory = self.memory(request);
        let ways = self.ways(py, torch)?;
        let asked = Kinds::now(torch);
        let kinds = self.leaves.iter().map(|leaf| Ok(asked.of(leaf.object.bind(py), &leaf.leaf)?.0));
        let kinds = kinds.collect::<PyResult<Vec<MemoryKind>>>()?;
        let held = Held::new(self.leaves.iter().map(|leaf| leaf.object.clone_ref(py)).collect());
        let launched = py.detach(|| self.launch(held, &kinds, &ways, memory.as_ref()));
        released::drain(py);
        let running = match (launched, memory.as_ref().and_then(|memory| memory.take_error())) {
            (_, Some(error)) => return Err(error),
            (Err(error), None) => {
                return Err(errors::of_leaf(py, &error, |index| path_of(self.leaves.get(index)?.number)));
            }
            (Ok(running), None) => running,
        };
        let mut chunks = memory.map(|memory| memory.take_chunks()).unwrap_or_default().into_iter();
        for (target, running) in self.targets.into_iter().zip(running) {
            settle(&self.leaves, target, running, &mut chunks)?;
        }
        Ok(())
    }

    /// PyTorch's memory, if results lie there.
    fn memory(&self, request: Request) -> Option<Arc<TorchMemory>> {
        let only = if self.targets.len() == 1 { Some(request.target) } else { None };
        let is_pinned = request.is_pinned(self.from);
        (!request.own_memory).then(|| Arc::new(TorchMemory::new(only, is_pinned)))
    }

    /// For each target the stream that the copy runs on, and one that it comes behind.
    fn ways(&self, py: Python<'_>, torch: Option<&Torch>) -> PyResult<Vec<(Option<Stream>, Option<Stream>)>> {
        let way = |target: &&mut Target| {
            let ordering = match torch {
                Some(torch) if !target.request.own_memory || torch.has_begun(py)? => Some(torch),
                _ => None,
            };
            let (stream, behind) = streams(py, ordering, target.request.target, self.from)?;
            Ok((stream, target.request.stream_of_leaves(py, self.from)?.or(behind)))
        };
        self.targets.iter().map(way).collect()
    }

    /// Needs no GIL; PyTorch's memory takes it, which is asked for on this thread.
    fn launch(
        &self,
        held: Held,
        kinds: &[MemoryKind],
        ways: &[(Option<Stream>, Option<Stream>)],
        memory: Option<&Arc<TorchMemory>>,
    ) -> Result<Vec<Running>> {
        let mut current = Vec::with_capacity(ways.len());
        for (stream, behind) in ways {
            if let (Some(stream), Some(behind)) = (stream, behind) {
                stream.wait_stream(behind)?;
            }
            current.extend(stream.as_ref().map(Stream::enter));
        }
        let devices = self.targets.iter().map(|target| target.request.target.device());
        let devices = devices.collect::<Result<Vec<Device>>>()?;
        let casts = casts_of(&self.leaves);
        let sources =
            lend(&self.leaves, kinds, held, self.from, &casts, &|leaf| leaf.leaf.order != Order::Strided)?;
        let options = self.options(&casts, memory);
        let how = self.targets.first().is_some_and(|target| target.request.how.background);
        let started = match how {
            true => start_copy_to_all(sources, &devices, options),
            false => start_copy_to_all(sources, &devices, options.clone().background(BackgroundWork::Never))
                .or_else(
                    // What the caller's thread cannot do without waiting is done by threads of the library after all.
                    |failed| match failed.into_parts() {
                        (Error::Busy { .. }, Some(sources)) => {
                            drop(memory.map(|memory| memory.take_chunks()));
                            start_copy_to_all(sources, &devices, options)
                        }
                        (error, sources) => Err(CopyError::new(error, sources)),
                    },
                ),
        };
        // The last one that was entered is left first.
        while current.pop().is_some() {}
        Ok(started?)
    }

    fn options(&self, casts: &[Cast], memory: Option<&Arc<TorchMemory>>) -> CopyOptions {
        let Some(Target { request, .. }) = self.targets.first() else { return CopyOptions::default() };
        let mut options = CopyOptions::default()
            .policy(CopyPolicy::Always)
            .pinned_staging(request.how.pinned_staging)
            .packing(request.packing.on)
            .packed_multiple(NonZero::new(request.packing.alignment).unwrap_or(NonZero::<usize>::MIN))
            .max_chunk_bytes(request.packing.max_chunk)
            .max_packed_bytes(LARGEST_PACKED);
        if let Some(memory) = memory {
            options = options.allocator(memory.clone());
        }
        casts.iter().fold(options, |options, cast| options.cast(*cast))
    }
}

/// Says in the slots of a target what they have come to.
fn settle(
    leaves: &[Typed],
    target: &mut Target,
    running: Running,
    chunks: &mut dyn Iterator<Item = (Py<PyAny>, usize)>,
) -> PyResult<()> {
    let no_place = || PyRuntimeError::new_err("the library does not say where a result lies");
    let placements = running.placements().ok_or_else(no_place)?;
    let is_own = target.request.own_memory;
    let taken: Vec<(Py<PyAny>, usize)> =
        if is_own { Vec::new() } else { chunks.take(placements.chunks()).collect() };
    for ((index, leaf), placement) in leaves.iter().enumerate().zip(placements.iter()) {
        let mut to = leaf.to.clone();
        if placement.is_some_and(|placement| !placement.is_contiguous) && leaf.leaf.order == Order::Strided {
            // It keeps its gaps.
            to.numbers = leaf.leaf.numbers.clone();
            to.order = Order::Dense;
        }
        target.slots[leaf.number] = if is_own {
            Slot::Leaf(At::own(target.started.running.len(), index, 0), to)
        } else {
            let placement = placement.ok_or_else(no_place)?;
            let (_, shift) = taken.get(placement.chunk).ok_or_else(no_place)?;
            let chunk = target.started.chunks.len() + placement.chunk;
            Slot::Leaf(At::Part { chunk, offset: shift + placement.offset }, to)
        };
    }
    target.started.chunks.extend(taken.into_iter().map(|(chunk, _)| chunk));
    target.started.running.push(running);
    Ok(())
}
