//! From a structure of Python to copies that run.

use pyo3::prelude::*;
use transship::{MemoryKind, Stream};

use crate::errors;
use crate::leaf::{Leaf, Order};
use crate::place::Place;
use crate::plan::{self, LARGEST_PACKED, Packing, Size};
use crate::released::Held;
use crate::torch::Torch;
use crate::transfer::{Group, How, Item, Memory, Running, Source, To};

/// What one call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub target: Place,
    pub packing: Packing,
    pub how: How,
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
}

/// Starts the copies of all leaves in `slots`, and says where each goes. The chunks come back, which the parts are in.
pub fn start(
    py: Python<'_>,
    torch: &Torch,
    request: Request,
    slots: &mut [Slot],
) -> PyResult<(Vec<Py<PyAny>>, Vec<Running>)> {
    let (mut chunks, mut running) = (Vec::new(), Vec::new());
    for slot in slots.iter_mut() {
        slot.settle_empty(py, torch, request)?;
    }
    for from in places(slots) {
        let leaves: Vec<usize> =
            (0..slots.len()).filter(|number| slots[*number].place() == Some(from)).collect();
        let planned = Planned::new(py, torch, request, from, &leaves, slots)?;
        running.push(planned.start(py, torch, request, from, &leaves, slots)?);
        planned.settle(py, &leaves, slots, &mut chunks);
    }
    Ok((chunks, running))
}

/// Where the leaves of one place go.
struct Planned {
    /// For each leaf its memory, and the offset there.
    places: Vec<To>,
    /// Chunks, and then memory of single leaves: an object of PyTorch's each.
    memory: Vec<Allocated>,
    chunks: usize,
}

struct Allocated {
    object: Py<PyAny>,
    address: u64,
    bytes: usize,
}

impl Planned {
    fn new(
        py: Python<'_>,
        torch: &Torch,
        request: Request,
        from: Place,
        leaves: &[usize],
        slots: &[Slot],
    ) -> PyResult<Self> {
        let pinned = request.is_pinned(from);
        let sizes: Vec<Size> = leaves.iter().filter_map(|number| slots[*number].size()).collect();
        let plan = plan::pack(&sizes, request.packing);
        let mut planned = Self { places: Vec::new(), memory: Vec::new(), chunks: plan.chunks.len() };
        for bytes in plan.chunks {
            let object = torch.allocate(py, bytes, request.target, pinned)?;
            planned.memory.push(Allocated::new(torch, object, bytes)?);
        }
        for (number, place) in leaves.iter().zip(plan.places) {
            let place = match (place, &slots[*number]) {
                (Some((memory, offset)), _) => To { memory: memory as usize, offset },
                (None, Slot::Leaf(_, leaf)) => {
                    let object = torch.allocate_like(py, &leaf.copied(), request.target, pinned)?;
                    planned.memory.push(Allocated::new(torch, object, leaf.bytes)?);
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
        torch: &Torch,
        request: Request,
        from: Place,
        leaves: &[usize],
        slots: &[Slot],
    ) -> PyResult<Running> {
        let (mut items, mut sources) = (Vec::with_capacity(leaves.len()), Vec::with_capacity(leaves.len()));
        for (number, to) in leaves.iter().zip(&self.places) {
            let Slot::Leaf(object, leaf) = &slots[*number] else { continue };
            let kind = if from == Place::Host { kind_of(object.bind(py), leaf)? } else { MemoryKind::Device };
            items.push(Item { leaf, kind, to: *to });
            sources.push(object.clone_ref(py));
        }
        let kind = match request.target {
            Place::Host if request.is_pinned(from) => MemoryKind::Pinned,
            Place::Host => MemoryKind::Pageable,
            _ => MemoryKind::Device,
        };
        let mut memory: Vec<Memory> = self.memory.iter().map(|memory| memory.lend(py, kind)).collect();
        for item in items.iter().filter(|item| item.leaf.order == Order::Strided) {
            memory[item.to.memory].make_like(item.leaf);
        }
        let (stream, behind) = streams(py, torch, request.target, from)?;
        let group = Group { from, items, sources: Held::new(sources), memory, stream, behind };
        py.detach(|| group.start(request.target, request.how)).map_err(|error| errors::of(py, &error))
    }

    /// Says in the slots what they have come to. The chunks go to those that are there.
    fn settle(self, py: Python<'_>, leaves: &[usize], slots: &mut [Slot], chunks: &mut Vec<Py<PyAny>>) {
        for (number, To { memory, offset }) in leaves.iter().zip(self.places) {
            let slot = &mut slots[*number];
            if memory >= self.chunks {
                *slot = Slot::There(self.memory[memory].object.clone_ref(py));
            } else if let Slot::Leaf(_, leaf) = slot {
                *slot = Slot::Part { chunk: chunks.len() + memory, offset, leaf: leaf.clone() };
            }
        }
        chunks.extend(self.memory.into_iter().take(self.chunks).map(|chunk| chunk.object));
    }
}

impl Allocated {
    fn new(torch: &Torch, object: Bound<'_, PyAny>, bytes: usize) -> PyResult<Self> {
        let address = torch.address_of(&object)?;
        Ok(Self { object: object.unbind(), address, bytes })
    }

    fn lend(&self, py: Python<'_>, kind: MemoryKind) -> Memory {
        Memory::of_bytes(
            Source::Lent(self.address, kind, Held::new(vec![self.object.clone_ref(py)])),
            self.bytes,
        )
    }
}

/// The stream to copy on, which is PyTorch's current one, and one that it comes behind.
fn streams(
    py: Python<'_>,
    torch: &Torch,
    target: Place,
    from: Place,
) -> PyResult<(Option<Stream>, Option<Stream>)> {
    let current = |place: Place| match place {
        Place::Host => Ok(None),
        place => {
            let handle = torch.current_stream(py, place)?;
            // SAFETY: PyTorch destroys no stream of its pools. Who gives it one of somebody else's keeps that while he copies.
            unsafe { place.stream(handle) }.map(Some).map_err(|error| errors::of(py, &error))
        }
    };
    match (current(target)?, current(from)?) {
        (None, from) => Ok((from, None)),
        (target, from) => Ok((target, from)),
    }
}

/// Whether the memory of a leaf on the host is page-locked. Asked where that matters: small ones are staged anyway.
fn kind_of(object: &Bound<'_, PyAny>, leaf: &Leaf) -> PyResult<MemoryKind> {
    let is_pinned = leaf.bytes > LARGEST_PACKED && object.call_method0("is_pinned")?.is_truthy()?;
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
    fn place(&self) -> Option<Place> {
        match self {
            Self::Leaf(_, leaf) => Some(leaf.place),
            _ => None,
        }
    }

    fn size(&self) -> Option<Size> {
        let Self::Leaf(_, leaf) = self else { return None };
        let is_contiguous = leaf.order == Order::Contiguous;
        Some(Size { bytes: leaf.bytes, element: leaf.type_of_elements().bytes(), is_contiguous })
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
