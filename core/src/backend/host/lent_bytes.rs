//! The bytes of an owner, asked for once.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// An owner, boxed before it was asked where its bytes are. A raw pointer: moving a `Box` would assert that nothing else points into it.
pub(crate) struct LentBytes<O> {
    owner: NonNull<O>,
    start: NonNull<u8>,
    bytes: usize,
}

impl<O: AsRef<[u8]> + Send + Sync + 'static> LentBytes<O> {
    /// Asks the owner.
    pub(crate) fn of(owner: O) -> Self {
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        // Owns the box already, should `as_ref` panic.
        let mut lent = Self { owner, start: NonNull::dangling(), bytes: 0 };
        // SAFETY: the box is leaked and freed by nobody but `lent`; nothing refers to it mutably before that.
        let bytes = unsafe { owner.as_ref() }.as_ref();
        lent.bytes = bytes.len();
        lent.start = NonNull::from(bytes).cast();
        lent
    }

    /// Where the bytes are, how many, and the leaked box of their owner, which is the caller's to free.
    pub(super) fn into_parts(self) -> (NonNull<u8>, usize, NonNull<dyn Any + Send + Sync>) {
        let lent = ManuallyDrop::new(self);
        (lent.start, lent.bytes, lent.owner)
    }
}

impl<O> LentBytes<O> {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The owner, whose bytes nobody uses.
    pub(crate) fn into_owner(self) -> O {
        let lent = ManuallyDrop::new(self);
        // SAFETY: the pointer is of a box that was leaked, and `lent`, its only owner, is not dropped.
        *unsafe { Box::from_raw(lent.owner.as_ptr()) }
    }
}

impl<O> Drop for LentBytes<O> {
    fn drop(&mut self) {
        // SAFETY: as for `into_owner`; this is `drop`, which runs once.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}
