//! Which pages hold memory of the program that is registered with a driver.
//!
//! Drivers lock whole pages. Two registrations that share one are left to none of them: no manual says what becomes of the page when
//! the first one ends.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::runtime::own_pages::page_size;
use crate::runtime::sync::{Mutex, statics};

statics! {
    // Of each driver, by the number of the first page, the number of the last.
    static LOCKED: Mutex<FxHashMap<String, BTreeMap<usize, usize>>> =
        Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
}

/// Pages that one registration with a driver has for itself, until they are [released](Self::release): for ever, if they are dropped.
pub(crate) struct LockedPages {
    driver: String,
    first: usize,
}

impl LockedPages {
    /// The pages of a range; the address of one that another registration has, if there is such a page.
    pub(crate) fn claim(driver: &str, start: NonNull<u8>, bytes: NonZeroUsize) -> Result<Self, usize> {
        let (start, page) = (start.addr().get(), page_size());
        let (first, last) = (start / page, start.saturating_add(bytes.get() - 1) / page);
        let mut locked = LOCKED.lock();
        let pages = locked.entry(driver.to_owned()).or_default();
        match pages.range(..=last).next_back() {
            Some((_, taken)) if *taken >= first => Err((*taken).min(last).saturating_mul(page)),
            _ => {
                pages.insert(first, last);
                Ok(Self { driver: driver.to_owned(), first })
            }
        }
    }

    /// Others may have them.
    pub(crate) fn release(self) {
        if let Some(pages) = LOCKED.lock().get_mut(&self.driver) {
            pages.remove(&self.first);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    fn claim(driver: &str, start: usize, bytes: usize) -> Result<LockedPages, usize> {
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
        assert_eq!(claim("pages", 9 * page + 20, 4).err(), Some(9 * page));
        let (before, behind) =
            (claim("pages", 7 * page, page).unwrap(), claim("pages", 10 * page, 1).unwrap());
        claim("others", 8 * page, 1).unwrap().release();
        first.release();
        claim("pages", 8 * page, 2 * page).unwrap().release();
        before.release();
        behind.release();
    }
}
