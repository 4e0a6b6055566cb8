//! Leaves that the library knows by their types, so that it can cast them.

use pyo3::prelude::*;
use transship::{Cast, DType, Error, Layout, MemoryKind, RawMemory, Result, SharedOwner, Tensor};

use crate::leaf::Leaf;
use crate::place::Place;
use crate::released::Held;
use crate::transfer::sizes;

/// A leaf that is copied, and what its elements become.
pub struct Typed {
    /// Its number in the structure.
    pub number: usize,
    pub object: Py<PyAny>,
    pub leaf: Leaf,
    pub cast: Option<Cast>,
    /// As its copy is.
    pub to: Leaf,
}

/// Leaves in groups in each of which a type is cast in one way, and those that keep theirs can be given one that is not cast.
pub fn in_groups(leaves: Vec<Typed>) -> Vec<Vec<Typed>> {
    let mut groups: Vec<(Vec<Cast>, Vec<Typed>)> = vec![(Vec::new(), Vec::new())];
    let (cast, kept): (Vec<Typed>, Vec<Typed>) = leaves.into_iter().partition(|leaf| leaf.cast.is_some());
    for leaf in cast {
        let Some(cast) = leaf.cast else { continue };
        let takes = |casts: &[Cast]| {
            casts.iter().all(|known| known.from_dtype() != cast.from_dtype() || *known == cast)
        };
        match groups.iter_mut().find(|(casts, _)| takes(casts)) {
            Some((casts, group)) => {
                if !casts.contains(&cast) {
                    casts.push(cast);
                }
                group.push(leaf);
            }
            None => groups.push((vec![cast], vec![leaf])),
        }
    }
    for leaf in kept {
        match groups.iter_mut().find(|(casts, _)| leaf.carrier(casts).is_some()) {
            Some((_, group)) => group.push(leaf),
            None => groups.push((Vec::new(), vec![leaf])),
        }
    }
    groups.into_iter().map(|(_, group)| group).filter(|group| !group.is_empty()).collect()
}

/// The casts of a group, each once.
pub fn casts_of(leaves: &[Typed]) -> Vec<Cast> {
    let mut casts: Vec<Cast> = Vec::new();
    for cast in leaves.iter().filter_map(|leaf| leaf.cast) {
        if !casts.contains(&cast) {
            casts.push(cast);
        }
    }
    casts
}

impl Typed {
    /// `cast` says what becomes of its elements, and of which type they are then.
    pub fn new(number: usize, object: Py<PyAny>, leaf: Leaf, cast: Option<(Cast, usize)>) -> Self {
        let to = leaf.copied_as(cast.map_or(leaf.element(), |(_, element)| element));
        Self { number, object, leaf, cast: cast.map(|(cast, _)| cast), to }
    }

    /// How the library is told of its elements. `casts` are those of the whole copy: elements that stay as they are have the size of
    /// their type, and one that is not cast. `is_flat`: row by row or not, they lie without gaps and go in the order in which they lie.
    pub fn layout(&self, casts: &[Cast], is_flat: bool) -> Result<Layout> {
        let dtype = match self.cast {
            Some(cast) => cast.from_dtype(),
            None => self.carrier(casts).ok_or(Error::Taken)?,
        };
        layout_of(&self.leaf, dtype, is_flat)
    }

    /// A type of the size of its elements that is not cast.
    pub fn carrier(&self, casts: &[Cast]) -> Option<DType> {
        let types: &[DType] = match self.leaf.type_of_elements().bytes() {
            1 => &[DType::U8, DType::I8, DType::F8E4M3FN],
            2 => &[DType::U16, DType::I16, DType::F16, DType::BF16],
            4 => &[DType::U32, DType::I32, DType::F32],
            8 => &[DType::U64, DType::I64, DType::Complex64],
            _ => &[DType::Complex128],
        };
        types.iter().copied().find(|dtype| casts.iter().all(|cast| cast.from_dtype() != *dtype))
    }
}

/// A leaf with elements of type `dtype`, as the library is told of it.
pub fn layout_of(leaf: &Leaf, dtype: DType, is_flat: bool) -> Result<Layout> {
    if is_flat {
        return Layout::contiguous(dtype, &[leaf.bytes / leaf.type_of_elements().bytes()]);
    }
    Layout::strided(dtype, &sizes(leaf.shape()), &sizes(leaf.strides()))
}

/// The leaves as tensors of the library; `is_flat` says which go in the order in which they lie.
pub fn lend(
    leaves: &[Typed],
    kinds: &[MemoryKind],
    held: Held,
    from: Place,
    casts: &[Cast],
    is_flat: &dyn Fn(&Typed) -> bool,
) -> Result<Vec<Tensor>> {
    let owner = SharedOwner::new(held, &from.device()?);
    let lend = |(leaf, kind): (&Typed, &MemoryKind)| {
        let layout = leaf.layout(casts, is_flat(leaf))?;
        let (end, limit) = (layout.span(), leaf.leaf.span());
        if end > limit {
            // Whatever a caller got wrong, no more is read than the leaf has.
            return Err(Error::OutOfRange { what: "bytes of a leaf", start: 0, end, limit });
        }
        let kind = if from == Place::Host { *kind } else { MemoryKind::Device };
        let memory = RawMemory::new(leaf.leaf.address, layout.span(), kind);
        // SAFETY: the owner keeps the object that this memory is of. That others may write it meanwhile is said in the documentation, and
        // is the same for every library that takes tensors of Python: it is read through raw pointers.
        unsafe { owner.tensor(memory, layout) }
    };
    leaves.iter().zip(kinds).map(lend).collect()
}
