//! The calls whose leaves the library knows by their types.

use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;
use transship::Cast;

use crate::casts::Casts;
use crate::destinations::Destinations;
use crate::dtype;
use crate::errors;
use crate::give_up;
use crate::handle::Handle;
use crate::into::{self, Filling};
use crate::leaf_slots::{At, Slot};
use crate::named_device;
use crate::ours::{Ours, not_given};
use crate::plan::Packing;
use crate::released;
use crate::shipment::{self, Target};
use crate::start::{Request, Started};
use crate::torch::Torch;
use crate::transfer::How;
use crate::tree::Skeleton;
use crate::typed::Typed;

/// `transship.start_copy_to_all`, and `transship.start_copy` with casts: a handle for each of `devices`. The options are those of
/// `start_copy`; `refused` are types that results must not have, and why.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are those of start_copy")]
#[pyo3(signature = (tree, devices, *, cast, refused, own_memory, convert, present, packing, alignment, max_chunk_bytes, pinned,
    background, always, behind=None))]
pub fn start_copies(
    tree: &Bound<'_, PyAny>,
    devices: Vec<String>,
    cast: Option<Bound<'_, PyAny>>,
    refused: Vec<String>,
    own_memory: bool,
    convert: Option<Py<PyAny>>,
    present: Option<Bound<'_, PyAny>>,
    packing: bool,
    alignment: usize,
    max_chunk_bytes: usize,
    pinned: bool,
    background: bool,
    always: bool,
    behind: Option<usize>,
) -> PyResult<Vec<Handle>> {
    let py = tree.py();
    released::drain(py);
    let torch = if own_memory { Torch::loaded(py)? } else { Some(Torch::import(py)?) };
    let casts = Casts::new(cast)?;
    let begin = Instant::now();
    let (mut skeletons, mut targets) = (Vec::new(), Vec::new());
    let mut chosen: Vec<Option<(Cast, usize)>> = Vec::new();
    let (mut first_read, is_read_again) = (Vec::new(), devices.len() > 1);
    for device in devices {
        let target = named_device::opened(py, &device)?;
        let mut ours = Ours::new(py, torch, target, always, present.clone())?.with_originals();
        let skeleton = Skeleton::of(tree, &mut ours)?;
        if skeletons.is_empty() {
            first_read = if is_read_again { as_read(&ours.slots) } else { Vec::new() };
            chosen = choose(&skeleton, &ours, &casts)?;
        } else if as_read(&ours.slots) != first_read {
            // Casts were chosen for what was read first, and each target gets what all get.
            return Err(PyRuntimeError::new_err("the structure has changed while it was read"));
        }
        check_types(py, &skeleton, &ours.slots, &chosen, &refused)?;
        let packing = Packing { on: packing, alignment: alignment.max(1), max_chunk: max_chunk_bytes.max(1) };
        let how = How { pinned_staging: pinned, background };
        let request = Request { target, packing, how, own_memory, behind };
        let slots = settled(ours, &chosen, always)?;
        let by_torch = torch.map(|torch| torch.behind_copies(py, Some(target))).transpose()?.flatten();
        targets.push(Target { request, slots, started: Started { by_torch, ..Started::default() } });
        skeletons.push(skeleton);
    }
    let read = begin.elapsed();
    let path_of = |number| skeletons.first().and_then(|skeleton| skeleton.written_path(py, number));
    shipment::start(py, torch, &mut targets, &chosen, &path_of)?;
    let launch = begin.elapsed() - read;
    let handle = |(skeleton, target): (Skeleton, Target)| {
        let Target { request, slots, started } = target;
        let started = Started { launch, ..started };
        let convert = convert.as_ref().map(|convert| convert.clone_ref(py));
        Handle::new((skeleton, slots), started, read, Some(request.target), convert)
    };
    Ok(skeletons.into_iter().zip(targets).map(handle).collect())
}

/// `transship.start_copy_into`.
#[pyfunction]
#[pyo3(signature = (tree, into, *, cast, pinned, background))]
pub fn start_copy_into(
    tree: &Bound<'_, PyAny>,
    into: &Bound<'_, PyAny>,
    cast: Option<Bound<'_, PyAny>>,
    pinned: bool,
    background: bool,
) -> PyResult<Handle> {
    let py = tree.py();
    released::drain(py);
    let torch = Torch::loaded(py)?;
    let casts = Casts::new(cast)?;
    let begin = Instant::now();
    let mut rules = Destinations::new(py, torch)?;
    let skeleton_into = Skeleton::of(into, &mut rules)?;
    let found = rules.found;
    let target = into::target_of(&found, &|number| skeleton_into.written_path(py, number))?;
    let mut ours = Ours::new(py, torch, target, true, None)?.with_originals();
    let skeleton = Skeleton::of(tree, &mut ours)?;
    if skeleton.is_no_structure() {
        return Err(not_filled(tree));
    }
    let pairs = skeleton.pair(py, &skeleton_into)?;
    let mut found: Vec<Option<_>> = found.into_iter().map(Some).collect();
    let destinations: Option<Vec<_>> = pairs.iter().map(|number| found.get_mut(*number)?.take()).collect();
    let destinations =
        destinations.ok_or_else(|| PyRuntimeError::new_err("a leaf without a place to go to"))?;
    let chosen = choose(&skeleton, &ours, &casts)?;
    let read = begin.elapsed();
    let path_of = |number| skeleton.written_path(py, number);
    let ordering = match torch {
        Some(torch) if torch.has_begun(py)? => Some(torch),
        _ => None,
    };
    let how = How { pinned_staging: pinned, background };
    let filling = Filling { target, how, ordering, path_of: &path_of };
    let leaves = typed_leaves(py, &ours.slots, &chosen);
    into::check_for_torch(py, torch, &filling, &ours.slots, &destinations)?;
    let by_torch = |number: usize| matches!(ours.slots.get(number), Some(Slot::There(_)));
    let groups = into::plan(&filling, leaves, &destinations, &by_torch)?;
    // Before anything is written, since a leaf may fail when others are.
    if let Some(torch) = torch {
        let written = destinations.iter().map(|into| into.object.bind(py).clone());
        let written: Vec<_> = written.filter(|object| torch.is_tensor(object)).collect();
        torch.mark_written(py, &written)?;
    }
    let mut started = into::start(py, torch, &filling, groups, &destinations)?;
    if let Err(error) = into::fill_by_torch(py, torch, &filling, &ours.slots, &destinations) {
        give_up::give_up(py, started.running)?;
        return Err(error);
    }
    if let Some(torch) = torch {
        started.by_torch = torch.behind_copies(py, Some(target))?;
    }
    let started = Started { launch: begin.elapsed() - read, fills: true, ..started };
    let slots = destinations.into_iter().map(|into| Slot::There(into.object)).collect();
    Ok(Handle::new((skeleton, slots), started, read, Some(target), None))
}

/// The error for what goes through: it would be said to be copied, and nothing would be.
fn not_filled(tree: &Bound<'_, PyAny>) -> PyErr {
    let class = tree.get_type();
    PyTypeError::new_err(format!(
        "a {class} is no tensor, and no container that is known here: pass what it holds, as list() has it, or the state_dict() of a module"
    ))
}

/// The cast of each leaf that gets another type, and that type.
fn choose(skeleton: &Skeleton, ours: &Ours<'_>, casts: &Casts<'_>) -> PyResult<Vec<Option<(Cast, usize)>>> {
    let originals = ours.originals.as_deref().unwrap_or_default();
    let Some(first) = originals.first() else { return Ok(Vec::new()) };
    let py = first.py();
    let paths = if casts.asks() { skeleton.paths(py)? } else { Vec::new() };
    let none = PyTuple::empty(py);
    let choose = |(number, (slot, object)): (usize, (&Slot, &Bound<'_, PyAny>))| {
        let element = element_of(slot, object)?;
        let path = paths.get(number).unwrap_or(&none);
        let Some(to) = casts.of(element, path, object)? else { return Ok(None) };
        match (slot, element) {
            (Slot::Leaf(At::Source(_), _), Some(element)) => {
                Ok(to.from(element)?.map(|cast| (cast, to.element)))
            }
            (_, element) if element == Some(to.element) => Ok(None),
            _ => Err(PyTypeError::new_err("a tensor that PyTorch has to copy itself is not cast")),
        }
    };
    let leaves = ours.slots.iter().zip(originals).enumerate();
    leaves.map(|leaf| choose(leaf).map_err(|error| at(py, skeleton, leaf.0, error))).collect()
}

/// The type and shape of each leaf; `None` for what PyTorch copies itself.
fn as_read(slots: &[Slot]) -> Vec<Option<(usize, SmallVec<[i64; 4]>)>> {
    let read = |slot: &Slot| match slot {
        Slot::Leaf(At::Source(_), leaf) => Some((leaf.element(), SmallVec::from_slice(leaf.shape()))),
        _ => None,
    };
    slots.iter().map(read).collect()
}

/// The type of a leaf's elements; that of what PyTorch copies itself is known by its name.
fn element_of(slot: &Slot, object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    match slot {
        Slot::Leaf(At::Source(_), leaf) => Ok(Some(leaf.element())),
        _ => {
            let name = object.getattr("dtype")?.str()?.to_string();
            Ok(dtype::number_of_name(name.trim_start_matches("torch.")))
        }
    }
}

/// Says where the leaf is.
fn at(py: Python<'_>, skeleton: &Skeleton, number: usize, error: PyErr) -> PyErr {
    if let Some(path) = skeleton.written_path(py, number).filter(|path| !path.is_empty()) {
        errors::note(py, &error, &format!("in the structure to be copied, at {path}"));
    }
    error
}

fn check_types(
    py: Python<'_>,
    skeleton: &Skeleton,
    slots: &[Slot],
    chosen: &[Option<(Cast, usize)>],
    refused: &[String],
) -> PyResult<()> {
    for (number, (slot, cast)) in slots.iter().zip(chosen).enumerate() {
        let Slot::Leaf(At::Source(_), leaf) = slot else { continue };
        let element = cast.map_or(leaf.element(), |(_, element)| element);
        let name = dtype::ALL[element].name;
        if refused.iter().any(|refused| refused == name) {
            return Err(at(py, skeleton, number, not_given(name)));
        }
    }
    Ok(())
}

/// What stays as it is and is on the target already goes through, unless all is copied.
fn settled(ours: Ours<'_>, chosen: &[Option<(Cast, usize)>], always: bool) -> PyResult<Vec<Slot>> {
    let (target, originals) = (ours.target(), ours.originals.as_deref().unwrap_or_default());
    let mut slots = Vec::with_capacity(ours.slots.len());
    for ((slot, original), cast) in ours.slots.iter().zip(originals).zip(chosen) {
        slots.push(match slot {
            Slot::Leaf(At::Source(_), leaf) if leaf.place == target && cast.is_none() && !always => {
                ours.presented(original)?
            }
            slot => slot.clone_ref(original.py()),
        });
    }
    Ok(slots)
}

fn typed_leaves(py: Python<'_>, slots: &[Slot], chosen: &[Option<(Cast, usize)>]) -> Vec<Typed> {
    let mut leaves = Vec::with_capacity(slots.len());
    for (number, (slot, cast)) in slots.iter().zip(chosen).enumerate() {
        if let Slot::Leaf(At::Source(object), leaf) = slot {
            leaves.push(Typed::new(number, object.clone_ref(py), leaf.clone(), *cast));
        }
    }
    leaves
}
