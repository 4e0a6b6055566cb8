//! Reading a manifest that a stranger may have written: it never asks for more memory than a few machine words for each of its
//! bytes, which is what a chunk and a dimension have that are written in one byte.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::manifest::format::{HASH_BYTES, HEAD, LARGEST_EXPANSION, STRIDED, dtype, hash};
use crate::manifest::leaf::{LeafPlace, ManifestLeaf};
use crate::tensor::layout::Layout;

const LARGEST: usize = isize::MAX.unsigned_abs();

/// What the bytes of a manifest say in front of its leaves.
pub(crate) struct Front {
    pub(crate) chunks: Vec<usize>,
    pub(crate) leaves: usize,
    /// Where the first leaf is written.
    pub(crate) start: usize,
}

/// Reads all of it.
pub(crate) fn read(bytes: &[u8]) -> Result<Front> {
    let mut input = Input { left: body(bytes)?, at: 0 };
    if input.take(HEAD.len())? != HEAD {
        return Err(invalid(0, "it does not begin as a manifest of version 1 does"));
    }
    let chunks = chunks(&mut input)?;
    let count = input.count("it has fewer tensors than it says")?;
    let start = input.at;
    let mut leaves = Leaves::new(input, count);
    let mut expanded = 0_usize;
    while let Some(leaf) = leaves.next()? {
        expanded = expanded.saturating_add(leaf.path.len());
        let fits = fits(&leaf, &chunks);
        if !fits {
            return Err(invalid(leaves.input.at, "a tensor does not lie in its chunk"));
        }
    }
    let end = leaves.input.at;
    if !leaves.input.left.is_empty() {
        return Err(invalid(end, "there are bytes behind the last tensor"));
    }
    if expanded > bytes.len().saturating_mul(LARGEST_EXPANSION) {
        return Err(invalid(end, "its paths are too long for its tensors"));
    }
    Ok(Front { chunks, leaves: count, start })
}

/// All but the hash at the end, which must be right.
fn body(bytes: &[u8]) -> Result<&[u8]> {
    let Some((body, found)) = bytes.split_last_chunk::<HASH_BYTES>() else {
        return Err(invalid(bytes.len(), "it is too short"));
    };
    if hash(body).to_le_bytes() != *found {
        return Err(invalid(body.len(), "its hash is that of other bytes; it was changed or cut on its way"));
    }
    Ok(body)
}

fn chunks(input: &mut Input<'_>) -> Result<Vec<usize>> {
    let count = input.count("it has fewer chunks than it says")?;
    let mut chunks = Vec::with_capacity(count);
    for _ in 0..count {
        let (at, bytes) = (input.at, input.number()?);
        if bytes > LARGEST {
            return Err(invalid(at, "a chunk is larger than any memory"));
        }
        chunks.push(bytes);
    }
    Ok(chunks)
}

/// Whether it lies in its chunk; one without elements has none.
fn fits(leaf: &ManifestLeaf<'_>, chunks: &[usize]) -> bool {
    match leaf.place {
        None => leaf.layout.nbytes() == 0,
        Some(_) if leaf.layout.nbytes() == 0 => false,
        Some(LeafPlace { chunk, offset }) => {
            let end = offset.checked_add(leaf.layout.span());
            chunks.get(chunk).is_some_and(|bytes| end.is_some_and(|end| end <= *bytes))
        }
    }
}

/// The tensors of a manifest, one after the other.
pub(crate) struct Leaves<'a> {
    input: Input<'a>,
    left: usize,
    number: usize,
    path: String,
}

impl<'a> Leaves<'a> {
    fn new(input: Input<'a>, count: usize) -> Self {
        Self { input, left: count, number: 0, path: String::new() }
    }

    /// Those of bytes that were [read](read), which begin at `start`.
    pub(crate) fn of(bytes: &'a [u8], start: usize, count: usize) -> Self {
        let end = bytes.len().saturating_sub(HASH_BYTES);
        Self::new(Input { left: bytes.get(start..end).unwrap_or_default(), at: start }, count)
    }

    pub(crate) fn next(&mut self) -> Result<Option<ManifestLeaf<'_>>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.next_path()?;
        let layout = self.input.layout()?;
        let place = match self.input.number()?.checked_sub(1) {
            None => None,
            Some(chunk) => Some(LeafPlace { chunk, offset: self.input.number()? }),
        };
        let number = self.number;
        self.number = number.saturating_add(1);
        Ok(Some(ManifestLeaf { path: &self.path, layout: Cow::Owned(layout), number, place }))
    }

    /// The path of the next tensor. It is not before the last one, and shares all that it can with that: equal manifests have equal bytes.
    fn next_path(&mut self) -> Result<()> {
        let (at, shared, length) = (self.input.at, self.input.number()?, self.input.number()?);
        let rest = std::str::from_utf8(self.input.take(length)?)
            .map_err(|_| invalid(at, "a path is no text of UTF-8"))?;
        let Some(given_up) = self.path.get(shared..) else {
            return Err(invalid(at, "a path shares more with the one before than that has"));
        };
        let is_next = match (given_up.chars().next(), rest.chars().next()) {
            (Some(before), Some(letter)) => before < letter,
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !is_next {
            return Err(invalid(at, "paths are not in order, or share less than they could"));
        }
        self.path.truncate(shared);
        self.path.push_str(rest);
        Ok(())
    }
}

/// What is still to be read.
struct Input<'a> {
    left: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn layout(&mut self) -> Result<Layout> {
        let at = self.at;
        let kind = self.take(1)?.first().copied().unwrap_or_default();
        let dtype =
            dtype(kind & !STRIDED).ok_or_else(|| invalid(at, "there is no element type of this number"))?;
        let rank = self.count("a shape has fewer dimensions than it says")?;
        let shape = self.numbers(rank)?;
        let layout = match kind & STRIDED {
            0 => Layout::contiguous(dtype, &shape),
            _ => Layout::strided(dtype, &shape, &self.numbers(rank)?),
        };
        let layout = layout.map_err(|_| invalid(at, "a tensor has more bytes than any memory"))?;
        if layout.is_contiguous() != (kind & STRIDED == 0) {
            return Err(invalid(at, "a tensor in one run has strides"));
        }
        Ok(layout)
    }

    fn numbers(&mut self, count: usize) -> Result<SmallVec<[usize; 4]>> {
        (0..count).map(|_| self.number()).collect()
    }

    /// How many things follow, of a byte each at the least.
    fn count(&mut self, too_few: &'static str) -> Result<usize> {
        let (at, count) = (self.at, self.number()?);
        if count > self.left.len() { Err(invalid(at, too_few)) } else { Ok(count) }
    }

    fn number(&mut self) -> Result<usize> {
        let at = self.at;
        let too_large = || invalid(at, "a number is larger than a machine word");
        let mut number = 0_usize;
        for shift in (0..usize::BITS).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            let bits = usize::from(byte & 0x7f);
            let moved = bits.checked_shl(shift).ok_or_else(too_large)?;
            if moved.checked_shr(shift) != Some(bits) {
                return Err(too_large());
            }
            number |= moved;
            match byte {
                0 if shift > 0 => return Err(invalid(at, "a number is longer than it needs to be")),
                0x80.. => {}
                _ => return Ok(number),
            }
        }
        Err(too_large())
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((taken, left)) = self.left.split_at_checked(bytes) else {
            return Err(invalid(self.at, "it ends too early"));
        };
        self.left = left;
        self.at = self.at.saturating_add(bytes);
        Ok(taken)
    }
}

#[cold]
fn invalid(at: usize, reason: &'static str) -> Error {
    Error::InvalidManifest { at, reason }
}
