//! A gathering copy, as the kernels take it.

use crate::backend::{Elements, Runs};
use crate::cast::Cast;
use crate::dtype::DType;

/// A part of a tensor, as kernels take it: items of `width` bytes, `run` of them side by side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct StridedEntry {
    /// The first item of the tensor: memory of the device or of a peer, or page-locked memory of the host.
    pub(crate) from: u64,
    /// Where to: memory of the device, or page-locked memory of the host.
    pub(crate) to: u64,
    /// How many items of the tensor are left out before.
    pub(crate) first: u64,
    /// How many are copied.
    pub(crate) count: u64,
    /// How many lie side by side.
    pub(crate) run: u64,
    /// Bytes of an item: 1, 2, 4, 8 or 16.
    pub(crate) width: u32,
    /// How many dimensions of runs there are.
    pub(crate) rank: u32,
    /// Their sizes, the outermost first.
    pub(crate) sizes: [u64; Runs::MOST_DIMS],
    /// From one to the next along each, in bytes.
    pub(crate) steps: [u64; Runs::MOST_DIMS],
    /// What items become.
    pub(crate) cast: CastEntry,
}

/// What items become, which are elements then.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct CastEntry {
    /// How many bytes are written.
    pub(crate) bytes: u64,
    /// The type of the elements, by the numbers that the kernels have for types.
    pub(crate) from_type: u32,
    /// The type that they get.
    pub(crate) to_type: u32,
    /// Bytes of an element of that type; 0 if items stay what they are.
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

/// The widest access that a thread makes, in bytes.
const WIDEST: u64 = 16;
/// Elements that a thread casts at a time.
const TOGETHER: u64 = 4;

impl StridedEntry {
    /// How many bytes of a table it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// For `bytes` bytes of `elements`, as they come out, the first of which lies at `from`, `skip` bytes left out before. `None` if there
    /// are too many dimensions.
    pub(crate) fn new(from: u64, to: u64, elements: &Elements, skip: usize, bytes: usize) -> Option<Self> {
        let runs = &elements.runs;
        let (skip, bytes) = (skip as u64, bytes as u64);
        let steps = runs.dims().iter().fold(0, |steps, dim| steps | dim.step as u64);
        let mut entry = match &elements.cast {
            None => Self::of_items(from, to, runs.bytes() as u64, steps, skip, bytes),
            Some(cast) => Self::of_elements(from, to, runs, steps, skip, bytes, cast),
        };
        entry.rank = u32::try_from(runs.dims().len()).ok()?;
        for (index, dim) in runs.dims().iter().enumerate() {
            *entry.sizes.get_mut(index)? = dim.count as u64;
            *entry.steps.get_mut(index)? = dim.step as u64;
        }
        Some(entry)
    }

    /// Items are as wide as all ends, steps and sizes allow.
    fn of_items(from: u64, to: u64, run: u64, steps: u64, skip: u64, bytes: u64) -> Self {
        let width = 1 << (from | to | run | skip | bytes | steps | WIDEST).trailing_zeros();
        Self {
            from,
            to,
            first: skip / width,
            count: bytes / width,
            run: run / width,
            width: width as u32,
            ..Self::default()
        }
    }

    /// Items are the elements that the bytes are of.
    fn of_elements(from: u64, to: u64, runs: &Runs, steps: u64, skip: u64, bytes: u64, cast: &Cast) -> Self {
        let (run, is_one_run) = (runs.bytes() as u64, runs.dims().is_empty());
        let (size, to_size) = (cast.from_dtype().size() as u64, cast.to_dtype().size() as u64);
        let (first, cut) = (skip / to_size, skip % to_size);
        let count = (cut + bytes).div_ceil(to_size);
        let is_whole = cut == 0 && bytes.is_multiple_of(to_size) && to.is_multiple_of(to_size);
        let is_aligned = is_whole && (from | steps).is_multiple_of(size);
        let four = |size: u64| (TOGETHER * size).min(WIDEST);
        let fits = (from | steps).is_multiple_of(four(size))
            && to.is_multiple_of(four(to_size))
            && first.is_multiple_of(TOGETHER)
            && (is_one_run || (run / size).is_multiple_of(TOGETHER));
        let scaling = cast.scaling();
        let cast = CastEntry {
            bytes,
            from_type: number_of(cast.from_dtype()),
            to_type: number_of(cast.to_dtype()),
            to_width: to_size as u32,
            cut: cut as u32,
            together: if is_aligned && fits { TOGETHER as u32 } else { 1 },
            bytewise: u32::from(!is_aligned),
            scale: scaling.scale,
            bias: scaling.bias,
        };
        Self { from, to, first, count, run: run / size, width: size as u32, cast, ..Self::default() }
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

    fn elements(bytes: usize, dims: &[(usize, usize)]) -> Elements {
        Elements { offset: 0, runs: Runs::new(bytes, dims.iter().copied()), cast: None }
    }

    /// Misaligned accesses are errors of the device.
    #[test]
    fn items_are_as_wide_as_everything_allows() {
        let width = |from, to, run, step, skip, bytes| {
            let entry = StridedEntry::new(from, to, &elements(run, &[(9, step)]), skip, bytes).unwrap();
            assert_eq!((entry.rank, entry.run * u64::from(entry.width)), (1, run as u64));
            assert_eq!((entry.first, entry.count).0 * u64::from(entry.width), skip as u64);
            assert_eq!(entry.count * u64::from(entry.width), bytes as u64);
            entry.width
        };
        assert_eq!(width(256, 512, 64, 128, 0, 576), 16);
        assert_eq!(width(256, 512, 16, 256, 16, 128), 16);
        assert_eq!(width(264, 512, 64, 128, 0, 576), 8);
        assert_eq!(width(256, 516, 64, 128, 0, 576), 4);
        assert_eq!(width(256, 512, 6, 128, 0, 54), 2);
        assert_eq!(width(256, 512, 64, 130, 0, 576), 2);
        assert_eq!(width(256, 512, 64, 128, 3, 61), 1);
        assert_eq!(width(256, 512, 64, 128, 0, 61), 1);
    }

    #[test]
    fn elements_are_cast_four_at_a_time_where_everything_allows_it() {
        let entry = |from, to, run, step, skip, bytes| {
            let cast = Some(Cast::new(DType::F32, DType::BF16));
            let elements = Elements { cast, ..elements(run, &[(9, step)]) };
            let entry = StridedEntry::new(from, to, &elements, skip, bytes).unwrap();
            assert_eq!((entry.width, entry.run, entry.cast.to_width), (4, run as u64 / 4, 2));
            let cast = entry.cast;
            (cast.together, cast.bytewise, cast.cut, entry.first, entry.count)
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
    fn more_dimensions_than_the_table_has_are_refused() {
        let dims = |count| (0..count).map(|dim| (2, 3 << (2 * (count - dim)))).collect::<Vec<_>>();
        assert!(StridedEntry::new(0, 0, &elements(1, &dims(8)), 0, 256).is_some());
        assert_eq!(StridedEntry::new(0, 0, &elements(1, &dims(9)), 0, 512), None);
    }
}
