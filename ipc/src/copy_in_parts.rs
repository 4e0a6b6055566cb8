//! Copies of many tensors into one piece of memory, the first of which begin while others are still planned.

use transship_core::{
    CopyError, CopyHandle, CopyOptions, Error, Layout, Manifest, RawMemory, Result, SharedOwner, Tensor,
    start_copy_into,
};

use crate::packed::leaf_at;

/// Fewer bytes are copied before the others of their tensors would be planned.
const LEAST_BYTES: usize = 32 << 20;
/// The first part has so many tensors: it is on its way after 120 us, where 2,000 at once would be after 530 (a host with two H200s).
const FIRST_TENSORS: usize = 64;
/// Each part has so many times the tensors of the one before, or all that are left: it is planned while that is copied, at 1 MB a tensor.
const GROWTH: usize = 3;
/// No part has a larger share of the tensors.
const LARGEST_SHARE: usize = 2;

/// Places of tensors, those of each part by themselves.
pub(crate) type Places = Vec<Vec<Tensor>>;

/// What went wrong, and the places, unless some of them are lost.
pub(crate) type Failed = (Error, Option<Places>);

/// The places of tensors in a piece of memory, each at its offset there: in parts, each of which is filled by a copy of its own.
///
/// # Safety
///
/// As [`SharedOwner::parts_mut`], for `memory`. No two places overlap.
pub(crate) unsafe fn places_of(
    tensors: &[(usize, Tensor)],
    owner: &SharedOwner,
    memory: RawMemory,
) -> Result<Places> {
    let (mut places, mut left) = (Vec::new(), tensors);
    for size in sizes_of_parts(tensors) {
        let (part, others) = left.split_at_checked(size).unwrap_or((left, &[]));
        left = others;
        let place = |(offset, tensor): &(usize, Tensor)| {
            Ok((*offset, Layout::contiguous(tensor.dtype(), tensor.shape())?))
        };
        let part = part.iter().map(place).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller's promise.
        places.push(unsafe { owner.parts_mut(memory, part)? });
    }
    Ok(places)
}

/// Copies tensors to their places, which are those of `manifest`. Waits until that is done.
///
/// A device begins once the first part is planned, and while the last one is copied, the others are let go of: both take long for thousands of tensors.
pub(crate) fn copy_in_parts(
    tensors: Vec<(usize, Tensor)>,
    places: Places,
    manifest: &Manifest,
) -> std::result::Result<Places, Failed> {
    let mut tensors = tensors.into_iter();
    let begin = |places: Vec<Tensor>| {
        let (offsets, sources): (Vec<usize>, Vec<Tensor>) = tensors.by_ref().take(places.len()).unzip();
        (start_copy_into(sources, places, CopyOptions::default()), offsets)
    };
    // All of them, before any is waited for.
    let begun: Vec<_> = places.into_iter().map(begin).collect();
    let (mut copied, mut failed, mut are_lost) = (Vec::with_capacity(begun.len()), None, false);
    for (part, offsets) in begun {
        match part.and_then(CopyHandle::wait).map_err(CopyError::into_error_and_destination) {
            Ok(places) => copied.push(places),
            Err((error, places)) => {
                are_lost |= places.is_none();
                copied.extend(places);
                let error = located(error, &offsets, manifest);
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

/// The same error, about a tensor of the tree and not of a part, whose tensors are to lie at `offsets`.
#[cold]
fn located(error: Error, offsets: &[usize], manifest: &Manifest) -> Error {
    let Error::UnsuitedTensor { index, role, error: reason, .. } = &error else { return error };
    match offsets.get(*index).and_then(|offset| leaf_at(manifest, *offset).ok()) {
        Some((index, path)) => Error::UnsuitedTensor { index, path, role, error: reason.clone() },
        None => error,
    }
}

/// How many tensors each part has.
fn sizes_of_parts(tensors: &[(usize, Tensor)]) -> Vec<usize> {
    let bytes = tensors.iter().fold(0_usize, |bytes, (_, tensor)| bytes.saturating_add(tensor.nbytes()));
    match tensors.len() {
        count if count > 0 && bytes < LEAST_BYTES => vec![count],
        count => growing_parts(count),
    }
}

fn growing_parts(count: usize) -> Vec<usize> {
    let (mut left, mut size, most) = (count, FIRST_TENSORS, (count / LARGEST_SHARE).max(FIRST_TENSORS));
    let mut sizes = Vec::new();
    while left > 0 {
        // A part of its own costs 20 us beside its tensors.
        let part = if left < size.saturating_add(FIRST_TENSORS) { left } else { size };
        sizes.push(part);
        left = left.saturating_sub(part);
        size = size.saturating_mul(GROWTH).min(most);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::{growing_parts, sizes_of_parts};

    /// Deliberate bug: no tensors are a part of none.
    #[test]
    fn no_tensors_have_no_part() {
        assert!(sizes_of_parts(&[]).is_empty());
    }

    /// Deliberate bugs: all parts are as large as the first; there is no largest one; a rest of few is a part.
    #[test]
    fn parts_grow_up_to_half_of_all_and_none_is_small() {
        for (count, parts) in [
            (0, &[][..]),
            (1, &[1]),
            (127, &[127]),
            (128, &[64, 64]),
            (577, &[64, 192, 321]),
            (2000, &[64, 192, 576, 1000, 168]),
            (20_000, &[64, 192, 576, 1728, 5184, 10_000, 2256]),
        ] {
            assert_eq!(growing_parts(count), parts);
        }
    }
}
