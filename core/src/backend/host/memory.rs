//! Memory of the host as a [`Buffer`]: allocated here, or lent by an owner of any type.

use std::alloc;
use std::alloc::Layout as Block;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::backend::host::lent_bytes::LentBytes;
use crate::backend::{Buffer, MemoryKind};
use crate::device_id::DeviceId;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::huge_pages;

/// How memory that is allocated here is aligned: as far as device memory is, so that options for one suit the other.
const ALIGNMENT: usize = 256;

/// Ordinary host memory.
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
    owner: Owner,
}

/// Who gives the memory back.
enum Owner {
    /// Nobody: there is none.
    Nobody,
    /// The global allocator, of a block that begins there.
    Allocator(NonNull<u8>, Block),
    /// A value that was boxed before its memory was looked at. A raw pointer: moving a `Box` would assert that
    /// nothing else points into it.
    Lender(NonNull<dyn Any + Send + Sync>),
}

// SAFETY: the pointers stand for memory that this value owns, or for a `Send + Sync` owner of it; nothing is reached
// through them but by `Drop` and under the rules of `Storage`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// The elements of a vector, in place.
    pub(crate) fn from_vec<T: Element>(vec: Vec<T>) -> Self {
        let bytes = size_of_val(vec.as_slice());
        match Block::array::<T>(vec.capacity()) {
            Ok(block) if block.size() > 0 => {
                let mut vec = ManuallyDrop::new(vec);
                // SAFETY: the pointer of a vector is never null.
                let start = unsafe { NonNull::new_unchecked(vec.as_mut_ptr().cast()) };
                Self { start, bytes, writable: true, owner: Owner::Allocator(start, block) }
            }
            _ => Self::empty(),
        }
    }

    /// The bytes of an owner, read-only. Asks it once where they are.
    pub(crate) fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::lent(LentBytes::of(owner))
    }

    /// Those of one that was asked.
    pub(crate) fn lent(bytes: LentBytes<impl AsRef<[u8]> + Send + Sync + 'static>) -> Self {
        let (start, bytes, owner) = bytes.into_parts();
        Self { start, bytes, writable: false, owner: Owner::Lender(owner) }
    }

    /// Whether [`into_vec`](Self::into_vec) gives the memory out.
    pub(crate) fn is_vec_of<T: Element>(&self) -> bool {
        match self.owner {
            Owner::Nobody => true,
            Owner::Allocator(start, block) => {
                start == self.start
                    && block.align() == align_of::<T>()
                    && block.size().is_multiple_of(size_of::<T>())
                    && self.bytes.is_multiple_of(size_of::<T>())
            }
            Owner::Lender(_) => false,
        }
    }

    /// The memory as a vector, where a vector of `T` can have allocated it.
    ///
    /// # Safety
    ///
    /// All of it is initialised, and a valid `T` each.
    pub(crate) unsafe fn into_vec<T: Element>(self) -> Option<Vec<T>> {
        if !self.is_vec_of::<T>() {
            return None;
        }
        let memory = ManuallyDrop::new(self);
        Some(match memory.owner {
            Owner::Allocator(start, block) => {
                let (length, capacity) = (memory.bytes / size_of::<T>(), block.size() / size_of::<T>());
                // SAFETY: the global allocator has given out this block there, which is that of an array of `capacity` elements
                // (`is_vec_of`); the elements are the caller's promise; `memory` is not dropped.
                unsafe { Vec::from_raw_parts(start.as_ptr().cast(), length, capacity) }
            }
            _ => Vec::new(),
        })
    }

    /// Zeros.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self> {
        if bytes >= huge_pages::LEAST {
            return Self::zeroed_by_the_system(bytes);
        }
        // SAFETY: `allocate` passes on a block that is not empty.
        Self::allocate(bytes, |block| unsafe { alloc::alloc_zeroed(block) })
    }

    /// Zeros that the system makes when the memory is touched, by whatever thread: for a larger alignment than that of `malloc` the
    /// allocator would write all of them here.
    fn zeroed_by_the_system(bytes: usize) -> Result<Self> {
        let room = bytes.checked_add(huge_pages::SIZE).ok_or_else(|| not_allocated(bytes))?;
        let block = Block::array::<u8>(room).map_err(|_| not_allocated(bytes))?;
        // SAFETY: the block is not empty.
        let owned =
            NonNull::new(unsafe { alloc::alloc_zeroed(block) }).ok_or_else(|| not_allocated(bytes))?;
        let lead = owned.align_offset(huge_pages::SIZE).min(huge_pages::SIZE);
        // SAFETY: `lead` is at most what `room` has more than `bytes`.
        let start = unsafe { owned.add(lead) };
        Ok(Self { start, bytes, writable: true, owner: Owner::Allocator(owned, block) }.in_huge_pages())
    }

    /// Memory that is written before it is read.
    pub(crate) fn uninit(bytes: usize) -> Result<Self> {
        // SAFETY: as above.
        Self::allocate(bytes, |block| unsafe { alloc::alloc(block) }).map(Self::in_huge_pages)
    }

    /// As far as the system has such pages, and the memory is large enough and not touched yet.
    fn in_huge_pages(self) -> Self {
        if self.bytes >= huge_pages::LEAST {
            huge_pages::advise(self.start, self.bytes);
        }
        self
    }

    /// Where the memory starts, for writing; only for memory that was allocated here.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        debug_assert!(self.writable);
        self.start.as_ptr()
    }

    fn allocate(bytes: usize, allocator: impl FnOnce(Block) -> *mut u8) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self::empty());
        }
        let alignment = if bytes >= huge_pages::LEAST { huge_pages::SIZE } else { ALIGNMENT };
        let block = Block::from_size_align(bytes, alignment);
        let block =
            block.or_else(|_| Block::from_size_align(bytes, ALIGNMENT)).map_err(|_| not_allocated(bytes))?;
        let start = NonNull::new(allocator(block)).ok_or_else(|| not_allocated(bytes))?;
        Ok(Self { start, bytes, writable: true, owner: Owner::Allocator(start, block) })
    }

    /// Memory of no bytes.
    pub(crate) fn empty() -> Self {
        #[repr(align(256))]
        struct Aligned;
        const { assert!(align_of::<Aligned>() == ALIGNMENT) };
        Self { start: NonNull::<Aligned>::dangling().cast(), bytes: 0, writable: true, owner: Owner::Nobody }
    }
}

/// The error of host memory that could not be allocated.
pub(crate) fn not_allocated(bytes: usize) -> Error {
    let (device, kind, requested) = (DeviceId::HOST, "host", bytes);
    match Block::from_size_align(bytes, ALIGNMENT) {
        Ok(_) => Error::OutOfMemory { device, kind, requested, free: 0, total: 0 },
        Err(_) => Error::TooLarge { device, kind, requested, limit: isize::MAX as usize },
    }
}

// SAFETY: the memory stays in place until `Drop` gives it back: an allocation is never grown, and a lender stays in its
// box with nothing but `AsRef` ever called on it, once. `release` keeps it until the tickets are reached.
unsafe impl Buffer for HostMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }

    fn address(&self) -> Option<u64> {
        Some(self.start.as_ptr().expose_provenance() as u64)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        Some((self.start, self.writable))
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match self.owner {
            Owner::Nobody => {}
            // SAFETY: the global allocator has given out this block there (`Vec` allocates there as well, with the block of an
            // array of its capacity), and this is the only owner.
            Owner::Allocator(start, block) => unsafe { alloc::dealloc(start.as_ptr(), block) },
            // SAFETY: the pointer is of a box that was leaked, and this is the only owner.
            Owner::Lender(owner) => drop(unsafe { Box::from_raw(owner.as_ptr()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Lends its own bytes, counts what is asked of it, and is told to panic.
    struct Lender {
        bytes: [u8; 3],
        asked: Arc<AtomicUsize>,
        dropped: Arc<AtomicUsize>,
        panics: bool,
    }

    impl AsRef<[u8]> for Lender {
        fn as_ref(&self) -> &[u8] {
            self.asked.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics);
            &self.bytes
        }
    }

    impl Drop for Lender {
        fn drop(&mut self) {
            self.bytes = [0; 3];
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lender(panics: bool) -> (Lender, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        let (asked, dropped) = (Arc::default(), Arc::default());
        (
            Lender { bytes: [1, 2, 3], asked: Arc::clone(&asked), dropped: Arc::clone(&dropped), panics },
            asked,
            dropped,
        )
    }

    fn read(memory: &HostMemory) -> &[u8] {
        // SAFETY: the range is the memory's, initialised by each caller, and outlives the borrow.
        unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), memory.bytes) }
    }

    #[test]
    fn a_lender_is_asked_once_stays_in_place_and_is_dropped_once() {
        let (lender, asked, dropped) = lender(false);
        let memory = HostMemory::from_owner(lender);
        let start = memory.host_pointer().unwrap();
        let boxed: Box<dyn Buffer> = Box::new(memory);
        assert_eq!(boxed.host_pointer().unwrap(), start);
        // SAFETY: the lender's three bytes, which `boxed` keeps.
        assert_eq!(unsafe { std::slice::from_raw_parts(start.0.as_ptr(), 3) }, [1, 2, 3]);
        assert!(!start.1, "lent memory is read-only");
        assert_eq!((asked.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed)), (1, 0));
        drop(boxed);
        assert_eq!((asked.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_lender_that_panics_is_dropped() {
        let (lender, _, dropped) = lender(true);
        assert!(catch_unwind(AssertUnwindSafe(|| HostMemory::from_owner(lender))).is_err());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_vector_stays_where_it_is() {
        let mut vec = Vec::with_capacity(10);
        vec.extend([1_u16, 2, 3]);
        let start = vec.as_ptr().cast();
        let memory = HostMemory::from_vec(vec);
        assert_eq!((memory.start.as_ptr().cast_const(), memory.bytes()), (start, 6));
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, u16>(read(&memory)), [1, 2, 3]);
    }

    #[test]
    fn allocations_are_aligned_and_zeros_are_zero() {
        let memory = HostMemory::zeroed(100).unwrap();
        assert_eq!(read(&memory), [0; 100]);
        assert_eq!(memory.start.addr().get() % ALIGNMENT, 0);
        let large = HostMemory::zeroed(huge_pages::LEAST + 5).unwrap();
        assert!(large.start.addr().get().is_multiple_of(huge_pages::SIZE) || cfg!(miri));
        assert!(read(&large).iter().step_by(997).all(|byte| *byte == 0) && read(&large).ends_with(&[0; 5]));
        assert_eq!(HostMemory::uninit(1).unwrap().start.addr().get() % ALIGNMENT, 0);
    }

    #[test]
    fn no_bytes_need_no_allocation() {
        let vec = HostMemory::from_vec(Vec::<f64>::new());
        for memory in [HostMemory::zeroed(0).unwrap(), HostMemory::uninit(0).unwrap(), vec] {
            assert!(matches!(memory.owner, Owner::Nobody));
            assert_eq!(read(&memory), []);
        }
        assert_eq!(read(&HostMemory::from_vec(Vec::<f64>::with_capacity(4))), []);
    }

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        assert!(matches!(HostMemory::zeroed(usize::MAX), Err(Error::TooLarge { requested: usize::MAX, .. })));
        if !cfg!(miri) {
            let most = isize::MAX as usize - ALIGNMENT;
            assert!(
                matches!(HostMemory::uninit(most), Err(Error::OutOfMemory { requested, .. }) if requested == most)
            );
        }
    }
}
