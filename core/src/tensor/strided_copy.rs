//! Gathering: the elements of a strided tensor, written one behind the other; and scattering, the other way round.

use std::ptr;

use crate::backend::runs::{RunCursor, Runs};
use crate::tensor::non_temporal::HostCopy;

/// Writes the bytes `from..from + bytes` of a tensor, its elements taken in row-major order without gaps, to
/// `destination`. The border of the range may cut an element.
///
/// # Safety
///
/// `source` points to the first element and is valid for reads of `runs.span()` bytes; `destination` is valid for
/// writes of `bytes` bytes that are none of those, which nobody uses before `writer` is dropped; and the elements have at least
/// `from + bytes` bytes.
pub(crate) unsafe fn gather(
    runs: &Runs,
    source: *const u8,
    from: usize,
    destination: *mut u8,
    bytes: usize,
    writer: &HostCopy,
) {
    if bytes == 0 {
        return;
    }
    let row = runs.row();
    let mut cursor = RunCursor::at(runs, from / runs.bytes());
    let cut = from % runs.bytes();
    let mut written = 0;
    if cut > 0 {
        written = bytes.min(runs.bytes() - cut);
        // SAFETY: the cursor is at the run that holds byte `from`, so the rest of the run is in the span.
        unsafe { ptr::copy_nonoverlapping(source.add(cursor.offset + cut), destination, written) };
        cursor.advance(runs, 1);
    }
    while bytes - written >= runs.bytes() {
        let count = ((bytes - written) / runs.bytes()).min(row.count - cursor.column);
        // SAFETY: the cursor is at the run that holds byte `from + written`; it and the next `count - 1` of its row are
        // whole runs of the range.
        unsafe {
            let (source, destination) = (source.add(cursor.offset), destination.add(written));
            copy_row(source, row.step, destination, runs.bytes(), count, writer);
        }
        written += count * runs.bytes();
        cursor.advance(runs, count);
    }
    if written < bytes {
        // SAFETY: the cursor is at the run that holds byte `from + written`; less than a run is missing.
        unsafe {
            ptr::copy_nonoverlapping(source.add(cursor.offset), destination.add(written), bytes - written);
        }
    }
}

/// Writes `bytes` bytes that lie one behind the other at `source` to where the elements of a tensor have their bytes
/// `to..to + bytes`, these taken as by [`gather`]. What lies between is not touched.
///
/// # Safety
///
/// `destination` points to the first element and is valid for writes of `runs.span()` bytes, of which nobody else uses those of the
/// range; `source` is valid for reads of `bytes` bytes that are none of those; and the elements have at least `to + bytes` bytes.
pub(crate) unsafe fn scatter(runs: &Runs, destination: *mut u8, to: usize, source: *const u8, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let row = runs.row();
    let mut cursor = RunCursor::at(runs, to / runs.bytes());
    let cut = to % runs.bytes();
    let mut read = 0;
    if cut > 0 {
        read = bytes.min(runs.bytes() - cut);
        // SAFETY: the cursor is at the run that holds byte `to`, so the rest of the run is in the span.
        unsafe { ptr::copy_nonoverlapping(source, destination.add(cursor.offset + cut), read) };
        cursor.advance(runs, 1);
    }
    while bytes - read >= runs.bytes() {
        let count = ((bytes - read) / runs.bytes()).min(row.count - cursor.column);
        // SAFETY: the cursor is at the run that holds byte `to + read`; it and the next `count - 1` of its row are whole runs of
        // the range.
        unsafe {
            let (source, destination) = (source.add(read), destination.add(cursor.offset));
            scatter_row(source, destination, row.step, runs.bytes(), count);
        }
        read += count * runs.bytes();
        cursor.advance(runs, count);
    }
    if read < bytes {
        // SAFETY: the cursor is at the run that holds byte `to + read`; less than a run is missing.
        unsafe { ptr::copy_nonoverlapping(source.add(read), destination.add(cursor.offset), bytes - read) };
    }
}

/// Copies `count` runs of `bytes` bytes to places `step` bytes apart.
///
/// # Safety
///
/// All of these are valid for writes, and `source` for reads of `count * bytes` bytes elsewhere.
unsafe fn scatter_row(source: *const u8, destination: *mut u8, step: usize, bytes: usize, count: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        match bytes {
            1 => scatter_small::<1>(source, destination, step, count),
            2 => scatter_small::<2>(source, destination, step, count),
            4 => scatter_small::<4>(source, destination, step, count),
            8 => scatter_small::<8>(source, destination, step, count),
            16 => scatter_small::<16>(source, destination, step, count),
            _ => {
                for run in 0..count {
                    ptr::copy_nonoverlapping(source.add(run * bytes), destination.add(run * step), bytes);
                }
            }
        }
    }
}

/// As [`scatter_row`], for runs whose size the compiler knows.
///
/// # Safety
///
/// As for [`scatter_row`].
unsafe fn scatter_small<const N: usize>(source: *const u8, destination: *mut u8, step: usize, count: usize) {
    for run in 0..count {
        // SAFETY: `run` is below `count`; the caller has promised that many runs.
        unsafe { ptr::copy_nonoverlapping(source.add(run * N), destination.add(run * step), N) };
    }
}

/// Copies `count` runs of `bytes` bytes, `step` bytes apart.
///
/// # Safety
///
/// All of them are valid for reads, and `destination` for writes of `count * bytes` bytes elsewhere, which nobody uses before
/// `writer` is dropped.
unsafe fn copy_row(
    source: *const u8,
    step: usize,
    destination: *mut u8,
    bytes: usize,
    count: usize,
    writer: &HostCopy,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        match bytes {
            1 => copy_small::<1>(source, step, destination, count),
            2 => copy_small::<2>(source, step, destination, count),
            4 => copy_small::<4>(source, step, destination, count),
            8 => copy_small::<8>(source, step, destination, count),
            16 => copy_small::<16>(source, step, destination, count),
            _ => {
                for run in 0..count {
                    writer.copy(source.add(run * step), destination.add(run * bytes), bytes);
                }
            }
        }
    }
}

/// As [`copy_row`], for runs whose size the compiler knows: one load and one store for each.
///
/// # Safety
///
/// As for [`copy_row`].
unsafe fn copy_small<const N: usize>(source: *const u8, step: usize, destination: *mut u8, count: usize) {
    for run in 0..count {
        // SAFETY: `run` is below `count`; the caller has promised that many runs.
        unsafe { ptr::copy_nonoverlapping(source.add(run * step), destination.add(run * N), N) };
    }
}

#[cfg(test)]
mod tests;
