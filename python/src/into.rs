//! Copies into memory that the program holds.

use std::collections::HashSet;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use transship::{
    BackgroundWork, CopyOptions, Error, Layout, MemoryKind, RawMemory, Result, SharedOwner, Stream, Tensor,
};

use crate::destinations::Destination;
use crate::errors;
use crate::give_up;
use crate::kinds::Kinds;
use crate::leaf::{Leaf, Order};
use crate::leaf_slots::Slot;
use crate::place::Place;
use crate::released::{self, Held};
use crate::shipment::PathOf;
use crate::start::{Started, streams};
use crate::torch::Torch;
use crate::transfer::{self, How, Running};
use crate::typed::{Typed, casts_of, in_groups, layout_of, lend};

/// What one call asks for.
pub struct Filling<'a> {
    pub target: Place,
    pub how: How,
    /// PyTorch, if its streams order the copy.
    pub ordering: Option<&'a Torch>,
    pub path_of: PathOf<'a>,
}

/// Leaves of one place that one copy carries.
pub type PlaceGroup = (Place, Vec<Typed>);

/// The copies that bring each leaf into its destination, of those that have the same numbers; `by_torch` are those that PyTorch will fill. Fails if they
/// do not fit, or meet.
pub fn plan(
    filling: &Filling<'_>,
    leaves: Vec<Typed>,
    destinations: &[Destination],
    by_torch: &dyn Fn(usize) -> bool,
) -> PyResult<Vec<PlaceGroup>> {
    for leaf in &leaves {
        check(leaf, &destinations[leaf.number]).map_err(|text| refused(filling, leaf.number, &text))?;
    }
    let mut groups: Vec<PlaceGroup> = Vec::new();
    for leaf in leaves.into_iter().filter(|leaf| leaf.leaf.bytes > 0) {
        match groups.iter_mut().find(|(from, _)| *from == leaf.leaf.place) {
            Some((_, group)) => group.push(leaf),
            None => groups.push((leaf.leaf.place, vec![leaf])),
        }
    }
    let mut groups: Vec<PlaceGroup> = groups
        .into_iter()
        .flat_map(|(from, leaves)| in_groups(leaves).into_iter().map(move |group| (from, group)))
        .collect();
    let filled_again = check_apart(filling, &groups, destinations, by_torch)?;
    if !filled_again.is_empty() {
        groups.iter_mut().for_each(|(_, leaves)| leaves.retain(|leaf| !filled_again.contains(&leaf.number)));
        groups.retain(|(_, leaves)| !leaves.is_empty());
    }
    Ok(groups)
}

/// Starts what was planned. After an error nothing is written any more.
pub fn start(
    py: Python<'_>,
    torch: Option<&Torch>,
    filling: &Filling<'_>,
    groups: Vec<PlaceGroup>,
    destinations: &[Destination],
) -> PyResult<Started> {
    let mut started = Started::default();
    for (from, leaves) in groups {
        let group = Group { from, leaves, destinations };
        match group.start(py, torch, filling) {
            Ok(running) => started.running.push(running),
            Err(error) => {
                give_up::give_up(py, started.running)?;
                return Err(error);
            }
        }
    }
    Ok(started)
}

/// Fails unless a copy of the leaf has the shape and type of its destination. That is said in words.
fn check(leaf: &Typed, into: &Destination) -> std::result::Result<(), String> {
    let said = |leaf: &Leaf| format!("shape {:?} of {}", leaf.shape(), leaf.type_of_elements().name);
    if leaf.to.shape() == into.leaf.shape() && leaf.to.element() == into.leaf.element() {
        return Ok(());
    }
    let (from, to) = (leaf.to.element(), into.leaf.element());
    let cast = if from == leaf.leaf.element() && from != to { "; a type is changed by cast=" } else { "" };
    Err(format!("{} to copy, but {} to copy into{cast}", said(&leaf.to), said(&into.leaf)))
}

fn refused(filling: &Filling<'_>, number: usize, text: &str) -> PyErr {
    let path = (filling.path_of)(number).filter(|path| !path.is_empty());
    PyValueError::new_err(format!("{}: {text}", path.as_deref().unwrap_or("the structure")))
}

/// Fails if destinations of two copies lie in each other, and if a leaf is read from where another one is written. Those of one copy are
/// looked at by the library. What comes back are leaves that need no copy: a later one goes to the same destination, as where weights are tied.
fn check_apart(
    filling: &Filling<'_>,
    groups: &[PlaceGroup],
    destinations: &[Destination],
    by_torch: &dyn Fn(usize) -> bool,
) -> PyResult<HashSet<usize>> {
    /// Where bytes are that a copy touches, and by which copy they are written, if they are.
    type Touched = (u64, u64, usize, Option<usize>);
    let mut touched: Vec<Touched> = Vec::new();
    for (copy, (from, leaves)) in groups.iter().enumerate() {
        for leaf in leaves {
            let into = &destinations[leaf.number].leaf;
            touched.push((
                into.address,
                into.address.saturating_add(into.span() as u64),
                leaf.number,
                Some(copy),
            ));
            if *from == filling.target {
                let end = leaf.leaf.address.saturating_add(leaf.leaf.span() as u64);
                touched.push((leaf.leaf.address, end, leaf.number, None));
            }
        }
    }
    for (number, Destination { leaf: into, .. }) in destinations.iter().enumerate() {
        if into.bytes > 0 && by_torch(number) {
            // PyTorch fills one after the other, as if it were one copy.
            touched.push((
                into.address,
                into.address.saturating_add(into.span() as u64),
                number,
                Some(groups.len()),
            ));
        }
    }
    touched.sort_unstable();
    // How far what was looked at goes: of what is read, and by the copy that writes it. All of it begins before what comes next.
    let (mut read, mut written) = (0, vec![0; groups.len() + 1]);
    let (mut last, mut filled_again): (Option<Touched>, _) = (None, HashSet::new());
    for (start, end, number, copy) in touched {
        let twin = last.filter(|last| copy.is_some() && (last.0, last.1) == (start, end)).map(|last| last.2);
        let filled_before = twin.filter(|before| {
            is_same_place(&destinations[*before].leaf, &destinations[number].leaf)
                // PyTorch fills after all copies were started.
                && (!by_torch(*before) || by_torch(number))
        });
        filled_again.extend(filled_before);
        let is_written = written.iter().enumerate().any(|(other, end)| *end > start && Some(other) != copy);
        let meets = filled_before.is_none() && (is_written || copy.is_some() && read > start);
        if meets {
            let text = "its memory, or the one to copy into, lies within that of another tensor that is copied, or of its own source; destinations \
                        in each other's gaps come from one device and by one cast of each type";
            return Err(refused(filling, number, text));
        }
        if copy.is_some() {
            last = Some((start, end, number, copy));
        }
        let furthest = match copy {
            Some(copy) => &mut written[copy],
            None => &mut read,
        };
        *furthest = end.max(*furthest);
    }
    Ok(filled_again)
}

/// Whether these are the same elements. Both begin at one address.
fn is_same_place(one: &Leaf, other: &Leaf) -> bool {
    (one.element(), &one.numbers) == (other.element(), &other.numbers)
}

/// Leaves of one place that one copy of the library carries.
struct Group<'a> {
    from: Place,
    leaves: Vec<Typed>,
    destinations: &'a [Destination],
}

/// Memory that several destinations are parts of.
struct Piece {
    start: u64,
    end: u64,
    allocation: Option<u64>,
    /// Numbers in the group.
    parts: Vec<usize>,
}

impl Group<'_> {
    fn start(&self, py: Python<'_>, torch: Option<&Torch>, filling: &Filling<'_>) -> PyResult<Running> {
        let asked = Kinds::now(torch);
        let kind = |object: &Py<PyAny>, leaf: &Leaf| match leaf.place {
            Place::Host => asked.of(object.bind(py), leaf).map(|(kind, _)| kind),
            _ => Ok(MemoryKind::Device),
        };
        let mut kinds = (Vec::new(), Vec::new());
        let mut kept = (Vec::new(), Vec::new());
        for leaf in &self.leaves {
            let into = &self.destinations[leaf.number];
            kinds.0.push(kind(&leaf.object, &leaf.leaf)?);
            kinds.1.push(kind(&into.object, &into.leaf)?);
            kept.0.push(leaf.object.clone_ref(py));
            kept.1.push(into.keeper.clone_ref(py));
        }
        let (sources, targets) = (Held::new(kept.0), Held::new(kept.1));
        let (target, how) = (filling.target, filling.how);
        let (stream, behind) = streams(py, filling.ordering, filling.target, self.from)?;
        // Without PyTorch the copy runs on a stream of the library's own, and others hand their tensors out in order of the default one.
        let handed_out = match (filling.ordering, target) {
            (Some(_), _) | (_, Place::Host) => None,
            // SAFETY: the default stream is never destroyed.
            (None, device) => Some(unsafe { device.stream(0) }.map_err(|error| errors::of(py, &error))?),
        };
        let way = (stream, [behind, handed_out]);
        let launched =
            py.detach(|| self.launch((target, how), (sources, &kinds.0), (targets, &kinds.1), way));
        released::drain(py);
        let path_of = |index| (filling.path_of)(self.leaves.get::<usize>(index)?.number);
        launched.map_err(|error| errors::of_leaf(py, &error, path_of))
    }

    fn launch(
        &self,
        (target, how): (Place, How),
        (held, kinds): (Held, &[MemoryKind]),
        (held_targets, target_kinds): (Held, &[MemoryKind]),
        (stream, before): (Option<Stream>, [Option<Stream>; 2]),
    ) -> Result<Running> {
        if let Some(stream) = &stream {
            before.iter().flatten().try_for_each(|before| stream.wait_stream(before))?;
        }
        let casts = casts_of(&self.leaves);
        let is_flat = |leaf: &Typed| lie_alike(&leaf.leaf, &self.destinations[leaf.number].leaf);
        let sources = lend(&self.leaves, kinds, held, self.from, &casts, &is_flat)?;
        let layouts = self.leaves.iter().map(|leaf| {
            let dtype = match leaf.cast {
                Some(cast) => cast.to_dtype(),
                None => leaf.carrier(&casts).ok_or(Error::Taken)?,
            };
            layout_of(&self.destinations[leaf.number].leaf, dtype, is_flat(leaf))
        });
        let layouts = layouts.collect::<Result<Vec<Layout>>>()?;
        let targets = self.open(target, held_targets, target_kinds, layouts)?;
        let background = if how.background { BackgroundWork::Auto } else { BackgroundWork::Never };
        let mut options = CopyOptions::default().pinned_staging(how.pinned_staging).background(background);
        if let Some(stream) = &stream {
            options = options.stream(stream);
        }
        options = casts.iter().fold(options, |options, cast| options.cast(*cast));
        transfer::start(sources, targets, options)
    }

    /// The destinations as tensors that the library may fill. Those that are parts of one allocation share it.
    fn open(
        &self,
        target: Place,
        held: Held,
        kinds: &[MemoryKind],
        layouts: Vec<Layout>,
    ) -> Result<Vec<Tensor>> {
        let owner = SharedOwner::new(held, &target.device()?);
        let mut opened = Vec::with_capacity(layouts.len());
        for piece in self.pieces() {
            let of_parts = || piece.parts.iter().map(|number| kinds.get(*number).copied());
            let kind = match target {
                Place::Host if of_parts().all(|kind| kind == Some(MemoryKind::Pinned)) => MemoryKind::Pinned,
                Place::Host => MemoryKind::Pageable,
                _ => MemoryKind::Device,
            };
            let memory = RawMemory::new(piece.start, (piece.end - piece.start) as usize, kind);
            let part = |number: &usize| {
                let address = self.into(*number).address;
                ((address - piece.start) as usize, layouts[*number].clone())
            };
            // SAFETY: the owner keeps what this memory is of. The program has asked for it to be written, and was told to leave it alone
            // until the copy is done. What lies between two parts is of the same allocation, and is left alone.
            let tensors = unsafe { owner.parts_mut(memory, piece.parts.iter().map(part)) }?;
            opened.extend(piece.parts.iter().copied().zip(tensors));
        }
        opened.sort_unstable_by_key(|(number, _)| *number);
        Ok(opened.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// The memory of the destinations: what lies in one allocation, or overlaps, is one piece.
    fn pieces(&self) -> Vec<Piece> {
        let mut order: Vec<usize> = (0..self.leaves.len()).collect();
        order.sort_unstable_by_key(|number| self.into(*number).address);
        let mut pieces: Vec<Piece> = Vec::new();
        for number in order {
            let leaf = self.into(number);
            let end = leaf.address.saturating_add(leaf.span() as u64);
            let allocation = self.destinations[self.leaves[number].number].allocation;
            let last = pieces.last_mut().filter(|last| {
                leaf.address < last.end || allocation.is_some() && last.allocation == allocation
            });
            match last {
                Some(last) => {
                    last.end = last.end.max(end);
                    last.parts.push(number);
                }
                None => pieces.push(Piece { start: leaf.address, end, allocation, parts: vec![number] }),
            }
        }
        pieces
    }

    fn into(&self, number: usize) -> &Leaf {
        &self.destinations[self.leaves[number].number].leaf
    }
}

/// Whether the elements of two leaves of the same shape lie in the same order, without gaps.
fn lie_alike(leaf: &Leaf, other: &Leaf) -> bool {
    match (leaf.order, other.order) {
        (Order::Contiguous, Order::Contiguous) => true,
        (Order::Dense, Order::Dense) => leaf.strides() == other.strides(),
        _ => false,
    }
}

/// Fails unless PyTorch can fill what it has to copy itself, as far as that shows before it does.
pub fn check_for_torch(
    py: Python<'_>,
    torch: Option<&Torch>,
    filling: &Filling<'_>,
    slots: &[Slot],
    destinations: &[Destination],
) -> PyResult<()> {
    for (number, (slot, into)) in slots.iter().zip(destinations).enumerate() {
        let Slot::There(object) = slot else { continue };
        let object = object.bind(py);
        let into = into.object.bind(py);
        if !torch.is_some_and(|torch| torch.is_tensor(into)) {
            let text = "a tensor that PyTorch has to copy itself is copied into tensors of PyTorch only";
            // A `TypeError`, as where PyTorch refuses it.
            let error = PyTypeError::new_err(text);
            note_where(py, filling, number, &error);
            return Err(error);
        }
        let is_alike = object.getattr("shape")?.eq(into.getattr("shape")?)?
            && object.getattr("dtype")?.eq(into.getattr("dtype")?)?;
        if !is_alike {
            return Err(refused(filling, number, "another shape or type than the one to copy into"));
        }
    }
    Ok(())
}

/// PyTorch fills what it has to copy itself.
pub fn fill_by_torch(
    py: Python<'_>,
    torch: Option<&Torch>,
    filling: &Filling<'_>,
    slots: &[Slot],
    destinations: &[Destination],
) -> PyResult<()> {
    let Some(torch) = torch else { return Ok(()) };
    for (number, (slot, into)) in slots.iter().zip(destinations).enumerate() {
        if let Slot::There(object) = slot {
            let filled = torch.fill(object.bind(py), into.object.bind(py));
            filled.inspect_err(|error| note_where(py, filling, number, error))?;
        }
    }
    Ok(())
}

/// Says in an error where in the structure its tensor is.
#[cold]
fn note_where(py: Python<'_>, filling: &Filling<'_>, number: usize, error: &PyErr) {
    if let Some(path) = (filling.path_of)(number).filter(|path| !path.is_empty()) {
        errors::note(py, error, &format!("in the structure to be copied, at {path}"));
    }
}

/// The device of the destinations.
pub fn target_of(destinations: &[Destination], path_of: PathOf<'_>) -> PyResult<Place> {
    let target = destinations.first().map_or(Place::Host, |first| first.leaf.place);
    match destinations.iter().position(|one| one.leaf.place != target) {
        None => Ok(target),
        Some(number) => {
            let path = path_of(number).unwrap_or_default();
            Err(PyValueError::new_err(format!(
                "{path} lies on another device than the first tensor to copy into; copy into each apart"
            )))
        }
    }
}
