//! A plan, and questions about it.

use std::iter::Zip;
use std::ops::{Range, RangeFrom};
use std::slice;

use smallvec::SmallVec;

use crate::device_id::DeviceId;
use crate::error::Error;
use crate::runtime::scratch::{Scratch, ScratchVec};

thread_local! {
    static ROUTES: Scratch<Route> = const { Scratch::new() };
    static ORDER: Scratch<u32> = const { Scratch::new() };
    static ENDS: Scratch<usize> = const { Scratch::new() };
}

/// Where a leaf goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// It stays where it is.
    Resident,
    /// It has no bytes.
    Empty,
    /// It covers the same memory as this earlier leaf, which is copied.
    Alias(u32),
    /// It shares a chunk with others.
    Packed {
        /// The index of the chunk.
        chunk: u32,
        /// Where in the chunk, in bytes.
        offset: usize,
    },
    /// It has a chunk of its own.
    Alone {
        /// The index of the chunk.
        chunk: u32,
        /// Where in the chunk, in bytes: its [skew](crate::plan::Leaf::skew).
        offset: usize,
    },
}

/// Memory of the target that is allocated in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Where its leaves come from.
    pub source: u16,
    /// Its size, a multiple of the granularity of copies.
    pub bytes: usize,
    /// Where it starts in the linear space of its source.
    pub base: usize,
    /// Its leaves: a range of [`Plan::order`].
    pub order: Range<usize>,
}

/// See [`Plan::numbered_chunks_of`].
pub type NumberedChunks<'a> = Zip<RangeFrom<usize>, slice::Iter<'a, Chunk>>;

/// How many leaves take each route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leaves that stay.
    pub resident: usize,
    /// Leaves without bytes.
    pub empty: usize,
    /// Leaves that share the copy of another one.
    pub aliases: usize,
    /// Leaves in shared chunks.
    pub packed: usize,
    /// Leaves with a chunk of their own.
    pub alone: usize,
}

/// Why leaves cannot be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanError {
    /// A leaf is larger than any buffer, or all leaves together have more bytes than a machine word can count.
    TooLarge {
        /// Bytes needed; `usize::MAX` if they cannot be counted.
        requested: usize,
        /// The largest buffer.
        limit: usize,
    },
    /// More leaves than 32 bits can number.
    TooManyLeaves {
        /// How many there are.
        count: usize,
    },
}

impl PlanError {
    /// The error of a copy to `device`.
    pub fn on(self, device: DeviceId) -> Error {
        match self {
            Self::TooLarge { requested, limit } => {
                Error::TooLarge { device, kind: "device", requested, limit }
            }
            Self::TooManyLeaves { count } => {
                Error::OutOfRange { what: "tensors", start: 0, end: count, limit: u32::MAX as usize }
            }
        }
    }
}

/// A route for each leaf, and the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) routes: ScratchVec<Route>,
    pub(crate) chunks: SmallVec<[Chunk; 1]>,
    pub(crate) order: ScratchVec<u32>,
    /// Where each leaf of `order` ends in the linear space of its source.
    pub(crate) ends: ScratchVec<usize>,
    pub(crate) bytes: usize,
    pub(crate) counts: Counts,
}

impl Plan {
    /// In memory of an earlier one.
    pub(crate) fn empty() -> Self {
        Self {
            routes: ScratchVec::new(&ROUTES),
            chunks: SmallVec::new(),
            order: ScratchVec::new(&ORDER),
            ends: ScratchVec::new(&ENDS),
            bytes: 0,
            counts: Counts::default(),
        }
    }

    /// With routes and ends for `count` leaves that are not placed yet.
    pub(crate) fn of_blanks(count: usize) -> Self {
        let mut plan = Self::empty();
        plan.routes.resize(count, Route::Empty);
        plan.ends.resize(count, 0);
        plan
    }

    /// The route of each leaf.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The chunks: sources ascend, and bases ascend within a source.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The leaves that are copied, by number: chunk by chunk, with ascending addresses.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The bytes of all chunks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sources that something is copied from, ascending.
    pub fn sources(&self) -> impl Iterator<Item = u16> + '_ {
        self.chunks
            .chunk_by(|a, b| a.source == b.source)
            .filter_map(<[Chunk]>::first)
            .map(|chunk| chunk.source)
    }

    /// The chunks that are filled from `source`.
    pub fn chunks_of(&self, source: u16) -> &[Chunk] {
        let start = self.chunks.partition_point(|chunk| chunk.source < source);
        let end = self.chunks.partition_point(|chunk| chunk.source <= source);
        self.chunks.get(start..end).unwrap_or_default()
    }

    /// The size of the linear space of `source`.
    pub fn source_span(&self, source: u16) -> usize {
        self.chunks_of(source).last().map_or(0, |chunk| chunk.base.saturating_add(chunk.bytes))
    }

    /// The chunk of a leaf and its offset there, for an alias those of the leaf that is copied; `None` if nothing is
    /// copied for it.
    pub fn placement(&self, leaf: u32) -> Option<(u32, usize)> {
        self.placement_by(self.route(leaf)?)
    }

    /// The same for a leaf with this route.
    pub fn placement_by(&self, route: Route) -> Option<(u32, usize)> {
        match route {
            Route::Alias(first) => placed(self.route(first)?),
            route => placed(route),
        }
    }

    /// Where a leaf starts in the linear space of its source; `None` if nothing is copied for it.
    pub fn address(&self, leaf: u32) -> Option<usize> {
        let (chunk, offset) = self.placement(leaf)?;
        self.chunks.get(chunk as usize)?.base.checked_add(offset)
    }

    /// The chunks that are filled from `source`, with their numbers.
    pub fn numbered_chunks_of(&self, source: u16) -> NumberedChunks<'_> {
        let first = self.chunks.partition_point(|chunk| chunk.source < source);
        (first..).zip(self.chunks_of(source))
    }

    /// The leaves of `chunk`, by number, and where each ends in the linear space of its source: addresses ascend.
    pub fn placed_in(&self, chunk: &Chunk) -> (&[u32], &[usize]) {
        let leaves = self.order.get(chunk.order.clone()).unwrap_or_default();
        (leaves, self.ends.get(chunk.order.clone()).unwrap_or_default())
    }

    /// How many leaves take each route.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn route(&self, leaf: u32) -> Option<Route> {
        self.routes.get(leaf as usize).copied()
    }
}

impl Counts {
    pub(crate) fn of(routes: &[Route]) -> Self {
        let mut counts = Self::default();
        for route in routes {
            let count = match route {
                Route::Resident => &mut counts.resident,
                Route::Empty => &mut counts.empty,
                Route::Alias(_) => &mut counts.aliases,
                Route::Packed { .. } => &mut counts.packed,
                Route::Alone { .. } => &mut counts.alone,
            };
            *count = count.saturating_add(1);
        }
        counts
    }
}

fn placed(route: Route) -> Option<(u32, usize)> {
    match route {
        Route::Packed { chunk, offset } | Route::Alone { chunk, offset } => Some((chunk, offset)),
        Route::Resident | Route::Empty | Route::Alias(_) => None,
    }
}
