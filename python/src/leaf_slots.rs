//! The leaves of a structure, and what they come to.

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::leaf::Leaf;
use crate::place::Place;
use crate::room::Room;

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
    /// In memory of the library: the number of the copy and of the tensor in it, and the offset there in bytes. Made by [`own`](Self::own).
    Own { copy: u32, tensor: u32, offset: usize },
}

impl At {
    /// In memory of the library. A number that does not fit is that of no tensor: who asks for the result gets an error.
    pub fn own(copy: usize, tensor: usize, offset: usize) -> Self {
        let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self::Own { copy: small(copy), tensor: small(tensor), offset }
    }
}

/// For the leaves of a structure.
pub static ROOM: Room = Room::new();

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

// There are many, and the compiler moves what is larger by a call of `memcpy`.
const _: () = assert!(size_of::<Slot>() <= 128);
