//! Fewer and cheaper page faults while new memory is written for the first time.

use std::ptr::NonNull;

/// The size of a huge page on most machines, in bytes.
pub(crate) const SIZE: usize = 2 << 20;
/// Below so many bytes, aligning the start to a huge page would waste too much.
pub(crate) const LEAST: usize = 4 * SIZE;

/// Asks for huge pages for memory that nobody has written yet. Some systems give them on request only.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn advise(start: NonNull<u8>, bytes: usize) {
    if bytes >= SIZE {
        // SAFETY: the callers have allocated the range, and `MADV_HUGEPAGE` changes no content. A refusal is no error: then
        // there are small pages.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes & !(SIZE - 1), libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn advise(_: NonNull<u8>, _: usize) {}

/// The same for all of a list's room, as far as it is whole huge pages.
pub(crate) fn advise_list<T>(list: &Vec<T>) {
    let start = list.as_ptr().cast::<u8>().cast_mut();
    let lead = start.align_offset(SIZE);
    let rest = list.capacity().saturating_mul(size_of::<T>()).checked_sub(lead);
    if let (Some(rest), Some(start)) = (rest, NonNull::new(start.wrapping_add(lead))) {
        advise(start, rest);
    }
}
