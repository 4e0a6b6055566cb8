//! Hints for the processor: what it will be asked for soon.

/// The bytes that it fetches at once.
pub const LINE: usize = 64;

/// Has it fetch what lies there. Any address may be given: it is a hint.
#[inline]
pub fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read that the program could see, and no address makes it fail.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
