//! From a structure of Python to copies that run.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use transship::{MemoryKind, Stream};

use crate::errors;
use crate::leaf::{Leaf, Order};
use crate::place::Place;
use crate::plan::{self, LARGEST_PACKED, Packing, Size};
use crate::released::{self, Held};
use crate::torch::Torch;
use crate::transfer::{Group, How, Item, Launched, Memory, Running, Source, To};

/// What one call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub target: Place,
    pub packing: Packing,
    pub how: How,
    /// Whether results lie in memory of the library, and not of PyTorch.
    pub own_memory: bool,
}

impl Request {
    /// Whether results of leaves from there are page-locked.
    fn is_pinned(self, from: Place) -> bool {
        self.target == Place::Host && from != Place::Host && self.how.pinned_staging
    }
}

/// A leaf of the structure, and what it comes to.
pub enum Slot {
    /// It is there already: the leaf itself, or memory that is being filled.
    There(Py<PyAny>),
    /// To be copied.
    Leaf(Py<PyAny>, Leaf),
    /// A part of a chunk that is being filled: its number, and the offset in bytes.
    Part { chunk: usize, offset: usize, leaf: Leaf },
    /// In memory of the library: the number of the copy and of the tensor in it, and the offset there in bytes.
    Own { copy: usize, tensor: usize, offset: usize, leaf: Leaf },
}

/// What was started.
#[derive(Default)]
pub struct Started {
    /// What the parts in the slots are parts of.
    pub chunks: Vec<Py<PyAny>>,
    /// A copy for each place that leaves come from.
    pub running: Vec<Running>,
    /// How long it took to plan, and to allocate what is filled.
    pub plan: Duration,
    /// How long it took to start the copies.
    pub launch: Duration,
}

/// Starts the copies of all leaves in `slots`, and says there where each goes.
pub fn start(
    py: Python<'_>,
    torch: Option<&Torch>,
    request: Request,
    slots: &mut [Slot],
) -> PyResult<Started> {
    let mut started = Started::default();
    if let Some(torch) = torch.filter(|_| !request.own_memory) {
        slots.iter_mut().try_for_each(|slot| slot.settle_empty(py, torch, request))?;
    }
    for from in places(slots) {
        let begin = Instant::now();
        let leaves: Vec<usize> =
            (0..slots.len()).filter(|number| slots[*number].place() == Some(from)).collect();
        let planned = Planned::new(py, torch, request, from, &leaves, slots)?;
        let is_planned = Instant::now();
        let Launched { running, results } = planned.start(py, torch, request, from, &leaves, slots)?;
        planned.settle(py, &leaves, &results, slots, &mut started);
        started.running.push(running);
        started.plan += is_planned - begin;
        started.launch += is_planned.elapsed();
    }
    Ok(started)
}

/// Where the leaves of one place go.
struct Planned {
    /// For each leaf its memory, and the offset there.
    places: Vec<To>,
    sizes: Vec<Size>,
    /// Chunks, and then memory of single leaves: an object of PyTorch's each.
    memory: Vec<Allocated>,
    chunks: usize,
}

struct Allocated {
    /// An object of PyTorch's and its address; `None` for memory of the library, which is allocated later.
    object: Option<(Py<PyAny>, u64)>,
    bytes: usize,
}

impl Planned {
    fn new(
        py: Python<'_>,
        torch: Option<&Torch>,
        request: Request,
        from: Place,
        leaves: &[usize],
        slots: &[Slot],
    ) -> PyResult<Self> {
        let pinned = request.is_pinned(from);
        let sizes = leaves.iter().filter_map(|number| slots[*number].size(py, torch).transpose());
        let sizes = sizes.collect::<PyResult<Vec<Size>>>()?;
        let plan = match from {
            Place::Host => plan::pack(&sizes, request.packing),
            _ => plan::pack_side_by_side(&sizes, request.packing),
        };
        let mut planned = Self { places: Vec::new(), sizes, memory: Vec::new(), chunks: plan.chunks.len() };
        let torch = if request.own_memory { None } else { Some(torch_of(torch)?) };
        for bytes in plan.chunks {
            let object = torch.map(|torch| torch.allocate(py, bytes, request.target, pinned)).transpose()?;
            planned.memory.push(Allocated::new(torch.zip(object), bytes)?);
        }
        for (number, place) in leaves.iter().zip(plan.places) {
            let place = match (place, &slots[*number]) {
                (Some((memory, offset)), _) => To { memory: memory as usize, offset },
                (None, Slot::Leaf(_, leaf)) => {
                    let like =
                        |torch: &Torch| torch.allocate_like(py, &leaf.copied(), request.target, pinned);
                    let object = torch.map(like).transpose()?;
                    planned.memory.push(Allocated::new(torch.zip(object), leaf.bytes)?);
                    To { memory: planned.memory.len() - 1, offset: 0 }
                }
                (None, _) => continue,
            };
            planned.places.push(place);
        }
        Ok(planned)
    }

    fn start(
        &self,
        py: Python<'_>,
        torch: Option<&Torch>,
        request: Request,
        from: Place,
        leaves: &[usize],
        slots: &[Slot],
    ) -> PyResult<Launched> {
        let (mut items, mut sources) = (Vec::with_capacity(leaves.len()), Vec::with_capacity(leaves.len()));
        for ((number, to), size) in leaves.iter().zip(&self.places).zip(&self.sizes) {
            let Slot::Leaf(object, leaf) = &slots[*number] else { continue };
            let kind =
                if from == Place::Host { kind_of(torch, object.bind(py), leaf)? } else { MemoryKind::Device };
            items.push(Item { leaf, size: *size, kind, to: *to });
            sources.push(object.clone_ref(py));
        }
        let kind = match request.target {
            Place::Host if request.is_pinned(from) => MemoryKind::Pinned,
            Place::Host => MemoryKind::Pageable,
            _ => MemoryKind::Device,
        };
        let locking = Some(from).filter(|_| request.is_pinned(from));
        let mut memory: Vec<Memory> =
            self.memory.iter().map(|memory| memory.lend(py, kind, locking)).collect();
        for item in items.iter().filter(|item| item.leaf.order == Order::Strided) {
            memory[item.to.memory].make_like(item.leaf);
        }
        // What has never used a GPU has no order there.
        let in_its_order =
            torch.map(|torch| Ok::<_, PyErr>(!request.own_memory || torch.has_begun(py)?)).transpose()?;
        let ordering = torch.filter(|_| in_its_order == Some(true));
        let (stream, behind) = streams(py, ordering, request.target, from)?;
        let group = Group { from, items, sources: Held::new(sources), memory, stream, behind };
        let launched = py.detach(|| group.start(request.target, request.how));
        // What was gathered is not used any more.
        released::drain(py);
        launched.map_err(|error| errors::of(py, &error))
    }

    /// Says in the slots what they have come to. The chunks go to those that are there.
    fn settle(
        self,
        py: Python<'_>,
        leaves: &[usize],
        results: &[(usize, usize)],
        slots: &mut [Slot],
        started: &mut Started,
    ) {
        for ((number, To { memory, offset }), (tensor, at)) in leaves.iter().zip(self.places).zip(results) {
            let slot = &mut slots[*number];
            let Slot::Leaf(_, leaf) = slot else { continue };
            let leaf = leaf.clone();
            *slot = match &self.memory[memory].object {
                None => Slot::Own { copy: started.running.len(), tensor: *tensor, offset: *at, leaf },
                Some((object, _)) if memory >= self.chunks => Slot::There(object.clone_ref(py)),
                Some(_) => Slot::Part { chunk: started.chunks.len() + memory, offset, leaf },
            };
        }
        let chunks = self.memory.into_iter().take(self.chunks);
        started.chunks.extend(chunks.filter_map(|chunk| Some(chunk.object?.0)));
    }
}

impl Allocated {
    fn new(object: Option<(&Torch, Bound<'_, PyAny>)>, bytes: usize) -> PyResult<Self> {
        let with_address = |(torch, object): (&Torch, Bound<'_, PyAny>)| {
            let address = torch.address_of(&object)?;
            Ok::<_, PyErr>((object.unbind(), address))
        };
        Ok(Self { object: object.map(with_address).transpose()?, bytes })
    }

    fn lend(&self, py: Python<'_>, kind: MemoryKind, locking: Option<Place>) -> Memory {
        let source = match &self.object {
            Some((object, address)) => Source::Lent(*address, kind, Held::new(vec![object.clone_ref(py)])),
            None => Source::Own(locking),
        };
        Memory::of_bytes(source, self.bytes)
    }
}

fn torch_of(torch: Option<&Torch>) -> PyResult<&Torch> {
    torch.ok_or_else(|| PyRuntimeError::new_err("memory of PyTorch is asked for, which is not imported"))
}

/// The stream to copy on, and one that it comes behind. With PyTorch that is its current one. Without, it is one of the library's own, and
/// comes behind the default stream of the source: in its order others have handed their tensors out.
fn streams(
    py: Python<'_>,
    torch: Option<&Torch>,
    target: Place,
    from: Place,
) -> PyResult<(Option<Stream>, Option<Stream>)> {
    let of_torch = |torch: &Torch, place: Place| {
        let handle = torch.current_stream(py, place)?;
        // SAFETY: PyTorch destroys no stream of its pools. Who gives it one of somebody else's keeps that while he copies.
        unsafe { place.stream(handle) }.map_err(|error| errors::of(py, &error))
    };
    let of_library = |place: Place, is_source: bool| {
        let stream = match is_source {
            // SAFETY: the default stream is never destroyed.
            true => unsafe { place.stream(0) },
            false => place.own_stream(),
        };
        stream.map_err(|error| errors::of(py, &error))
    };
    let of = |place: Place, is_source: bool| match (place, torch) {
        (Place::Host, _) => Ok(None),
        (_, Some(torch)) => of_torch(torch, place).map(Some),
        (_, None) => of_library(place, is_source).map(Some),
    };
    match (of(target, false)?, of(from, true)?) {
        (None, source @ Some(_)) if torch.is_none() => Ok((of(from, false)?, source)),
        (None, from) => Ok((from, None)),
        (target, from) => Ok((target, from)),
    }
}

/// Whether the memory of a leaf on the host is page-locked. Asked where that matters: small ones are staged anyway.
fn kind_of(torch: Option<&Torch>, object: &Bound<'_, PyAny>, leaf: &Leaf) -> PyResult<MemoryKind> {
    let is_large = leaf.bytes > LARGEST_PACKED && torch.is_some_and(|torch| torch.is_tensor(object));
    let is_pinned = is_large && object.call_method0("is_pinned")?.is_truthy()?;
    Ok(if is_pinned { MemoryKind::Pinned } else { MemoryKind::Pageable })
}

/// Where leaves come from, each once.
fn places(slots: &[Slot]) -> Vec<Place> {
    let mut places: Vec<Place> = slots.iter().filter_map(Slot::place).collect();
    places.sort_unstable();
    places.dedup();
    places
}

impl Slot {
    /// Shows the garbage collector its object.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::There(object) | Self::Leaf(object, _) => visit.call(object),
            Self::Part { .. } | Self::Own { .. } => Ok(()),
        }
    }

    fn place(&self) -> Option<Place> {
        match self {
            Self::Leaf(_, leaf) => Some(leaf.place),
            _ => None,
        }
    }

    /// `None` for what is no leaf to be copied.
    fn size(&self, py: Python<'_>, torch: Option<&Torch>) -> PyResult<Option<Size>> {
        let Self::Leaf(object, leaf) = self else { return Ok(None) };
        let element = leaf.type_of_elements().bytes();
        let may_lie_beside = leaf.place != Place::Host && leaf.bytes <= LARGEST_PACKED;
        let object = object.bind(py);
        let allocation = match torch.filter(|torch| may_lie_beside && torch.is_tensor(object)) {
            Some(_) => {
                let offset: u64 = object.call_method0(intern!(py, "storage_offset"))?.extract()?;
                offset.checked_mul(element as u64).and_then(|offset| leaf.address.checked_sub(offset))
            }
            None => None,
        };
        let is_contiguous = leaf.order == Order::Contiguous;
        Ok(Some(Size { bytes: leaf.bytes, element, is_contiguous, address: leaf.address, allocation }))
    }

    /// Of a leaf without elements nothing is copied.
    fn settle_empty(&mut self, py: Python<'_>, torch: &Torch, request: Request) -> PyResult<()> {
        if let Self::Leaf(_, leaf) = self
            && leaf.bytes == 0
        {
            *self = Self::There(torch.allocate_like(py, &leaf.copied(), request.target, false)?.unbind());
        }
        Ok(())
    }
}
