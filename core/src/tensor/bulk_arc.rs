//! Shared ownership of which many shares are had at once.
//!
//! A copy puts one piece of memory into hundreds of tensors. Counted one by one, as by [`Arc`](std::sync::Arc), that took two
//! thirds of the time of putting them in: each count waits for all that was written before it.

use std::marker::PhantomData;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;
// Not those of the model checker, which knows the counts of `Arc` as little.
use std::sync::atomic::{AtomicUsize, Ordering};

/// So far below the end that no number of threads, with as many tensors each as there is memory for, counts beyond that before
/// one of them notices.
const MOST: usize = isize::MAX as usize / 2;

/// A share of a value, which is dropped with the last one. As an `Arc`, without weak ones.
pub(crate) struct BulkArc<T> {
    inner: NonNull<Inner<T>>,
    owns: PhantomData<Inner<T>>,
}

/// The count lies next to what is looked at first.
#[repr(C)]
struct Inner<T> {
    count: AtomicUsize,
    value: T,
}

// SAFETY: as for `Arc`: shares give `&T` to several threads (`Sync`), and any of them may drop the value (`Send`).
unsafe impl<T: Send + Sync> Send for BulkArc<T> {}
// SAFETY: as above: a reference to a share can be cloned.
unsafe impl<T: Send + Sync> Sync for BulkArc<T> {}

impl<T> BulkArc<T> {
    pub(crate) fn new(value: T) -> Self {
        let inner = Box::into_raw(Box::new(Inner { count: AtomicUsize::new(1), value }));
        // SAFETY: a box is not null.
        Self { inner: unsafe { NonNull::new_unchecked(inner) }, owns: PhantomData }
    }

    /// `count` more shares, counted now.
    #[inline]
    pub(crate) fn shares(&self, count: usize) -> BulkClones<T> {
        self.add(count);
        BulkClones { inner: self.inner, left: count, owns: PhantomData }
    }

    /// What tells the value from any other that is alive.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.inner.as_ptr().addr()
    }

    /// Whether there are other shares.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.inner().count.load(Ordering::Acquire) > 1
    }

    /// The value, if there are no other shares.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_shared() {
            return None;
        }
        // SAFETY: this is the only share, and it is borrowed: nobody can clone it. What former ones did to the value came before
        // (`is_shared` acquires what `let_go` has released).
        Some(unsafe { &mut self.inner.as_mut().value })
    }

    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: it lives as long as there are shares.
        unsafe { self.inner.as_ref() }
    }

    #[inline]
    fn add(&self, count: usize) {
        // Whoever adds has a share: nothing needs to be ordered.
        if count > MOST || self.inner().count.fetch_add(count, Ordering::Relaxed) > MOST {
            abort();
        }
    }
}

impl<T> Clone for BulkArc<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.add(1);
        Self { inner: self.inner, owns: PhantomData }
    }
}

impl<T> Deref for BulkArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for BulkArc<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this share is gone.
        unsafe { let_go(self.inner, 1) }
    }
}

/// BulkClones that are counted and not given out yet.
pub(crate) struct BulkClones<T> {
    inner: NonNull<Inner<T>>,
    left: usize,
    owns: PhantomData<Inner<T>>,
}

impl<T> Iterator for BulkClones<T> {
    type Item = BulkArc<T>;

    #[inline]
    fn next(&mut self) -> Option<BulkArc<T>> {
        self.left = self.left.checked_sub(1)?;
        Some(BulkArc { inner: self.inner, owns: PhantomData })
    }
}

impl<T> Drop for BulkClones<T> {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            // SAFETY: so many are counted, and given to nobody.
            unsafe { let_go(self.inner, self.left) }
        }
    }
}

/// # Safety
///
/// The caller has `count` shares, at least one, and uses none of them any more.
#[inline]
unsafe fn let_go<T>(inner: NonNull<Inner<T>>, count: usize) {
    // SAFETY: it lives as long as there are shares. Only the count is referred to: another thread may drop the value meanwhile.
    let shares = unsafe { &(*inner.as_ptr()).count };
    if shares.fetch_sub(count, Ordering::Release) == count {
        // Behind whatever the others did to the value, whose release this acquires.
        shares.load(Ordering::Acquire);
        // SAFETY: these were the last ones.
        unsafe { drop_last(inner) }
    }
}

/// # Safety
///
/// There are no shares any more.
#[inline(never)]
unsafe fn drop_last<T>(inner: NonNull<Inner<T>>) {
    // SAFETY: it was a box, and nobody has it.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn counted() -> (BulkArc<Arc<()>>, Arc<()>) {
        let value = Arc::new(());
        (BulkArc::new(value.clone()), value)
    }

    #[test]
    fn the_value_goes_with_the_last_share() {
        let (first, value) = counted();
        let second = first.clone();
        assert_eq!(first.address(), second.address());
        drop(first);
        assert_eq!(Arc::strong_count(&value), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    /// Mutant: shares that were not given out stay counted (103).
    #[test]
    fn shares_that_are_not_given_out_are_let_go_of() {
        let (mut first, value) = counted();
        let mut shares = first.shares(5);
        let given = shares.by_ref().take(2).collect::<Vec<_>>();
        assert!(first.get_mut().is_none());
        drop(shares);
        drop(given);
        assert!(!first.is_shared() && first.get_mut().is_some());

        let shares = first.shares(3);
        drop(first);
        assert_eq!((Arc::strong_count(&value), shares.count()), (2, 3));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn no_share_is_given_out_twice() {
        let (first, _) = counted();
        let mut shares = first.shares(1);
        assert!(shares.next().is_some() && shares.next().is_none() && shares.next().is_none());
        assert!(first.shares(0).next().is_none());
    }

    #[test]
    fn threads_see_what_others_did_before_they_let_go() {
        for _ in 0..if cfg!(miri) { 10 } else { 200 } {
            let mut first = BulkArc::new(AtomicUsize::new(0));
            let threads = first
                .shares(4)
                .map(|share| thread::spawn(move || share.fetch_add(1, Ordering::Relaxed)))
                .collect::<Vec<_>>();
            let sum = loop {
                match first.get_mut() {
                    Some(sum) => break *sum.get_mut(),
                    None => thread::yield_now(),
                }
            };
            assert_eq!(sum, 4);
            for thread in threads {
                thread.join().unwrap();
            }
        }
    }
}
