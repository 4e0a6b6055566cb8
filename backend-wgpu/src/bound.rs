//! Launches that are kept with what they bind, for the next copy of the same tensors.
//!
//! To bind hundreds of buffers takes about as long as all else that the host does for such a copy. wgpu keeps a buffer for as long as
//! something binds it, so a buffer that goes takes the launches along that bind it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wgpu::{BindGroup, Buffer};

/// More ranges are bound anew each time: what wgpu keeps for one has some hundred bytes.
const MOST_RANGES: usize = 8192;

/// Tells a buffer from all others, of before and of later too.
pub(crate) struct Tag {
    number: u64,
    is_bound: AtomicBool,
}

/// A range of a buffer, and where it goes in the memory that the kernel writes. All numbers are multiples of 4.
pub(crate) struct Range<'a> {
    pub(crate) from: &'a Buffer,
    /// Of the buffer.
    pub(crate) tag: &'a Tag,
    pub(crate) offset: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

/// One launch of a kernel.
pub(crate) struct Launch {
    pub(crate) sources: BindGroup,
    /// How many ranges, and in how many parts each.
    pub(crate) size: [u32; 2],
}

/// The launches for certain ranges.
pub(crate) struct Bound {
    launches: Vec<Launch>,
    /// `None` if there are too many of them to be kept.
    ranges: Option<BoundRanges>,
}

struct BoundRanges {
    keys: Vec<Key>,
    /// The numbers of the buffers, in order.
    numbers: Vec<u64>,
}

/// What tells a range from others: the number of its buffer, from where, to where, and how many bytes.
type Key = (u64, u64, u64, u64);

impl Tag {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), is_bound: AtomicBool::new(false) }
    }

    /// The number of the buffer, if launches that are kept may bind it.
    pub(crate) fn bound_number(&mut self) -> Option<u64> {
        self.is_bound.get_mut().then_some(self.number)
    }
}

impl Bound {
    /// `launches` bind the buffers of `ranges`.
    pub(crate) fn new(ranges: &[Range<'_>], launches: Vec<Launch>) -> Self {
        let is_kept = ranges.len() <= MOST_RANGES;
        Self { launches, ranges: is_kept.then(|| BoundRanges::new(ranges)) }
    }

    pub(crate) fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Whether these are the launches for `ranges`.
    pub(crate) fn is_for(&self, ranges: &[Range<'_>]) -> bool {
        self.ranges.as_ref().is_some_and(|own| own.are(ranges))
    }

    /// Whether it is kept, and binds the buffer of this number.
    pub(crate) fn binds(&self, number: u64) -> bool {
        self.ranges.as_ref().is_some_and(|own| own.numbers.binary_search(&number).is_ok())
    }

    /// Whether it is small enough to be kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.ranges.is_some()
    }
}

impl BoundRanges {
    fn new(ranges: &[Range<'_>]) -> Self {
        let mut numbers: Vec<u64> = ranges.iter().map(|range| range.tag.number).collect();
        numbers.sort_unstable();
        // Whoever drops one of the buffers sees it: the submission keeps them until the launches are put away.
        ranges.iter().for_each(|range| range.tag.is_bound.store(true, Ordering::Relaxed));
        Self { keys: ranges.iter().map(key).collect(), numbers }
    }

    fn are(&self, ranges: &[Range<'_>]) -> bool {
        self.keys.len() == ranges.len() && self.keys.iter().zip(ranges).all(|(own, range)| *own == key(range))
    }
}

fn key(range: &Range<'_>) -> Key {
    (range.tag.number, range.offset, range.to, range.bytes)
}
