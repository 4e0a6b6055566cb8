//! The leaves of a structure, and what they come to.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::leaf::Leaf;
use crate::place::Place;

/// A leaf of the structure, and what it comes to.
pub enum Slot {
    /// It is there already: the leaf itself, or memory that is being filled.
    There(Py<PyAny>),
    /// A leaf that is copied: where it is, and what it is like.
    Leaf(At, Leaf),
}

/// Where a leaf is.
pub enum At {
    /// To be copied out of this object.
    Source(Py<PyAny>),
    /// A part of a chunk that is being filled: its number, and the offset in bytes.
    Part { chunk: usize, offset: usize },
    /// In memory of the library: the number of the copy and of the tensor in it, and the offset there in bytes.
    Own { copy: usize, tensor: usize, offset: usize },
}

/// How many leaves the last structure had. Mostly the next one has as many.
static LEAVES: AtomicUsize = AtomicUsize::new(0);
/// Room is made for so many at most before they are there.
const MOST_EXPECTED: usize = 1 << 16;

/// Room for the leaves of a structure.
pub fn room() -> Vec<Slot> {
    Vec::with_capacity(LEAVES.load(Ordering::Relaxed).min(MOST_EXPECTED))
}

/// A structure had so many leaves.
pub fn note(leaves: usize) {
    LEAVES.store(leaves, Ordering::Relaxed);
}

impl Slot {
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::There(object) => Self::There(object.clone_ref(py)),
            Self::Leaf(at, leaf) => {
                let at = match *at {
                    At::Source(ref object) => At::Source(object.clone_ref(py)),
                    At::Part { chunk, offset } => At::Part { chunk, offset },
                    At::Own { copy, tensor, offset } => At::Own { copy, tensor, offset },
                };
                Self::Leaf(at, leaf.clone())
            }
        }
    }

    /// Shows the garbage collector its object.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::There(object) | Self::Leaf(At::Source(object), _) => visit.call(object),
            Self::Leaf(..) => Ok(()),
        }
    }

    /// Whether its copy is in memory of the library.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Leaf(At::Own { .. }, _))
    }

    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Leaf(At::Source(_), leaf) => Some(leaf.place),
            _ => None,
        }
    }
}
