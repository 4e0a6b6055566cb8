//! The first tensor in which two structures differ.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::manifest::known_tree::looks_like;
use crate::manifest::leaf::{LeafPlace, ManifestLeaf};
use crate::manifest::reader::Leaves;
use crate::tensor::layout::Layout;

const NOTHING: &str = "no tensor";

/// Fails unless both have the same tensors.
pub(crate) fn compare(mut own: Leaves<'_>, mut other: Leaves<'_>) -> Result<()> {
    loop {
        let (own, other) = (own.next()?, other.next()?);
        let (own, other) = (own.as_ref().map(known), other.as_ref().map(known));
        if own.is_none() && other.is_none() {
            return Ok(());
        }
        check(own, other)?;
    }
}

/// Fails unless two tensors, each the next one of its structure, are the same one.
pub(crate) fn check(own: Option<(&str, &Layout)>, other: Option<(&str, &Layout)>) -> Result<()> {
    let (path, own, other) = match (own, other) {
        (None, None) => return Ok(()),
        (Some((path, layout)), None) => (path, tensor(layout), NOTHING.to_owned()),
        (None, Some((path, layout))) => (path, NOTHING.to_owned(), tensor(layout)),
        (Some((path, own)), Some((other_path, other))) => match path.cmp(other_path) {
            Ordering::Less => (path, tensor(own), NOTHING.to_owned()),
            Ordering::Greater => (other_path, NOTHING.to_owned(), tensor(other)),
            Ordering::Equal if looks_like(own, other) => return Ok(()),
            Ordering::Equal => (path, tensor(own), tensor(other)),
        },
    };
    Err(Error::ManifestMismatch { path: path.to_owned(), own, other })
}

/// The error of two with the same tensors, which lie otherwise.
pub(crate) fn compare_places(
    (mut own, own_chunks): (Leaves<'_>, &[usize]),
    (mut other, other_chunks): (Leaves<'_>, &[usize]),
) -> Result<()> {
    let mut last = String::new();
    while let (Some(one), Some(two)) = (own.next()?, other.next()?) {
        if (one.place, &one.layout) != (two.place, &two.layout) {
            return Err(lies(one.path.to_owned(), &one, &two));
        }
        last = one.path.to_owned();
    }
    let (own, other) = (sizes(own_chunks), sizes(other_chunks));
    Err(Error::ManifestMismatch { path: last, own, other })
}

fn known<'a>(leaf: &'a ManifestLeaf<'_>) -> (&'a str, &'a Layout) {
    (leaf.path, &*leaf.layout)
}

fn tensor(layout: &Layout) -> String {
    format!("{} {:?}", layout.dtype(), layout.shape())
}

fn lies(path: String, own: &ManifestLeaf<'_>, other: &ManifestLeaf<'_>) -> Error {
    let other = format!("{} (tensors over the same memory share a place)", place(other));
    Error::ManifestMismatch { path, own: place(own), other }
}

fn place(leaf: &ManifestLeaf<'_>) -> String {
    let strides = leaf.layout.explicit_strides().map(|strides| format!(" with strides {strides:?}"));
    let strides = strides.unwrap_or_default();
    match leaf.place {
        None => "no elements".to_owned(),
        Some(LeafPlace { chunk, offset }) => format!("byte {offset} of chunk {chunk}{strides}"),
    }
}

fn sizes(chunks: &[usize]) -> String {
    format!("chunks of {chunks:?} bytes")
}
