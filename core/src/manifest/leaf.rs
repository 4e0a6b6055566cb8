//! One tensor of a manifest.

use std::borrow::Cow;

use crate::tensor::layout::Layout;

/// One tensor of a [`Manifest`](crate::Manifest).
#[derive(Debug)]
pub struct ManifestLeaf<'a> {
    pub(crate) path: &'a str,
    pub(crate) layout: Cow<'a, Layout>,
    pub(crate) number: usize,
    pub(crate) place: Option<LeafPlace>,
}

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeafPlace {
    pub(crate) chunk: usize,
    pub(crate) offset: usize,
}

impl ManifestLeaf<'_> {
    /// Where it is in its structure, as [`TensorPath`](crate::TensorPath) prints it: `.layers["attn.q"][3]`.
    pub fn path(&self) -> &str {
        self.path
    }

    /// Which one of its manifest it is, counted from 0, in the order of the paths.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its type, shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The chunk that it lies in, by its number; `None` if it has no elements.
    pub fn chunk(&self) -> Option<usize> {
        self.place.map(|place| place.chunk)
    }

    /// Where in its chunk it begins, in bytes; 0 if it has no elements.
    pub fn offset(&self) -> usize {
        self.place.map_or(0, |place| place.offset)
    }
}
