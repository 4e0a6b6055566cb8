//! A part of a strided tensor, as the kernel takes it.

use std::ops::Range;

use transship_core::backend::{Elements, RunDim, Runs};
use transship_core::{Cast, DType};

/// Elements of a strided tensor, or those bytes of them, when they are cast, that one copy takes.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// How they lie; `None` if they lie side by side.
    runs: Option<&'a Runs>,
    /// What they become; `None` if they stay what they are.
    cast: Option<&'a Cast>,
    /// Where the first element lies in its buffer, in bytes.
    from: u64,
    /// How many bytes are left out before: whole words.
    skip: usize,
    bytes: usize,
}

/// A part in the table of a kernel: see `kernels/strided.wgsl`.
pub(crate) type Entry = [u32; FIELDS];

/// Fields of an entry in front of its dimensions.
const IN_FRONT: usize = 13;
/// The numbers of a dimension: how many runs, bytes from one to the next, and the index of the first one.
const OF_DIM: usize = 3;
pub(crate) const FIELDS: usize = IN_FRONT + OF_DIM * Runs::MOST_DIMS;
/// Bytes of an entry.
pub(crate) const ENTRY: usize = FIELDS * WORD;
const WORD: usize = 4;

impl<'a> Part<'a> {
    pub(crate) fn new(elements: &'a Elements, from: u64, skip: usize, bytes: usize) -> Self {
        Self { runs: Some(&elements.runs), cast: elements.cast.as_ref(), from, skip, bytes }
    }

    /// Elements side by side, which become `bytes` bytes.
    pub(crate) fn side_by_side(cast: &'a Cast, from: u64, bytes: usize) -> Self {
        Self { runs: None, cast: Some(cast), from, skip: 0, bytes }
    }

    /// The same elsewhere in a buffer.
    pub(crate) fn moved_to(self, from: u64) -> Self {
        Self { from, ..self }
    }

    /// Where the first element lies in its buffer, in bytes.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// Whether it begins with a word, and consists of whole ones at distances of whole ones.
    pub(crate) fn is_of_words(&self) -> bool {
        let run = self.runs.map_or(0, Runs::bytes);
        let numbers = [self.skip, self.bytes, run].into_iter().chain(self.dims().iter().map(|dim| dim.step));
        self.from.is_multiple_of(WORD as u64)
            && numbers.fold(0, |all, number| all | number).is_multiple_of(WORD)
    }

    /// Where it lies in the buffer, if that is one run of whole words, which stay what they are.
    pub(crate) fn run_of_words(&self) -> Option<Range<u64>> {
        (self.cast.is_none() && self.dims().is_empty() && self.is_of_words()).then(|| self.read())
    }

    /// The same elements, `done` bytes further on, and no more than `bytes` of them. Both are whole words.
    pub(crate) fn cut(self, done: usize, bytes: usize) -> Self {
        let left = self.bytes.saturating_sub(done);
        Self { skip: self.skip + done, bytes: bytes.min(left), ..self }
    }

    pub(crate) fn skip(&self) -> u64 {
        self.skip as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many words are written.
    pub(crate) fn words(&self) -> u64 {
        self.bytes.div_ceil(WORD) as u64
    }

    /// What the elements become, if not what they are.
    pub(crate) fn cast(&self) -> Option<&'a Cast> {
        self.cast
    }

    fn dims(&self) -> &'a [RunDim] {
        self.runs.map_or(&[], Runs::dims)
    }

    /// The bytes of the buffer that are read: of elements with gaps those from the first to the last.
    pub(crate) fn read(&self) -> Range<u64> {
        match self.runs.filter(|runs| !runs.dims().is_empty()) {
            None => {
                let items = self.items();
                let from = self.from + (items.first * items.width) as u64;
                from..from + (items.count * items.width) as u64
            }
            Some(runs) => self.from..self.from + runs.span() as u64,
        }
    }

    /// Its entry, where the buffer is bound from its byte `bound` on. It writes from word `to` on, or reads from
    /// there what is scattered; what each `u8` becomes stands in the table
    /// from word `made` on, unless that is 0. `None` if a number is too large.
    pub(crate) fn entry(&self, bound: u64, to: u64, made: u32) -> Option<Entry> {
        let (items, dims) = (self.items(), self.dims());
        let types = self.cast.map(|cast| [cast.from_dtype(), cast.to_dtype()].map(number_of));
        let [from_type, to_type] = types.unwrap_or_default();
        let (run, ahead, mut row) = match self.runs.filter(|_| !dims.is_empty()) {
            // It begins where reading does, and never ends.
            None => (u32::MAX, 0, 0),
            Some(runs) => {
                let run = runs.bytes() / items.width;
                (u32::try_from(run).ok()?, items.first % run, items.first / run)
            }
        };
        let mut entry = [0; FIELDS];
        let fields = [
            u32::try_from(self.read().start.checked_sub(bound)?).ok()?,
            u32::try_from(to).ok()?,
            u32::try_from(self.words()).ok()?,
            u32::try_from(items.count).ok()?,
            run,
            u32::try_from(ahead).ok()?,
            items.width as u32,
            items.to_width as u32,
            from_type,
            to_type,
            (items.cut / WORD) as u32,
            made,
            dims.len() as u32,
        ];
        entry.get_mut(..IN_FRONT)?.copy_from_slice(&fields);
        for (index, dim) in dims.iter().enumerate().rev() {
            let place = IN_FRONT + OF_DIM * index;
            let numbers = [dim.count, dim.step, row % dim.count];
            row /= dim.count;
            for (field, number) in entry.get_mut(place..place + OF_DIM)?.iter_mut().zip(numbers) {
                *field = u32::try_from(number).ok()?;
            }
        }
        Some(entry)
    }

    fn items(&self) -> Items {
        let (width, to_width) = match self.cast {
            Some(cast) => (cast.from_dtype().size(), cast.to_dtype().size()),
            // The kernel loads words from anywhere. What is left out before are whole ones.
            None => {
                let width = 1 << (self.runs.map_or(0, Runs::bytes) | WORD).trailing_zeros();
                (width, width)
            }
        };
        let (first, cut) = (self.skip / to_width, self.skip % to_width);
        Items { width, to_width, first, cut, count: (cut + self.bytes).div_ceil(to_width) }
    }
}

/// What the kernel reads and writes one by one.
struct Items {
    width: usize,
    to_width: usize,
    /// How many are left out before.
    first: usize,
    /// How many bytes of the first one are left out.
    cut: usize,
    count: usize,
}

/// The number that the kernel has for a type. Others are not cast.
fn number_of(dtype: DType) -> u32 {
    match dtype {
        DType::U8 => 0,
        DType::U16 => 1,
        DType::U32 => 2,
        DType::U64 => 3,
        DType::I8 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::F16 => 8,
        DType::BF16 => 9,
        DType::F32 => 10,
        DType::F64 => 11,
        _ => u32::MAX,
    }
}
