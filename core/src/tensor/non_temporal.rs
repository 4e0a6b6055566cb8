//! How the host writes what it copies: the ordinary way, or past its caches.
//!
//! An ordinary store needs its line in the cache. A block that a device has read meanwhile is there no more, and each line of
//! it is read only to be overwritten. Stores of whole lines that go past the caches do not read.

use std::ptr;

/// What goes past the caches: runs of at least so many bytes. Shorter ones have few whole lines.
const SHORTEST_PAST_CACHES: usize = 256;
/// Up to so many bytes a run is short, and goes past the caches only where many blocks are filled. A device reads what lies in the
/// cache of a processor slower than what lies in memory: past the caches one tensor of 1 MiB takes 82 us instead of 135, one of 9 MB
/// 304 instead of 512, and 300 of 1 MiB 7.3 ms instead of 7.9. Where one copy keeps the link busy for long, its threads have time to
/// spare: 1 GiB takes 23.3 ms past the caches and 21.4 through them (H200).
const LONGEST_SHORT: usize = 64 << 10;
/// What a processor with caches writes at once, in bytes.
const LINE: usize = 64;

/// Writes so many lines, from anywhere to a place that is aligned to a line.
type StoreLines = unsafe fn(*const u8, *mut u8, usize);

/// Copies to memory, in one of two ways. Nobody may look at what it writes before it is gone.
pub(crate) struct HostCopy {
    /// One that this processor has.
    store_lines: Option<StoreLines>,
    /// The shortest and the longest run that go past the caches.
    shortest: usize,
    longest: usize,
}

impl HostCopy {
    /// For memory that this processor reads next, or a device before it has left the cache.
    pub(crate) const fn ordinary() -> Self {
        Self { store_lines: None, shortest: 0, longest: 0 }
    }

    /// For one of many blocks that a device reads next, if the processor has such stores: for short runs, or for all.
    pub(crate) fn past_caches(long_runs: bool) -> Self {
        let longest = if long_runs { usize::MAX } else { LONGEST_SHORT };
        Self::storing(SHORTEST_PAST_CACHES, longest)
    }

    /// For a block that a device reads as soon as it is filled. Short runs, of which it may have many, are written faster to a
    /// cache.
    pub(crate) fn long_past_caches() -> Self {
        Self::storing(LONGEST_SHORT + 1, usize::MAX)
    }

    fn storing(shortest: usize, longest: usize) -> Self {
        Self { store_lines: lines::all().into_iter().flatten().next(), shortest, longest }
    }

    /// Copies `bytes` bytes.
    ///
    /// # Safety
    ///
    /// As for [`ptr::copy_nonoverlapping`]; the bytes are initialised, and nobody, this thread included, uses the
    /// destination in any other way before the writer is dropped.
    #[inline]
    pub(crate) unsafe fn copy(&self, source: *const u8, destination: *mut u8, bytes: usize) {
        match self.store_lines {
            // SAFETY: passed on; the processor has it.
            Some(store) if self.shortest <= bytes && bytes <= self.longest => unsafe {
                copy_lines(store, source, destination, bytes);
            },
            // SAFETY: passed on.
            _ => unsafe { ptr::copy_nonoverlapping(source, destination, bytes) },
        }
    }
}

impl Drop for HostCopy {
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
/// As [`HostCopy::copy`]; the processor has `store`.
unsafe fn copy_lines(store: StoreLines, source: *const u8, destination: *mut u8, bytes: usize) {
    let head = destination.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let stored = head + lines * LINE;
    // SAFETY: the three ranges are those `bytes` bytes, one behind the other; the second begins at a line unless it is empty.
    unsafe {
        if head > 0 {
            ptr::copy_nonoverlapping(source, destination, head);
        }
        // Without a whole line, the second range may begin anywhere.
        if lines > 0 {
            store(source.add(head), destination.add(head), lines);
        }
        if stored < bytes {
            ptr::copy_nonoverlapping(source.add(stored), destination.add(stored), bytes - stored);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, instrumented))))]
mod lines {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    };

    use super::{LINE, StoreLines};

    /// What this processor has, the best first. Stores of half a line take up to 10 % longer, of a quarter of one as long as
    /// ordinary ones (10,000 x 4 KiB up to an H200).
    pub(crate) fn all() -> [Option<StoreLines>; 2] {
        [
            is_x86_feature_detected!("avx512f").then_some(by_one_store as StoreLines),
            is_x86_feature_detected!("avx").then_some(by_two_stores as StoreLines),
        ]
    }

    pub(crate) fn fence() {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    ///
    /// `source` is valid for reads and `destination`, aligned to a line, for writes of so many lines elsewhere. The processor
    /// has AVX-512.
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
    /// As [`by_one_store`], but for a processor with AVX.
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
}

/// Miri has no such stores, and sanitizers do not see them: what leads to them is checked with ordinary ones.
#[cfg(any(miri, instrumented))]
mod lines {
    use super::{LINE, StoreLines};

    pub(crate) fn all() -> [Option<StoreLines>; 1] {
        [Some(ordinary)]
    }

    pub(crate) fn fence() {}

    /// # Safety
    ///
    /// `source` is valid for reads and `destination`, aligned to a line, for writes of so many lines elsewhere.
    unsafe fn ordinary(source: *const u8, destination: *mut u8, lines: usize) {
        assert!(destination.addr().is_multiple_of(LINE), "{destination:?} is not the beginning of a line");
        // SAFETY: passed on.
        unsafe { std::ptr::copy_nonoverlapping(source, destination, lines * LINE) };
    }
}

#[cfg(not(any(target_arch = "x86_64", miri, instrumented)))]
mod lines {
    use super::StoreLines;

    pub(crate) fn all() -> [Option<StoreLines>; 0] {
        []
    }

    pub(crate) fn fence() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Longer ones tell Miri nothing new, and take it a minute.
    const LONG: usize = if cfg!(miri) { 4 << 10 } else { 64 << 10 };
    const ROOM: usize = LONG + (2 << 10);

    /// What `writer` makes of zeros when it copies `bytes` bytes from one place to another.
    fn written(writer: HostCopy, source: &[u8], from: usize, to: usize, bytes: usize) -> Vec<u8> {
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
            bytes in prop_oneof![0..1000_usize, LONG - 200..LONG + 200_usize],
        ) {
            let source: Vec<u8> = (0..ROOM).map(|index| (index % 251) as u8 | 1).collect();
            let mut expected = vec![0; ROOM];
            expected[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
            let special = lines::all()
                .into_iter()
                .flatten()
                .map(|store| HostCopy { store_lines: Some(store), shortest: 0, longest: usize::MAX });
            for writer in special.chain([HostCopy::ordinary(), HostCopy::past_caches(false), HostCopy::long_past_caches()]) {
                prop_assert!(written(writer, &source, from, to, bytes) == expected);
            }
        }
    }
}
