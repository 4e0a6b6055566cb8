//! A copy that casts, as the kernels take it.

use crate::backend::Runs;
use crate::backend::stream_ordered::strided_entry::{StridedEntry, WIDEST, all_steps};
use crate::cast::Cast;
use crate::dtype::DType;

/// A part of a tensor, and what its elements become: the items are elements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct CastEntry {
    /// The elements that the bytes are of.
    pub(crate) elements: StridedEntry,
    /// How many bytes are written.
    pub(crate) bytes: u64,
    /// The type of the elements, by the numbers that the kernels have for types.
    pub(crate) from_type: u32,
    /// The type that they get.
    pub(crate) to_type: u32,
    /// Bytes of an element of that type.
    pub(crate) to_width: u32,
    /// How many bytes of the first element are left out.
    pub(crate) cut: u32,
    /// How many elements are read and written at a time: 4 where all ends and steps are aligned for that, else 1.
    pub(crate) together: u32,
    /// Whether elements are read and written byte by byte, because they are not aligned or cut.
    pub(crate) bytewise: u32,
    /// What `uint8` is multiplied by, and what is added then.
    pub(crate) scale: f32,
    pub(crate) bias: f32,
}

/// Elements that a thread casts at a time.
const TOGETHER: u64 = 4;

impl CastEntry {
    /// How many bytes of a table it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// For `bytes` bytes of what `cast` makes of a tensor at `from`, `skip` bytes of that left out before. `None` if there are too many
    /// dimensions.
    pub(crate) fn new(
        (from, to): (u64, u64),
        cast: &Cast,
        runs: &Runs,
        skip: usize,
        bytes: usize,
    ) -> Option<Self> {
        let (size, to_size) = (cast.from_dtype().size() as u64, cast.to_dtype().size() as u64);
        let (skip, bytes) = (skip as u64, bytes as u64);
        let (first, cut) = (skip / to_size, skip % to_size);
        let elements = StridedEntry::of_items(from, to, runs, size, first, (cut + bytes).div_ceil(to_size))?;
        let ends = from | all_steps(runs);
        let is_whole = cut == 0 && bytes.is_multiple_of(to_size);
        let is_aligned = is_whole && to.is_multiple_of(to_size) && ends.is_multiple_of(size);
        let four = |size: u64| (TOGETHER * size).min(WIDEST);
        let fits = ends.is_multiple_of(four(size))
            && to.is_multiple_of(four(to_size))
            && first.is_multiple_of(TOGETHER)
            && (runs.dims().is_empty() || elements.run.is_multiple_of(TOGETHER));
        let scaling = cast.scaling();
        Some(Self {
            elements,
            bytes,
            from_type: number_of(cast.from_dtype()),
            to_type: number_of(cast.to_dtype()),
            to_width: to_size as u32,
            cut: cut as u32,
            together: if is_aligned && fits { TOGETHER as u32 } else { 1 },
            bytewise: u32::from(!is_aligned),
            scale: scaling.scale,
            bias: scaling.bias,
        })
    }
}

/// The number that the kernels have for a type. Others are not cast.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use super::*;

    /// Misaligned accesses are errors of the device.
    #[test]
    fn elements_are_cast_four_at_a_time_where_everything_allows_it() {
        let entry = |from, to, run: usize, step, skip, bytes| {
            let cast = Cast::new(DType::F32, DType::BF16);
            let runs = Runs::new(run, [(9, step)].into_iter());
            let entry = CastEntry::new((from, to), &cast, &runs, skip, bytes).unwrap();
            let elements = entry.elements;
            assert_eq!((elements.width, elements.run, entry.to_width), (4, run as u64 / 4, 2));
            (entry.together, entry.bytewise, entry.cut, elements.first, elements.count)
        };
        assert_eq!(entry(256, 512, 64, 128, 0, 288), (4, 0, 0, 0, 144));
        assert_eq!(entry(256, 512, 64, 128, 8, 20), (4, 0, 0, 4, 10));
        assert_eq!(entry(260, 512, 64, 128, 0, 288), (1, 0, 0, 0, 144));
        assert_eq!(entry(256, 514, 64, 128, 0, 288), (1, 0, 0, 0, 144));
        assert_eq!(entry(256, 512, 64, 132, 0, 288), (1, 0, 0, 0, 144));
        assert_eq!(entry(256, 512, 60, 128, 0, 270), (1, 0, 0, 0, 135));
        assert_eq!(entry(256, 512, 64, 128, 2, 20), (1, 0, 0, 1, 10));
        assert_eq!(entry(258, 512, 64, 128, 0, 288), (1, 1, 0, 0, 144));
        assert_eq!(entry(256, 512, 64, 126, 0, 288), (1, 1, 0, 0, 144));
        assert_eq!(entry(256, 513, 64, 128, 0, 288), (1, 1, 0, 0, 144));
        assert_eq!(entry(256, 512, 64, 128, 0, 287), (1, 1, 0, 0, 144));
        assert_eq!(entry(256, 512, 64, 128, 3, 20), (1, 1, 1, 1, 11));
        assert_eq!(entry(256, 512, 64, 128, 3, 1), (1, 1, 1, 1, 1));
    }

    #[test]
    fn one_run_of_any_length_is_cast_four_elements_at_a_time() {
        let runs = Runs::new(4 * 1003, std::iter::empty());
        let entry = CastEntry::new((256, 512), &Cast::new(DType::F32, DType::F64), &runs, 32, 7992).unwrap();
        assert_eq!((entry.together, entry.elements.first, entry.elements.count), (4, 4, 999));
    }
}
