//! Which pages hold memory of the program that is registered with a driver.
//!
//! Drivers lock whole pages. Two registrations that share one are left to none of them: no manual says what becomes of the page when
//! the first one ends.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Duration;

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::runtime::own_pages::page_size;
use crate::runtime::sync::{Condvar, Instant, Mutex, statics};

/// Who wants pages that are being unlocked waits so long for them. A driver may wait for a device before it has unlocked them, and
/// who asks may be what that device waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of each driver, by the number of the first page.
type Ranges = FxHashMap<String, BTreeMap<usize, Range>>;

statics! {
    static LOCKED: Mutex<Ranges> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    static MOVED: Condvar = Condvar::new();
}

#[derive(Clone, Copy)]
struct Range {
    last: usize,
    holder: Holder,
}

/// Who has pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Tensors, copies, streams.
    Users,
    /// Nobody: they are being unlocked.
    Ending,
    /// The driver, which did not unlock them.
    Driver,
}

/// Pages that one registration with a driver has for itself, until they are [released](Self::release): for ever, if they are dropped.
pub(crate) struct LockedPages {
    driver: String,
    first: usize,
}

impl LockedPages {
    /// The pages of a range; the address of one that another registration has, and who has that, if there is such a page. Waits for
    /// pages that are being unlocked, a second at most.
    pub(crate) fn claim(
        driver: &str,
        start: NonNull<u8>,
        bytes: NonZeroUsize,
    ) -> Result<Self, (usize, Holder)> {
        let (start, page) = (start.addr().get(), page_size());
        let (first, last) = (start / page, start.saturating_add(bytes.get() - 1) / page);
        let until = Instant::now() + PATIENCE;
        let mut locked = LOCKED.lock();
        loop {
            let pages = locked.entry(driver.to_owned()).or_default();
            let before = pages.range(..=last).next_back().map(|(_, taken)| *taken);
            let Some(taken) = before.filter(|taken| taken.last >= first) else {
                pages.insert(first, Range { last, holder: Holder::Users });
                return Ok(Self { driver: driver.to_owned(), first });
            };
            if taken.holder != Holder::Ending || MOVED.wait_until(&mut locked, until).timed_out() {
                return Err((taken.last.min(last).saturating_mul(page), taken.holder));
            }
        }
    }

    /// Others that ask for them do as `holder` says.
    pub(crate) fn note(&self, holder: Holder) {
        let mut locked = LOCKED.lock();
        if let Some(range) = locked.get_mut(&self.driver).and_then(|pages| pages.get_mut(&self.first)) {
            range.holder = holder;
        }
        drop(locked);
        MOVED.notify_all();
    }

    /// Others may have them.
    pub(crate) fn release(self) {
        if let Some(pages) = LOCKED.lock().get_mut(&self.driver) {
            pages.remove(&self.first);
        }
        MOVED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    fn claim(driver: &str, start: usize, bytes: usize) -> Result<LockedPages, (usize, Holder)> {
        let start = NonNull::new(std::ptr::without_provenance_mut(start)).unwrap();
        LockedPages::claim(driver, start, NonZeroUsize::new(bytes).unwrap())
    }

    #[test]
    fn a_page_belongs_to_one_registration_with_a_driver() {
        let page = page_size();
        let first = claim("pages", 8 * page + 16, page).unwrap();
        for (start, bytes) in [
            (8 * page + 16, page),
            (8 * page, 1),
            (9 * page + 17, 1),
            (7 * page, page + 1),
            (page, 20 * page),
        ] {
            assert!(claim("pages", start, bytes).is_err(), "{bytes} bytes at {start:#x}");
        }
        assert_eq!(claim("pages", 9 * page + 20, 4).err(), Some((9 * page, Holder::Users)));
        let (before, behind) =
            (claim("pages", 7 * page, page).unwrap(), claim("pages", 10 * page, 1).unwrap());
        claim("others", 8 * page, 1).unwrap().release();
        first.release();
        claim("pages", 8 * page, 2 * page).unwrap().release();
        before.release();
        behind.release();
    }
}
