//! A structure without its bytes: which tensors it has, and where in which chunks they lie, as a text of bytes that another process or machine reads.
//! `docs/MANIFEST.md` has the format.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub(crate) mod difference;
pub(crate) mod entry;
pub(crate) mod format;
pub(crate) mod known_tree;
pub(crate) mod leaf;
pub(crate) mod manifest;
pub(crate) mod one_piece;
pub(crate) mod packed;
pub(crate) mod put_tensors;
pub(crate) mod reader;
pub(crate) mod repeated_packing;
pub(crate) mod repeated_put;
pub(crate) mod resident;
pub(crate) mod seen_at;
pub(crate) mod writer;
