//! How the host writes what it copies: the ordinary way, or past its caches.
//!
//! An ordinary store needs its line in the cache. Staging blocks in turn are more than that holds, so lines are read first
//! only to be overwritten, and written back when the device asks for them. Stores of whole lines that go past the caches do
//! neither.

use std::ops::RangeInclusive;
use std::ptr;

/// What goes past the caches: runs of so many bytes. Shorter ones have few whole lines. Longer ones the processor's own copy
/// instruction writes without reading lines first, and the device is faster where it still finds them in the cache: 64 KiB
/// each are copied up in 7 % less time past the caches, 1 MiB each in 5 % more (H200).
const RUNS_PAST_CACHES: RangeInclusive<usize> = 256..=64 << 10;
/// What a processor with caches writes at once, in bytes.
const LINE: usize = 64;

/// Writes so many lines, from anywhere to a place that is aligned to a line.
type StoreLines = unsafe fn(*const u8, *mut u8, usize);

/// Copies to memory, in one of two ways. What it has written may be read by others once it is gone.
pub(crate) struct Writer {
    store_lines: Option<StoreLines>,
}

impl Writer {
    /// For memory that is read next by this processor, or by a device before it has left the cache.
    pub(crate) const fn ordinary() -> Self {
        Self { store_lines: None }
    }

    /// For one of many blocks that a device reads next, if the processor can do that.
    pub(crate) fn past_caches() -> Self {
        Self { store_lines: lines::store() }
    }

    /// Copies `bytes` bytes.
    ///
    /// # Safety
    ///
    /// As for [`ptr::copy_nonoverlapping`]; and nobody else reads the destination before the writer is dropped.
    #[inline]
    pub(crate) unsafe fn copy(&self, source: *const u8, destination: *mut u8, bytes: usize) {
        match self.store_lines {
            // SAFETY: passed on.
            Some(store) if RUNS_PAST_CACHES.contains(&bytes) => unsafe {
                copy_lines(store, source, destination, bytes);
            },
            // SAFETY: passed on.
            _ => unsafe { ptr::copy_nonoverlapping(source, destination, bytes) },
        }
    }
}

impl Drop for Writer {
    /// Such stores are not ordered with others: whoever is told of them later must find them.
    fn drop(&mut self) {
        if self.store_lines.is_some() {
            lines::fence();
        }
    }
}

/// Whole lines by `store`; what lies before and behind them the ordinary way.
///
/// # Safety
///
/// As [`Writer::copy`].
unsafe fn copy_lines(store: StoreLines, source: *const u8, destination: *mut u8, bytes: usize) {
    let head = destination.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let stored = head + lines * LINE;
    // SAFETY: the three ranges are those `bytes` bytes, one behind the other, and the second begins at a line.
    unsafe {
        ptr::copy_nonoverlapping(source, destination, head);
        store(source.add(head), destination.add(head), lines);
        ptr::copy_nonoverlapping(source.add(stored), destination.add(stored), bytes - stored);
    }
}

// Miri has no such instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod lines {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    };

    use super::{LINE, StoreLines};

    /// The widest store of this processor. One of half a line is little slower, one of a quarter no gain (H200 machine).
    pub(super) fn store() -> Option<StoreLines> {
        if is_x86_feature_detected!("avx512f") {
            Some(by_one_store)
        } else if is_x86_feature_detected!("avx") {
            Some(by_two_stores)
        } else {
            None
        }
    }

    pub(super) fn fence() {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    ///
    /// `source` is valid for reads and `destination`, aligned to a line, for writes of so many lines elsewhere.
    #[target_feature(enable = "avx512f")]
    unsafe fn by_one_store(source: *const u8, destination: *mut u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: `line` is below `lines`; the caller has promised that many, and the alignment.
            unsafe {
                let from = source.add(line * LINE).cast::<__m512i>();
                _mm512_stream_si512(destination.add(line * LINE).cast(), _mm512_loadu_si512(from));
            }
        }
    }

    /// # Safety
    ///
    /// As [`by_one_store`].
    #[target_feature(enable = "avx")]
    unsafe fn by_two_stores(source: *const u8, destination: *mut u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: as above; a line is two of these.
            unsafe {
                let from = source.add(line * LINE).cast::<__m256i>();
                let to = destination.add(line * LINE).cast::<__m256i>();
                let (first, second) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(to, first);
                _mm256_stream_si256(to.add(1), second);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn all() -> Vec<StoreLines> {
        let mut all = Vec::new();
        if is_x86_feature_detected!("avx512f") {
            all.push(by_one_store as StoreLines);
        }
        if is_x86_feature_detected!("avx") {
            all.push(by_two_stores);
        }
        all
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod lines {
    use super::StoreLines;

    pub(super) fn store() -> Option<StoreLines> {
        None
    }

    pub(super) fn fence() {}

    #[cfg(test)]
    pub(super) fn all() -> Vec<StoreLines> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 4096;

    /// What `writer` makes of zeros when it copies `bytes` bytes from one place to another.
    fn written(writer: Writer, source: &[u8], from: usize, to: usize, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; ROOM];
        assert!(from + bytes <= source.len() && to + bytes <= ROOM);
        // SAFETY: both ranges lie within their memory (asserted), which nobody else has.
        unsafe { writer.copy(source.as_ptr().add(from), buffer.as_mut_ptr().add(to), bytes) };
        drop(writer);
        buffer
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        /// catches: 107-ends-with-the-last-line
        #[test]
        fn every_way_writes_these_bytes_and_no_others(
            from in 0..200_usize,
            to in 0..200_usize,
            bytes in 0..ROOM - 400,
        ) {
            let source: Vec<u8> = (0..ROOM).map(|index| (index % 251) as u8 | 1).collect();
            let mut expected = vec![0; ROOM];
            expected[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
            let special = lines::all().into_iter().map(|store| Writer { store_lines: Some(store) });
            for writer in [Writer::ordinary(), Writer::past_caches()].into_iter().chain(special) {
                prop_assert_eq!(&written(writer, &source, from, to, bytes), &expected);
            }
        }
    }
}
