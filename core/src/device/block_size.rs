//! How large the staging blocks of a copy are.

use crate::device::device::Device;
use crate::staging::size_class::LARGEST_BLOCK;

/// Up to so many bytes the caller's thread writes at once: 100 us of one thread at 11 GB/s.
pub(crate) const MOST_INLINE_BYTES: usize = 1 << 20;

/// A path through staging blocks is cut into about so many segments: all workers begin at once, and the link soon.
pub(crate) const SEGMENTS_OF_A_PATH: usize = 32;

/// The same where a kernel takes what is staged up: the link stands still for 4.5 us at each launch (H200).
pub(crate) const SEGMENTS_OF_LAUNCHES: usize = 16;

/// What is smaller keeps the link waiting: one copy behind the other, 256 KiB each cross it at 35 GB/s, 512 KiB at 43, 1 MiB
/// at 48 and 4 MiB at 53 (H200).
pub(crate) const SMALLEST_SEGMENT: usize = 512 << 10;

/// So many blocks fill the link, with 8 workers at it.
pub(crate) const FULL_RING: usize = 16;

/// The largest staging block for `span` bytes that come up to `target` from the host.
pub(crate) fn staging_block_up(span: usize, target: &Device) -> usize {
    staging_block((span, SEGMENTS_OF_A_PATH), budget(target, None), target, None)
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
    let wanted = (span / segments).checked_next_power_of_two().unwrap_or(largest);
    wanted.clamp(SMALLEST_SEGMENT, largest).min(largest_block(budget))
}

/// Whether a path through staging blocks is cut into pieces for many threads. What the caller's thread carries is one piece; and
/// where blocks are mapped, each takes a call of 10 us and more.
pub(crate) fn is_cut(span: usize, target: &Device, source: Option<&Device>) -> bool {
    let mut ends = [Some(target), source].into_iter().flatten();
    span > MOST_INLINE_BYTES && !ends.any(|device| device.limits().mapped_staging)
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
