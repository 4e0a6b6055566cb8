//! How large the staging blocks of a copy are.

use crate::device::device::Device;
use crate::staging::size_class::LARGEST_BLOCK;

/// Up to so many bytes the caller's thread writes at once: 100 us of one thread at 11 GB/s.
pub(crate) const MOST_INLINE_BYTES: usize = 1 << 20;

/// A path through staging blocks is cut into about so many segments: all workers begin at once, and the link soon.
pub(crate) const SEGMENTS_OF_A_PATH: usize = 32;

/// The same where a kernel takes what is staged up: the link stands still for 4.5 us at each launch (H200).
pub(crate) const SEGMENTS_OF_LAUNCHES: usize = 16;

/// The same where blocks are mapped: each takes calls of 10 us and more.
const SEGMENTS_OF_MAPPED: usize = 16;

/// What is smaller keeps the link waiting: one copy behind the other, 256 KiB each cross it at 35 GB/s, 512 KiB at 43, 1 MiB
/// at 48 and 4 MiB at 53 (H200).
const SMALLEST_SEGMENT: usize = 512 << 10;

/// So many blocks fill the link (measured with 8 workers at it).
pub(crate) const FULL_RING: usize = 16;

/// The largest staging block for `span` bytes that come up to `target` from the host.
pub(crate) fn staging_block_up(span: usize, target: &Device) -> usize {
    staging_block((span, SEGMENTS_OF_A_PATH), budget(target, None), target, None)
}

/// The largest staging block for what comes down from `source`, whose staging is mapped.
pub(crate) fn mapped_block_down(source: &Device) -> usize {
    largest_block(source.staging().budget())
}

/// The largest staging block within `budget` for a path of `span` bytes to `target` in about so many segments, which come from
/// `source`, if not from the host.
pub(crate) fn staging_block(
    (span, segments): (usize, usize),
    budget: usize,
    target: &Device,
    source: Option<&Device>,
) -> usize {
    if !is_cut(span, target, source) {
        return largest_block(budget);
    }
    let largest = power_within(budget / FULL_RING).clamp(SMALLEST_SEGMENT, LARGEST_BLOCK);
    let segments = if target.limits().mapped_staging { segments.min(SEGMENTS_OF_MAPPED) } else { segments };
    let wanted = (span / segments).checked_next_power_of_two().unwrap_or(largest);
    wanted.clamp(SMALLEST_SEGMENT, largest).min(largest_block(budget))
}

/// The size of the first and the last segments of a path that is cut, where the others have blocks of `block` bytes.
pub(crate) fn smallest_segment(block: usize, target: &Device) -> usize {
    let least = match target.limits().mapped_staging {
        true => (block / 2).max(2 * SMALLEST_SEGMENT),
        false => (block / 4).max(SMALLEST_SEGMENT),
    };
    least.min(block)
}

/// Whether a path through staging blocks is cut into pieces for many threads. What the caller's thread carries is one piece. Out of
/// mapped blocks of the source, or from one to another, each piece is a submission that its thread waits for.
pub(crate) fn is_cut(span: usize, target: &Device, source: Option<&Device>) -> bool {
    let is_mapped = |device: &Device| device.limits().mapped_staging;
    span > MOST_INLINE_BYTES && source.is_none_or(|source| !is_mapped(target) && !is_mapped(source))
}

pub(crate) fn largest_block(budget: usize) -> usize {
    power_within(budget).min(LARGEST_BLOCK)
}

/// What the staging blocks of both ends may have.
pub(crate) fn budget(target: &Device, source: Option<&Device>) -> usize {
    let of_source = source.map_or(usize::MAX, |device| device.staging().budget());
    target.staging().budget().min(of_source)
}

/// The largest power of two up to `bytes`.
pub(crate) fn power_within(bytes: usize) -> usize {
    bytes.checked_ilog2().map_or(1, |log| 1 << log)
}
