//! Pages of real memory behind an allocation.

use std::os::fd::RawFd;
use std::ptr;

pub(crate) const PAGE: usize = 4096;

/// A range of pages, with a guard page behind it; or memory of the program, of which nothing was mapped here.
pub(crate) struct Pages {
    start: *mut u8,
    mapped: usize,
}

// SAFETY: plain memory; who touches it when is the business of the program under test.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `bytes` bytes and fills them; `None` if the host has none left.
    pub(crate) fn map(bytes: usize, fill: u8) -> Option<Self> {
        let mapped = bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
        if mapped > memory_of_the_host() {
            return None;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, nowhere in particular.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let pages = Self { start: start.cast(), mapped };
        // SAFETY: the range is the new mapping without its last page.
        let opened = unsafe { libc::mprotect(start, mapped - PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return None;
        }
        // SAFETY: the range was made writable just now.
        unsafe { pages.start.write_bytes(fill, bytes) };
        Some(pages)
    }

    /// Maps `bytes` bytes of a file, which others may write as well.
    pub(crate) fn map_file(file: RawFd, offset: u64, bytes: usize) -> Option<Self> {
        let pages = Self::map(bytes, 0)?;
        let (start, behind) = (pages.start.cast(), pages.mapped - PAGE);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: it takes the place of the pages that were mapped just now.
        let mapped = unsafe { libc::mmap(start, behind, access, flags, file, offset as i64) };
        (mapped != libc::MAP_FAILED).then_some(pages)
    }

    /// Memory of the program.
    pub(crate) fn of_the_program(address: usize) -> Self {
        Self { start: ptr::with_exposed_provenance_mut(address), mapped: 0 }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        // Programs and copies make pointers out of the number.
        ptr::with_exposed_provenance_mut(self.start.expose_provenance())
    }

    /// Gives the memory back but keeps the place: whoever touches it is ended.
    pub(crate) fn guard(&self) {
        // SAFETY: the range is the mapping of this object. A failure leaves it readable, which hides a fault at the most.
        unsafe {
            let _ = libc::madvise(self.start.cast(), self.mapped, libc::MADV_DONTNEED);
            let _ = libc::mprotect(self.start.cast(), self.mapped, libc::PROT_NONE);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the range is the mapping of this object, and nobody may use it any more.
            let _ = unsafe { libc::munmap(self.start.cast(), self.mapped) };
        }
    }
}

/// Whether all of a range is memory of the process that may be read, and written as well if `writes`.
pub(crate) fn are_mapped(start: usize, bytes: usize, writes: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let (mut behind, end) = (start, start.saturating_add(bytes));
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((first, last)) = range.split_once('-') else { continue };
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        if behind < end && (number(first)..number(last)).contains(&behind) {
            if !rest.starts_with('r') || (writes && rest.as_bytes().get(1) != Some(&b'w')) {
                return false;
            }
            behind = number(last);
        }
    }
    behind >= end
}

/// More than this can be mapped but not filled.
fn memory_of_the_host() -> usize {
    // SAFETY: asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(PAGE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn pages_are_filled() {
        let pages = Pages::map(5000, 7).unwrap();
        // SAFETY: so many bytes were mapped and filled.
        let bytes = unsafe { std::slice::from_raw_parts(pages.start(), 5000) };
        assert!(bytes.iter().all(|byte| *byte == 7));
        pages.guard();
        assert!(are_mapped(pages.start().addr(), 0, true) && !are_mapped(pages.start().addr(), 5000, false));
        let (constant, local) = (b"read-only", [0_u8; 9]);
        assert!(
            are_mapped(constant.as_ptr().addr(), 9, false) && !are_mapped(constant.as_ptr().addr(), 9, true)
        );
        assert!(are_mapped(local.as_ptr().addr(), 9, true) && !are_mapped(4096, 1, false));
        assert!([usize::MAX, 1 << 46].iter().all(|much| Pages::map(*much, 0).is_none()));
    }
}
