//! Which leaves are copied at all, which of them may share a chunk, and in what order.

use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use crate::alignment::Alignment;
use crate::plan::leaf::{Leaf, Place, RangeKey};
use crate::plan::plan::{PlanError, Route};
use crate::plan::rules::Rules;

/// A leaf that is copied.
pub(crate) struct Copied {
    pub(crate) bytes: usize,
    pub(crate) leaf: u32,
    rank: Rank,
}

/// What leaves are ordered by: the source, then shared chunks before others, then descending alignment. In one word,
/// since every leaf is compared with the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

impl Copied {
    #[inline]
    pub(crate) fn source(&self) -> u16 {
        (self.rank.0 >> 16) as u16
    }

    #[inline]
    fn may_share(&self) -> bool {
        self.rank.0 & Rank::ALONE != Rank::ALONE
    }

    /// What its offset in a shared chunk is a multiple of; `None` if it must have a chunk of its own.
    #[inline]
    pub(crate) fn alignment(&self) -> Option<Alignment> {
        const LARGEST: usize = 1 << (usize::BITS - 1);
        LARGEST.checked_shr(self.rank.0 & Rank::ALONE).and_then(Alignment::new)
    }
}

impl Rank {
    /// In the place of the zeros ahead of the alignment, which are fewer.
    const ALONE: u32 = 0xffff;

    #[inline]
    fn of(leaf: &Leaf, source: u16, rules: &Rules) -> Self {
        let within = if rules.packs(leaf) {
            leaf.alignment.max(rules.alignment).bytes().leading_zeros()
        } else {
            Self::ALONE
        };
        Self(u32::from(source) << 16 | within)
    }
}

/// Routes for the leaves that are not copied, and the others by rank, in the order given within a rank.
pub(crate) fn classify(leaves: &[Leaf], rules: &Rules) -> Result<(Vec<Route>, Vec<Copied>), PlanError> {
    let count = u32::try_from(leaves.len()).map_err(|_| PlanError::TooManyLeaves { count: leaves.len() })?;
    let mut copied = Vec::with_capacity(leaves.len());
    let mut large = Vec::new();
    let mut firsts = Firsts::new(leaves);
    let routes = (0..count)
        .zip(leaves)
        .map(|(index, leaf)| match leaf.place {
            Place::Resident => Route::Resident,
            Place::From(_) if leaf.bytes == 0 => Route::Empty,
            Place::From(source) => match firsts.of(leaf, index) {
                Some(first) => Route::Alias(first),
                None => {
                    let copy = Copied { bytes: leaf.bytes, leaf: index, rank: Rank::of(leaf, source, rules) };
                    if copy.may_share() {
                        copied.push(copy)
                    } else {
                        large.push(copy)
                    }
                    UNPLACED
                }
            },
        })
        .collect();
    copied.append(&mut large);
    if !copied.is_sorted_by_key(|leaf| leaf.rank) {
        copied.sort_by_key(|leaf| leaf.rank);
    }
    Ok((routes, copied))
}

/// Stands for the route of a leaf that is yet to be placed; no chunk has this index.
const UNPLACED: Route = Route::Alone { chunk: u32::MAX, offset: 0 };

/// The first leaf over each range.
struct Firsts<'a> {
    doubtful: Doubtful,
    known: FxHashMap<SameMemory<'a>, u32>,
}

impl<'a> Firsts<'a> {
    fn new(leaves: &[Leaf]) -> Self {
        Self { doubtful: Doubtful::among(leaves), known: FxHashMap::default() }
    }

    /// The earlier leaf over the same memory; if there is none, later ones will find this one.
    fn of(&mut self, leaf: &'a Leaf, index: u32) -> Option<u32> {
        if !self.doubtful.has(&leaf.range?) {
            return None;
        }
        if self.known.is_empty() {
            self.known.reserve(self.doubtful.expected);
        }
        match self.known.entry(SameMemory(leaf)) {
            Entry::Occupied(first) => Some(*first.get()),
            Entry::Vacant(place) => {
                place.insert(index);
                None
            }
        }
    }
}

/// The ranges that may occur more than once: those that share a bit of a small table with another one. Most structures
/// have few, and looking at two bits costs a fraction of a look into a hash map (1.5 of 6 ns a leaf).
struct Doubtful {
    /// For each range of places which occur, and which of them again.
    words: Vec<(u64, u64)>,
    shift: u32,
    /// About how many are doubtful by chance.
    expected: usize,
}

impl Doubtful {
    /// With so many bits for each range, one in so many is doubtful by chance.
    const BITS_PER_RANGE: usize = 16;

    fn among(leaves: &[Leaf]) -> Self {
        let ranges = leaves.iter().filter(|leaf| leaf.range.is_some()).count();
        let bits =
            ranges.saturating_mul(Self::BITS_PER_RANGE).max(64).checked_next_power_of_two().unwrap_or(64);
        let words = vec![(0, 0); bits / 64];
        let shift =
            bits.leading_zeros().saturating_add(u64::BITS.wrapping_sub(usize::BITS)).saturating_add(1);
        let mut doubtful = Self { words, shift, expected: ranges / (Self::BITS_PER_RANGE / 2) };
        for range in leaves.iter().filter_map(|leaf| leaf.range.as_ref()) {
            doubtful.note(range);
        }
        doubtful
    }

    #[inline]
    fn note(&mut self, range: &RangeKey) {
        let (word, bit) = self.bit_of(range);
        if let Some((once, again)) = self.words.get_mut(word) {
            *again |= *once & bit;
            *once |= bit;
        }
    }

    #[inline]
    fn has(&self, range: &RangeKey) -> bool {
        let (word, bit) = self.bit_of(range);
        self.words.get(word).is_none_or(|(_, again)| again & bit != 0)
    }

    /// Multiplicative hashing: the highest bits of the product are the best mixed.
    #[inline]
    fn bit_of(&self, range: &RangeKey) -> (usize, u64) {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (range.storage as u64 ^ (range.offset as u64).rotate_left(32)).wrapping_mul(GOLDEN);
        let index = mixed.checked_shr(self.shift).unwrap_or(0);
        ((index >> 6) as usize, 1 << (index & 63))
    }
}

/// A leaf as a key: equal if everything about it is. The hash leaves out what rarely differs alone.
#[derive(PartialEq, Eq)]
struct SameMemory<'a>(&'a Leaf);

impl Hash for SameMemory<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.0.bytes);
        if let Some(range) = self.0.range {
            state.write_usize(range.storage);
            state.write_usize(range.offset);
            state.write_u32(range.layout);
        }
    }
}
