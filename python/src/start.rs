//! From a structure of Python to copies that run.

use std::mem;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use transship::{Event, MemoryKind, Stream};

use crate::by_place::{OfPlace, by_place};
use crate::errors;
use crate::gather::Gather;
use crate::give_up;
use crate::kinds::Kinds;
use crate::leaf_slots::{At, Slot};
use crate::on_source;
use crate::pieces::{Joins, Piece};
use crate::place::Place;
use crate::plan::{self, Packing, Size, To};
use crate::released::{self, Held};
use crate::torch::Torch;
use crate::transfer::{Beside, Group, How, Launched, Memory, Running, Source};

/// What one call asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub target: Place,
    pub packing: Packing,
    pub how: How,
    /// Whether results lie in memory of the library, and not of PyTorch.
    pub own_memory: bool,
    /// The driver's handle of a stream of the target that leaves there come behind: where the copy runs on another one than they were made on.
    pub behind: Option<usize>,
}

impl Request {
    /// Whether results of leaves from there are page-locked.
    pub fn is_pinned(self, from: Place) -> bool {
        self.target == Place::Host && from != Place::Host && self.how.pinned_staging
    }

    /// What leaves from there come behind, if the caller has said so.
    pub fn stream_of_leaves(self, py: Python<'_>, from: Place) -> PyResult<Option<Stream>> {
        let handle = self.behind.filter(|_| from == self.target && from != Place::Host);
        // SAFETY: as PyTorch's in `streams`.
        let stream = handle.map(|handle| unsafe { from.stream(handle) }).transpose();
        stream.map_err(|error| errors::of(py, &error))
    }

    /// Whether leaves from there go from one device to another.
    fn goes_between(self, from: Place) -> bool {
        from != Place::Host && self.target != Place::Host && from != self.target
    }
}

/// What was started.
#[derive(Default)]
pub struct Started {
    /// What the parts in the slots are parts of.
    pub chunks: Vec<Py<PyAny>>,
    /// The copies: of each place that leaves come from one, or several.
    pub running: Vec<Running>,
    /// What some of them come behind.
    pub before: Vec<Running>,
    /// How long it took to plan, and to allocate what is filled.
    pub plan: Duration,
    /// How long it took to start the copies.
    pub launch: Duration,
    /// Whether they fill memory that the caller has.
    pub fills: bool,
    /// The point of PyTorch's stream behind what PyTorch has copied itself, if it has.
    pub by_torch: Option<Event>,
}

/// Starts the copies of all leaves in `slots`, and says there where each goes.
pub fn start(
    py: Python<'_>,
    torch: Option<&Torch>,
    request: Request,
    slots: &mut [Slot],
) -> PyResult<Started> {
    let mut started = Started::default();
    let torch_fills = torch.filter(|_| !request.own_memory);
    let kinds = Kinds::now(torch);
    for OfPlace { place: from, leaves, sizes } in
        by_place(py, torch_fills, request.target, request.packing, slots)?
    {
        let call = Call { py, torch, request, from, leaves: &leaves, kinds: &kinds };
        if let Err(error) = start_part(call, &sizes, slots, &mut started) {
            // Their memory is PyTorch's again: the caller may try once more with less.
            give_up::give_up(py, mem::take(&mut started.running))?;
            return Err(error);
        }
    }
    Ok(started)
}

fn start_part(call: Call<'_, '_>, sizes: &[Size], slots: &mut [Slot], started: &mut Started) -> PyResult<()> {
    let begin = Instant::now();
    let planned = Planned::new(call, sizes, slots)?;
    let is_planned = Instant::now();
    planned.start(call, slots, started)?;
    started.plan += is_planned - begin;
    started.launch += is_planned.elapsed();
    Ok(())
}

/// What is asked for, of the leaves of one place.
#[derive(Clone, Copy)]
struct Call<'a, 'py> {
    py: Python<'py>,
    torch: Option<&'a Torch>,
    request: Request,
    from: Place,
    /// Their numbers among the slots.
    leaves: &'a [usize],
    kinds: &'a Kinds<'a>,
}

/// Where the leaves of one place go.
struct Planned {
    /// For each leaf its memory, and the offset there.
    places: Vec<To>,
    /// Chunks, and then memory of single leaves: an object of PyTorch's each.
    memory: Vec<Allocated>,
    chunks: usize,
    /// The leaves in the order in which they are copied: those of a device by where they are.
    order: Vec<usize>,
    /// So many of them, the first, go to chunks.
    packed: usize,
}

/// Leaves that are about to be copied.
struct Taken {
    pieces: Vec<Piece>,
    gathers: Vec<Gather>,
    /// For each leaf the number of its piece, and the offset in it, in bytes; where results lie in memory of the library.
    in_pieces: Vec<(usize, usize)>,
    sources: Vec<Py<PyAny>>,
}

struct Allocated {
    /// An object of PyTorch's and its address; `None` for memory of the library, which is allocated later.
    object: Option<(Py<PyAny>, u64)>,
    /// The same on the device that the leaves are on, for those that are gathered there.
    beside: Option<(Py<PyAny>, u64)>,
    bytes: usize,
}

impl Planned {
    fn new(call: Call<'_, '_>, sizes: &[Size], slots: &[Slot]) -> PyResult<Self> {
        let Call { py, torch, request, from, kinds, .. } = call;
        let pinned = request.is_pinned(from);
        let plan = match from {
            // What a worker has packed already goes as it lies.
            Place::Host if !kinds.are_in_slots(sizes.iter().filter(|leaf| leaf.is_packable())) => {
                plan::pack(sizes, request.packing)
            }
            _ => plan::pack_by_address(sizes, request.packing),
        };
        let first = plan.order.first().filter(|_| !plan.chunks.is_empty() && request.goes_between(from));
        let gathers = first.is_some_and(|first| on_source::gathers(&sizes[*first], from, request.target));
        let mut planned = Self {
            places: plan.places,
            memory: Vec::new(),
            chunks: plan.chunks.len(),
            order: plan.order,
            packed: plan.packed,
        };
        let torch = if request.own_memory { None } else { Some(torch_of(torch)?) };
        for bytes in plan.chunks {
            let allocate = |place| torch.map(|torch| torch.allocate(py, bytes, place, pinned)).transpose();
            let object = allocate(request.target)?.map(unbound);
            // Without room there the leaves go one by one.
            let beside = if gathers { allocate(from).ok().flatten().map(unbound) } else { None };
            planned.memory.push(Allocated { object, beside, bytes });
        }
        planned.allocate_alone(call, torch, slots)?;
        Ok(planned)
    }

    /// Memory for each leaf that goes to no chunk.
    fn allocate_alone(&mut self, call: Call<'_, '_>, torch: Option<&Torch>, slots: &[Slot]) -> PyResult<()> {
        let Call { py, request, from, leaves, .. } = call;
        let copied = |position: &usize| match &slots[leaves[*position]] {
            Slot::Leaf(At::Source(_), leaf) => Some((*position, leaf.copied())),
            _ => None,
        };
        let (positions, alone): (Vec<_>, Vec<_>) =
            self.order[self.packed..].iter().filter_map(copied).unzip();
        let pinned = request.is_pinned(from);
        let made =
            torch.map(|torch| torch.allocate_like_each(py, &alone, request.target, pinned)).transpose()?;
        let mut made = made.into_iter().flatten();
        for (position, leaf) in positions.into_iter().zip(alone) {
            let object = made.next().map(unbound);
            self.places[position] = To { memory: self.memory.len(), offset: 0 };
            self.memory.push(Allocated { object, beside: None, bytes: leaf.bytes });
        }
        Ok(())
    }

    /// Starts the copy, and says in the slots what the leaves come to. On an error the slots are of no use any more.
    fn start(self, call: Call<'_, '_>, slots: &mut [Slot], started: &mut Started) -> PyResult<()> {
        let Call { py, torch, request, from, leaves, .. } = call;
        let kind = match request.target {
            Place::Host if request.is_pinned(from) => MemoryKind::Pinned,
            Place::Host => MemoryKind::Pageable,
            _ => MemoryKind::Device,
        };
        let locking = Some(from).filter(|_| request.is_pinned(from));
        let mut memory: Vec<Memory> =
            self.memory.iter().map(|memory| memory.lend(py, kind, locking)).collect();
        // What has never used a GPU has no order there.
        let in_its_order =
            torch.map(|torch| Ok::<_, PyErr>(!request.own_memory || torch.has_begun(py)?)).transpose()?;
        let ordering = torch.filter(|_| in_its_order == Some(true));
        let (stream, behind) = streams(py, ordering, request.target, from)?;
        let behind = request.stream_of_leaves(py, from)?.or(behind);
        let Taken { pieces, gathers, in_pieces, sources } = self.take(call, slots, started)?;
        for piece in &pieces {
            if let Some(leaf) = &piece.strided {
                memory[piece.to.memory].make_like(leaf);
            }
        }
        let group = Group { from, pieces, gathers, sources: Held::new(sources), memory, stream, behind };
        let launched = py.detach(|| group.start(request.target, request.how));
        released::drain(py);
        let Launched { running, before, results } = launched.map_err(|error| errors::of(py, &error))?;
        if request.own_memory {
            for (number, (piece, within)) in leaves.iter().zip(in_pieces) {
                if let Slot::Leaf(at @ At::Own { .. }, _) = &mut slots[*number] {
                    *at = At::own(started.running.len(), results[piece].0, results[piece].1 + within);
                }
            }
        }
        started.running.push(running);
        started.before.extend(before);
        started
            .chunks
            .extend(self.memory.into_iter().take(self.chunks).filter_map(|chunk| Some(chunk.object?.0)));
        Ok(())
    }

    /// Takes the leaves out of the slots.
    fn take(&self, call: Call<'_, '_>, slots: &mut [Slot], started: &Started) -> PyResult<Taken> {
        let Call { py, from, leaves, kinds, .. } = call;
        let is_own = call.request.own_memory;
        // What is small is staged whatever memory it is in; what lies in slots may go as one piece.
        let gathered = if from == Place::Host && !is_own && !kinds.has_slots() { self.packed } else { 0 };
        let mut taken = Taken {
            pieces: Vec::with_capacity(leaves.len() - gathered),
            gathers: Vec::new(),
            in_pieces: if is_own { vec![(0, 0); leaves.len()] } else { Vec::new() },
            sources: Vec::with_capacity(leaves.len()),
        };
        self.gather(gathered, call, slots, started.chunks.len(), &mut taken);
        for position in self.order[gathered..].iter().copied() {
            let (slot, to) = (&mut slots[leaves[position]], self.places[position]);
            let Slot::Leaf(at, leaf) = slot else { continue };
            let goes_to = match &self.memory[to.memory].object {
                None => At::own(started.running.len(), 0, 0),
                Some(_) => At::Part { chunk: started.chunks.len() + to.memory, offset: to.offset },
            };
            let object = match mem::replace(at, goes_to) {
                At::Source(object) => object,
                other => {
                    *at = other;
                    continue;
                }
            };
            let (kind, joins) = match from {
                Place::Host => {
                    let (kind, slot) = kinds.of(object.bind(py), leaf)?;
                    (kind, slot.map_or(Joins::Nothing, Joins::InSlot))
                }
                _ => (MemoryKind::Device, Joins::OnDevice),
            };
            let in_piece = taken.add(Piece::of(leaf, kind, joins, to));
            if is_own {
                taken.in_pieces[position] = in_piece;
            }
            taken.sources.push(object);
            if to.memory >= self.chunks
                && let Some((object, _)) = &self.memory[to.memory].object
            {
                *slot = Slot::There(object.clone_ref(py));
            }
        }
        Ok(taken)
    }
}

impl Planned {
    /// Takes the first leaves, so many, which go to chunks, out of the slots. The first chunk has this number among those of the call.
    fn gather(&self, leaves: usize, call: Call<'_, '_>, slots: &mut [Slot], first: usize, taken: &mut Taken) {
        let about = leaves.div_ceil(self.chunks.max(1));
        for position in &self.order[..leaves] {
            let (slot, To { memory, offset }) = (&mut slots[call.leaves[*position]], self.places[*position]);
            let Slot::Leaf(at @ At::Source(_), leaf) = slot else { continue };
            match taken.gathers.last_mut() {
                Some(gather) if gather.memory == memory => gather.push(leaf, offset),
                _ => {
                    let mut gather = Gather::of(memory, about);
                    gather.push(leaf, offset);
                    taken.gathers.push(gather);
                }
            }
            if let At::Source(object) = mem::replace(at, At::Part { chunk: first + memory, offset }) {
                taken.sources.push(object);
            }
        }
    }
}

impl Taken {
    /// The number of the piece, and the offset in it.
    fn add(&mut self, piece: Piece) -> (usize, usize) {
        if let Some(before) = self.pieces.last_mut()
            && before.join(&piece)
        {
            let within = piece.to.offset - before.to.offset;
            return (self.pieces.len() - 1, within);
        }
        self.pieces.push(piece);
        (self.pieces.len() - 1, 0)
    }
}

impl Allocated {
    fn lend(&self, py: Python<'_>, kind: MemoryKind, locking: Option<Place>) -> Memory {
        let source = match &self.object {
            Some((object, address)) => Source::Lent(*address, kind, Held::new(vec![object.clone_ref(py)])),
            None => Source::Own(locking),
        };
        let beside = self.beside.as_ref().map(|(object, address)| Beside {
            address: *address,
            bytes: self.bytes,
            held: Held::new(vec![object.clone_ref(py)]),
        });
        Memory { beside, ..Memory::of_bytes(source, self.bytes) }
    }
}

fn unbound((object, address): (Bound<'_, PyAny>, u64)) -> (Py<PyAny>, u64) {
    (object.unbind(), address)
}

fn torch_of(torch: Option<&Torch>) -> PyResult<&Torch> {
    torch.ok_or_else(|| PyRuntimeError::new_err("memory of PyTorch is asked for, which is not imported"))
}

/// The stream to copy on, and one that it comes behind. With PyTorch that is its current one. Without, it is one of the library's own, and
/// comes behind the default stream of the source: in its order others have handed their tensors out.
pub fn streams(
    py: Python<'_>,
    torch: Option<&Torch>,
    target: Place,
    from: Place,
) -> PyResult<(Option<Stream>, Option<Stream>)> {
    let of_torch = |torch: &Torch, place: Place| {
        // A device that is not there is an error of the library's, as it is without PyTorch.
        let handle = torch.current_stream(py, place).map_err(|error| match place.device() {
            Ok(_) => error,
            Err(missing) => errors::of(py, &missing),
        })?;
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
