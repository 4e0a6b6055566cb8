//! The allocator of this library, which keeps the memory of longer lists for the next call.
//!
//! Where thousands of small blocks are free, as those of PyTorch's tensors that were let go of, the C library sorts all of them when it is asked for
//! a larger one. A call waited 31 us for that behind 528 tensors, and 140 us behind 2,000, until it had memory for the list of its leaves (H200).
//! There is no lock that a `fork` could leave behind, which is why this is none of the allocators that others have written.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The memory of the C library, or another one, of which blocks of 129 bytes to 4 MiB are kept when they are given back.
#[repr(C, align(64))]
pub struct KeptBlocks<A = System> {
    /// For each power of two the blocks of as many bytes that are free: a line of the cache each.
    free: [[AtomicPtr<u8>; MOST]; CLASSES],
    memory: A,
}

/// For requests that are not larger the C library has lists by their exact sizes, and mostly sorts nothing.
const LARGEST_LEFT: usize = 128;
/// Blocks of 256 bytes to 4 MiB.
const SMALLEST_LOG2: u32 = 8;
const CLASSES: usize = 15;
/// So many blocks are kept of a class; of those above 256 KiB, which are few in a call, so many: 19 MiB in all.
const MOST: usize = 8;
const MOST_LARGE: usize = 2;
const LARGE_CLASS: usize = 11;
/// What the C library aligns blocks to without being asked.
const ALIGNMENT: usize = 2 * size_of::<usize>();

impl KeptBlocks {
    pub const fn new() -> Self {
        Self::of(System)
    }
}

impl<A> KeptBlocks<A> {
    const fn of(memory: A) -> Self {
        Self { free: [const { [const { AtomicPtr::new(ptr::null_mut()) }; MOST] }; CLASSES], memory }
    }

    fn places(&self, class: usize) -> &[AtomicPtr<u8>] {
        &self.free[class][..if class < LARGE_CLASS { MOST } else { MOST_LARGE }]
    }

    fn take(&self, class: usize) -> Option<*mut u8> {
        let taken = self.places(class).iter().map(|place| match place.load(Ordering::Relaxed).is_null() {
            true => ptr::null_mut(),
            false => place.swap(ptr::null_mut(), Ordering::Acquire),
        });
        taken.into_iter().find(|block| !block.is_null())
    }

    fn keep(&self, class: usize, block: *mut u8) -> bool {
        self.places(class).iter().any(|place| {
            let put = |place: &AtomicPtr<u8>| {
                place.compare_exchange(ptr::null_mut(), block, Ordering::Release, Ordering::Relaxed)
            };
            place.load(Ordering::Relaxed).is_null() && put(place).is_ok()
        })
    }
}

/// The number of the class that a block of this layout is of.
fn class_of(layout: Layout) -> Option<usize> {
    if layout.size() <= LARGEST_LEFT || layout.align() > ALIGNMENT {
        return None;
    }
    let log2 = usize::BITS - (layout.size() - 1).leading_zeros();
    let class = log2.saturating_sub(SMALLEST_LOG2) as usize;
    (class < CLASSES).then_some(class)
}

/// What blocks of a class are asked for as.
fn whole(class: usize) -> Option<Layout> {
    Layout::from_size_align(1 << (SMALLEST_LOG2 as usize + class), ALIGNMENT).ok()
}

// SAFETY: a block of a class is one of `memory` that has as many bytes, which its layout has no more than (`class_of`). It is either in use, or in one
// place: it is put there where it is given back, and who takes it leaves nothing there (`swap`). All others are those of `memory`.
unsafe impl<A: GlobalAlloc> GlobalAlloc for KeptBlocks<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            // SAFETY: the caller's promise.
            None => unsafe { self.memory.alloc(layout) },
            Some(class) => self.take(class).unwrap_or_else(|| match whole(class) {
                // SAFETY: it is not empty.
                Some(whole) => unsafe { self.memory.alloc(whole) },
                None => ptr::null_mut(),
            }),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = class_of(layout);
        if class.is_some_and(|class| self.keep(class, block)) {
            return;
        }
        // SAFETY: the caller's promise; a block of a class was asked for as a whole.
        unsafe { self.memory.dealloc(block, class.and_then(whole).unwrap_or(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_none() {
            // SAFETY: the caller's promise.
            return unsafe { self.memory.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise; the block has as many bytes.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(grown) = Layout::from_size_align(size, layout.align()) else { return ptr::null_mut() };
        match (class_of(layout), class_of(grown)) {
            // SAFETY: the caller's promise.
            (None, None) => unsafe { self.memory.realloc(block, layout, size) },
            (from, to) if from == to => block,
            // SAFETY: the caller's promise; both have as many bytes as are copied, and the new one is another one.
            _ => unsafe {
                let moved = self.alloc(grown);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint;
    use std::sync::atomic::AtomicIsize;
    use std::thread;

    use super::*;

    /// Counts the blocks that it has given.
    #[derive(Default)]
    struct Counted(AtomicIsize);

    // SAFETY: all of it is that of `System`.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            self.0.fetch_add(1, Ordering::Relaxed);
            // SAFETY: passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            self.0.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: passed on.
            unsafe { System.dealloc(block, layout) }
        }
    }

    /// Gives back what is kept; nothing else is left then.
    fn end(kept: KeptBlocks<Counted>) {
        for class in 0..CLASSES {
            while let Some(block) = kept.take(class) {
                // SAFETY: it is one of its class, and nobody else has it.
                unsafe { kept.memory.dealloc(block, whole(class).unwrap()) };
            }
        }
        assert_eq!(kept.memory.0.into_inner(), 0, "blocks that nobody has any more");
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// Deliberate bugs that it catches: `keep` that keeps nothing; `class_of` that rounds down.
    #[test]
    fn a_block_that_was_given_back_is_the_next_one_of_its_class() {
        let kept = KeptBlocks::of(Counted::default());
        for (size, next) in [(129, 256), (1025, 2000), (4 << 20, (2 << 20) + 1)] {
            // SAFETY: each block is given back once, as it was asked for.
            unsafe {
                let block = kept.alloc(layout(size));
                block.write_bytes(1, size);
                kept.dealloc(block, layout(size));
                let again = kept.alloc(layout(next));
                assert_eq!(again, block, "{size} and {next} bytes");
                again.write_bytes(2, next);
                let other = kept.alloc_zeroed(layout(size));
                assert_ne!(other, block);
                assert!((0..size).all(|at| *other.add(at) == 0));
                kept.dealloc(again, layout(next));
                let zeroed = kept.alloc_zeroed(layout(size));
                assert!((0..size).all(|at| *zeroed.add(at) == 0), "{size} bytes that were used before");
                kept.dealloc(zeroed, layout(size));
                kept.dealloc(other, layout(size));
            }
        }
        end(kept);
    }

    /// Deliberate bugs that it catches: `places` that are as many for large blocks; a class more; `dealloc` that leaks what there is no place for.
    #[test]
    fn no_more_is_kept_than_is_said() {
        let kept = KeptBlocks::of(Counted::default());
        for size in [1, 100, 128, 129, 256, 1 << 16, 1 << 18, (1 << 18) + 1, 1 << 22, (1 << 22) + 1] {
            // SAFETY: as above.
            unsafe {
                let blocks: Vec<_> = (0..20).map(|_| kept.alloc(layout(size))).collect();
                blocks.iter().for_each(|block| block.write_bytes(3, size));
                blocks.into_iter().for_each(|block| kept.dealloc(block, layout(size)));
            }
        }
        let classes = (0..CLASSES).map(|class| {
            let is_kept = |place: &&AtomicPtr<u8>| !place.load(Ordering::Relaxed).is_null();
            kept.free[class].iter().filter(is_kept).count() << (SMALLEST_LOG2 as usize + class)
        });
        let classes: Vec<usize> = classes.collect();
        let expected = [8 << 8, 0, 0, 0, 0, 0, 0, 0, 8 << 16, 0, 8 << 18, 2 << 19, 0, 0, 2 << 22];
        assert_eq!(classes, expected);
        end(kept);
    }

    /// Deliberate bugs that it catches: `realloc` that keeps the block for any class, or the old one for good. That it reads no further than the block Miri shows.
    #[test]
    fn what_grows_and_shrinks_keeps_its_bytes_and_its_alignment() {
        let kept = KeptBlocks::of(Counted::default());
        for align in [1, 8, 16, 64, 4096] {
            // SAFETY: each block is given back once, as it was asked for last; what is read was written.
            unsafe {
                let mut size = 60;
                let mut block = kept.alloc(Layout::from_size_align(size, align).unwrap());
                (0..size).for_each(|at| *block.add(at) = at as u8);
                for next in [128, 129, 256, 5000, 70_000, 5 << 20, 6 << 20, 300_000, 257, 128, 40] {
                    block = kept.realloc(block, Layout::from_size_align(size, align).unwrap(), next);
                    assert_eq!(block.addr() % align, 0);
                    assert!(
                        (0..size.min(next)).all(|at| *block.add(at) == at as u8),
                        "{size} to {next} bytes"
                    );
                    size = next;
                    (0..size).for_each(|at| *block.add(at) = at as u8);
                }
                kept.dealloc(block, Layout::from_size_align(size, align).unwrap());
            }
        }
        end(kept);
    }

    /// Deliberate bugs that it catches: `take` that loads a block and stores null, or empties all places; `keep` that stores without looking.
    #[test]
    fn no_two_threads_have_the_same_block() {
        let kept = KeptBlocks::of(Counted::default());
        let work = |thread: u8| {
            for round in 0..300_000_usize {
                let size = 129 + (round * 7 + usize::from(thread)) % 3000;
                // SAFETY: as above.
                unsafe {
                    let block = kept.alloc(layout(size));
                    block.write_bytes(thread, size);
                    hint::spin_loop();
                    assert!([0, size / 2, size - 1].iter().all(|at| *block.add(*at) == thread));
                    kept.dealloc(block, layout(size));
                }
            }
        };
        thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
        end(kept);
    }
}
