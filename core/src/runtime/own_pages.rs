//! Pages of the system, and such that hold nothing else: memory for drivers to page-lock in place.

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use linux::OwnPages;
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) use nowhere::OwnPages;

/// What drivers lock at once, in bytes.
pub(crate) fn page_size() -> usize {
    system_page_size().filter(|bytes| *bytes > 0).unwrap_or(SMALLEST_PAGE)
}

/// No system has smaller pages.
const SMALLEST_PAGE: usize = 4096;

#[cfg(all(unix, not(miri)))]
fn system_page_size() -> Option<usize> {
    // SAFETY: it asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
}

#[cfg(not(all(unix, not(miri))))]
fn system_page_size() -> Option<usize> {
    None
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::ptr;
    use std::ptr::NonNull;

    use super::SMALLEST_PAGE;

    /// Zeroed pages that are there already. Children of `fork` share them, as they share those of a driver: a page that is copied
    /// for a child could move away from where a device reads it, and gigabytes would be copied.
    pub(crate) struct OwnPages {
        start: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: plain memory, which this value owns.
    unsafe impl Send for OwnPages {}
    // SAFETY: as above.
    unsafe impl Sync for OwnPages {}

    impl OwnPages {
        /// `bytes` bytes; `None` where the system refuses.
        pub(crate) fn map(bytes: usize) -> Option<Self> {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, wherever the system likes.
            let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
            let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
            let pages = Self { start, bytes };
            pages.touch();
            Some(pages)
        }

        pub(crate) fn start(&self) -> NonNull<u8> {
            self.start
        }

        /// Many threads do this at the same time. A driver that finds pages missing brings them in one by one.
        fn touch(&self) {
            for page in (0..self.bytes).step_by(SMALLEST_PAGE) {
                // SAFETY: within the mapping, which nobody else knows of.
                unsafe { self.start.add(page).write_volatile(0) };
            }
        }
    }

    impl Drop for OwnPages {
        fn drop(&mut self) {
            // SAFETY: the range was mapped by `map`, and this is its only owner. A failure leaves it mapped.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod nowhere {
    use std::ptr::NonNull;

    /// There are none.
    pub(crate) enum OwnPages {}

    impl OwnPages {
        /// `None`: drivers have memory of their own.
        pub(crate) fn map(_: usize) -> Option<Self> {
            None
        }

        pub(crate) fn start(&self) -> NonNull<u8> {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    #[test]
    fn pages_are_zeroed() {
        let pages = OwnPages::map(3 << 20).unwrap();
        // SAFETY: so many bytes were mapped, zeroed.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pages.start().as_ptr(), 3 << 20) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(1);
    }

    #[test]
    fn too_many_are_refused() {
        assert!([usize::MAX, 1 << 47].iter().all(|much| OwnPages::map(*much).is_none()));
    }
}
