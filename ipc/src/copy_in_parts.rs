//! Copies of many tensors into one piece of memory, the first of which begin while others are still planned.

use transship_core::{
    CopyError, CopyHandle, CopyOptions, Error, Layout, Manifest, RawMemory, Result, SharedOwner, Tensor,
    start_copy_into,
};

use crate::packed::leaf_at;

/// Fewer bytes are copied before the others of their tensors would be planned.
const LEAST_BYTES: usize = 32 << 20;
/// A part has at least so many tensors: each costs some 20 us beside its tensors (a host with two H200s).
const LEAST_TENSORS: usize = 256;
const MOST_PARTS: usize = 8;

/// What went wrong, and the places, unless some of them are lost.
pub(crate) type Failed = (Error, Option<Vec<Tensor>>);

/// The places of tensors in a piece of memory, each at its offset there: in parts, each of which is filled by a copy of its own. Those of one part [share
/// memory](Tensor::shares_memory_with), and those of two do not.
///
/// # Safety
///
/// As [`SharedOwner::parts_mut`], for `memory`. No two places overlap.
pub(crate) unsafe fn places_of(
    tensors: &[(usize, Tensor)],
    owner: &SharedOwner,
    memory: RawMemory,
) -> Result<Vec<Tensor>> {
    let mut places = Vec::with_capacity(tensors.len());
    for part in tensors.chunks(tensors_of_part(tensors)) {
        let place = |(offset, tensor): &(usize, Tensor)| {
            Ok((*offset, Layout::contiguous(tensor.dtype(), tensor.shape())?))
        };
        let part = part.iter().map(place).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller's promise.
        places.extend(unsafe { owner.parts_mut(memory, part)? });
    }
    Ok(places)
}

/// Copies tensors to their places, which are those of `manifest`. Waits until that is done.
///
/// A device begins once the first part is planned, and while the last one is copied, the others are let go of: both take long for thousands of tensors.
pub(crate) fn copy_in_parts(
    tensors: Vec<(usize, Tensor)>,
    places: Vec<Tensor>,
    manifest: &Manifest,
) -> std::result::Result<Vec<Tensor>, Failed> {
    let sizes: Vec<_> = places.chunk_by(Tensor::shares_memory_with).map(<[_]>::len).collect();
    let offsets: Vec<_> = tensors.iter().map(|(offset, _)| *offset).collect();
    let sources = in_parts(tensors, &sizes).map(|part| part.into_iter().map(|(_, tensor)| tensor).collect());
    let parts = sources.zip(in_parts(places, &sizes));
    let begin = |(sources, places)| start_copy_into(sources, places, CopyOptions::default());
    // All of them, before any is waited for.
    let begun: Vec<_> = parts.map(begin).collect();
    let (mut copied, mut failed, mut are_lost) = (Vec::new(), None, false);
    let mut offsets = &offsets[..];
    for (part, size) in begun.into_iter().zip(&sizes) {
        let (of_part, others) = offsets.split_at_checked(*size).unwrap_or_default();
        offsets = others;
        match part.and_then(CopyHandle::wait).map_err(CopyError::into_error_and_destination) {
            Ok(places) => append(&mut copied, places),
            Err((error, places)) => {
                are_lost |= places.is_none();
                append(&mut copied, places.unwrap_or_default());
                let error = located(error, of_part, manifest);
                if failed.is_none() || is_lost(&error) {
                    failed = Some(error);
                }
            }
        }
    }
    match failed {
        None => Ok(copied),
        Some(error) => Err((error, (!are_lost).then_some(copied))),
    }
}

/// Whether nothing may show any more when the copy is over that ended with `error`.
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error, Error::StreamLost { .. } | Error::DeviceLost { .. })
}

/// Lists of so many items. What is one list stays it, and is not copied.
fn in_parts<T>(all: Vec<T>, sizes: &[usize]) -> impl Iterator<Item = Vec<T>> {
    let (mut whole, parted) = if sizes.len() == 1 { (Some(all), Vec::new()) } else { (None, all) };
    let mut parted = parted.into_iter();
    sizes.iter().map(move |size| whole.take().unwrap_or_else(|| parted.by_ref().take(*size).collect()))
}

fn append<T>(all: &mut Vec<T>, part: Vec<T>) {
    if all.is_empty() { *all = part } else { all.extend(part) }
}

/// The same error, about a tensor of the tree and not of a part, whose tensors are to lie at `offsets`.
#[cold]
fn located(error: Error, offsets: &[usize], manifest: &Manifest) -> Error {
    let Error::UnsuitedTensor { index, role, error: reason, .. } = &error else { return error };
    match offsets.get(*index).and_then(|offset| leaf_at(manifest, *offset).ok()) {
        Some((index, path)) => Error::UnsuitedTensor { index, path, role, error: reason.clone() },
        None => error,
    }
}

/// How many tensors a part has.
fn tensors_of_part(tensors: &[(usize, Tensor)]) -> usize {
    let count = tensors.len().max(1);
    let bytes = tensors.iter().fold(0_usize, |bytes, (_, tensor)| bytes.saturating_add(tensor.nbytes()));
    if bytes < LEAST_BYTES { count } else { count.div_ceil(MOST_PARTS).max(LEAST_TENSORS) }
}
