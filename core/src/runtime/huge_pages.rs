//! Fewer and cheaper page faults while new memory is written for the first time.

use std::ptr::NonNull;

/// What a huge page has on most machines, in bytes.
pub(crate) const SIZE: usize = 2 << 20;
/// For less than so many bytes a start that is aligned like this would waste too much.
pub(crate) const LEAST: usize = 4 * SIZE;

/// Asks for huge pages below memory that nobody has written yet, where the system waits to be asked.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn advise(start: NonNull<u8>, bytes: usize) {
    if bytes >= SIZE {
        // SAFETY: the range is allocated, and the advice changes nothing that it holds. Refused, it is no error: then there
        // are small pages.
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
