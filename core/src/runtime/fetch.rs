//! Hints for the processor: what it will be asked for soon.

/// The bytes that it fetches at once.
pub(crate) const LINE: usize = 64;

/// Has it fetch the line at an address, of which any may be given: it is a hint.
#[inline]
pub(crate) fn fetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: nothing is read that the program could see, and no address makes it fail.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
