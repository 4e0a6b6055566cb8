//! Writes elements that are cast on the way, and looks at them before.

use std::{iter, slice};

use crate::backend::Runs;
use crate::cast::Cast;
use crate::convert::elements::{convert, first_that_does_not_fit};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::non_temporal::HostCopy;
use crate::tensor::strided_copy::gather;

/// So many elements are converted at a time: they stay in the fastest cache.
const ELEMENTS: usize = 512;
/// Of a cache, in bytes: a round ends with one.
const LINE: usize = 64;

/// Where elements are gathered and converted: room for [`ELEMENTS`] of either type.
#[repr(align(64))]
struct Room([u8; ELEMENTS * 8]);

/// Memory to convert in.
pub(crate) struct CastScratch {
    from: Room,
    to: Room,
}

impl Cast {
    /// Converts elements outside of any copy, as copies do: `from` has the bytes of as many elements as `to` has room for. Integers that
    /// do not fit become the nearest that does.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a pair of types that no cast is for, and for other sizes.
    pub fn convert(&self, from: &[u8], to: &mut [u8]) -> Result<()> {
        self.check_sizes(from.len(), to.len())?;
        // SAFETY: `check_sizes` has compared them, and a slice that may be written is no part of another one.
        unsafe { self.convert_to(from, to.as_mut_ptr()) };
        Ok(())
    }

    /// The number and the value of the first of these elements that the new type cannot hold: `from` has their bytes, however they are aligned. `None`
    /// for a cast that no value is an error for: a [`saturating`](Self::saturating) one, or one to a type that holds all values.
    pub fn first_that_does_not_fit(&self, from: &[u8]) -> Option<(usize, i128)> {
        if !self.may_not_fit() {
            return None;
        }
        let (runs, count) = (Runs::new(from.len(), iter::empty()), from.len() / self.from_dtype().size());
        // SAFETY: so many elements lie in `from`, which nobody writes while it is borrowed.
        unsafe { CastScratch::new().first_that_does_not_fit(self, (from.as_ptr(), &runs), count) }
    }

    /// Fails unless so many bytes become so many.
    pub(crate) fn check_sizes(&self, from: usize, to: usize) -> Result<()> {
        self.check()?;
        let is_whole = to.is_multiple_of(self.to_dtype().size());
        if self.from_dtype() == self.to_dtype() || !is_whole || self.source_bytes(to) != from {
            let value = format!("{from} bytes of {} into {to} of {}", self.from_dtype(), self.to_dtype());
            let reason = "elements of another type, as many as there are";
            return Err(Error::InvalidOption { name: "convert", value, reason });
        }
        Ok(())
    }

    /// Writes the elements of `from`, converted, to `to`.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of as many bytes as [`check_sizes`](Self::check_sizes) has found right, none of which lies in `from`.
    pub(crate) unsafe fn convert_to(&self, from: &[u8], to: *mut u8) {
        let (writer, runs) = (HostCopy::ordinary(), Runs::new(from.len(), iter::empty()));
        let bytes = self.converted_bytes(from.len());
        // SAFETY: the elements are those of `from`, and the caller promises room for as many.
        unsafe { CastScratch::new().write(self, (from.as_ptr(), &runs), 0, to, bytes, &writer) };
    }
}

impl CastScratch {
    pub(crate) fn new() -> Self {
        Self { from: Room([0; ELEMENTS * 8]), to: Room([0; ELEMENTS * 8]) }
    }

    /// Writes the bytes `from..from + bytes` of a tensor that is cast, its elements in row-major order without gaps, to `destination`. The
    /// border of the range may cut an element.
    ///
    /// # Safety
    ///
    /// `source` points to the first element and is valid for reads of `runs.span()` bytes, which nobody writes; `destination` is valid
    /// for writes of `bytes` bytes that are none of those, which nobody uses before `writer` is dropped; and the elements have at least
    /// `from + bytes` bytes when they are cast. The cast was checked.
    pub(crate) unsafe fn write(
        &mut self,
        cast: &Cast,
        (source, runs): (*const u8, &Runs),
        from: usize,
        destination: *mut u8,
        bytes: usize,
        writer: &HostCopy,
    ) {
        let size = cast.to_dtype().size();
        let mut written = 0;
        while written < bytes {
            // SAFETY: `written` is below `bytes`.
            let to = unsafe { destination.add(written) };
            let (first, cut) = ((from + written) / size, (from + written) % size);
            let until_a_line = ELEMENTS * size - (to.addr() + ELEMENTS * size) % LINE;
            let count = (cut + (bytes - written).min(until_a_line)).div_ceil(size).min(ELEMENTS);
            // SAFETY: the elements hold the bytes from `from + written` on, of which `bytes - written` are left. They lie within the span.
            let converted = unsafe { self.convert(cast, (source, runs), first, count) };
            let Some(converted) = converted.get(cut..) else { return };
            let part = converted.len().min(bytes - written);
            // SAFETY: `part` bytes of `destination` are left, and of `converted`.
            unsafe { writer.copy(converted.as_ptr(), to, part) };
            written += part;
        }
    }

    /// The number and the value of the first element that the type that `cast` makes cannot hold, of `count`.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write), but for the destination; the tensor has `count` elements.
    pub(crate) unsafe fn first_that_does_not_fit(
        &mut self,
        cast: &Cast,
        (source, runs): (*const u8, &Runs),
        count: usize,
    ) -> Option<(usize, i128)> {
        (0..count).step_by(ELEMENTS).find_map(|first| {
            // SAFETY: passed on; the elements are some of the `count`.
            let elements = unsafe {
                self.from.elements(source, runs, first, ELEMENTS.min(count - first), cast.from_dtype())
            };
            first_that_does_not_fit(cast, elements).map(|(index, value)| (first + index, value))
        })
    }

    /// So many elements from number `first` on, converted: at most [`ELEMENTS`].
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write); the tensor has these elements.
    unsafe fn convert(
        &mut self,
        cast: &Cast,
        (source, runs): (*const u8, &Runs),
        first: usize,
        count: usize,
    ) -> &[u8] {
        let Self { from, to } = self;
        // SAFETY: passed on.
        let elements = unsafe { from.elements(source, runs, first, count, cast.from_dtype()) };
        let converted = to.0.get_mut(..count * cast.to_dtype().size()).unwrap_or_default();
        convert(cast, elements, converted);
        converted
    }
}

impl Room {
    /// So many elements from number `first` on: where they lie, or gathered here.
    ///
    /// # Safety
    ///
    /// `source` points to the first element of a tensor that has these, and is valid for reads of `runs.span()` bytes, which nobody
    /// writes.
    unsafe fn elements<'a>(
        &'a mut self,
        source: *const u8,
        runs: &Runs,
        first: usize,
        count: usize,
        dtype: DType,
    ) -> &'a [u8] {
        let (start, bytes) = (first * dtype.size(), count * dtype.size());
        if runs.dims().is_empty() && dtype.alignment().divides(source.addr()) {
            // SAFETY: the elements lie in one run, so these and what is left behind them lie in the span, `start` bytes behind the first.
            let left = unsafe { slice::from_raw_parts(source.add(start), runs.bytes() - start) };
            let (elements, left) = left.split_at(bytes);
            read_ahead(left.get(..bytes).unwrap_or(left));
            return elements;
        }
        let elements = self.0.get_mut(..bytes).unwrap_or_default();
        // SAFETY: `elements` has as many bytes as are written, and is memory of ours; the caller promises the rest.
        unsafe { gather(runs, source, start, elements.as_mut_ptr(), elements.len(), &HostCopy::ordinary()) };
        elements
    }
}

/// Has the processor fetch what is converted next. Without, it waits for memory at the beginning of each round: 1 GiB of `float32` becomes
/// `bfloat16` at 68 GB/s with eight threads, at 53 without (H200 machine).
fn read_ahead(next: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in next.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has it, and the line is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    let _ = next;
}
