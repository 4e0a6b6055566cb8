//! What the copy knows of a leaf.

use smallvec::SmallVec;
use transship::dlpack::DLTensor;

use crate::dtype;
use crate::place::Place;

/// A tensor of somebody else, described. Its memory is kept by the object that it was read from.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Where the first element is.
    pub address: u64,
    pub place: Place,
    /// Of [`dtype::ALL`].
    pub element: usize,
    /// The sizes, and then as many strides, in elements. None is negative.
    pub numbers: SmallVec<[i64; 8]>,
    /// Of all elements, without gaps.
    pub bytes: usize,
    pub order: Order,
}

/// How elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Row by row, without gaps.
    Contiguous,
    /// Without gaps, the dimensions in another order. Copied as it lies, as PyTorch does.
    Dense,
    /// With gaps, or elements that share memory. The copy is contiguous.
    Strided,
}

impl Leaf {
    /// Reads a struct of DLPack; `None` if this module cannot copy such a tensor by itself.
    ///
    /// # Safety
    ///
    /// `tensor` is valid: its numbers are as many as it says.
    pub unsafe fn read(tensor: &DLTensor) -> Option<Self> {
        let rank = usize::try_from(tensor.ndim).ok()?;
        let element = dtype::number_of(tensor.dtype)?;
        let place = Place::of(tensor.device)?;
        let mut numbers = SmallVec::new();
        if rank > 0 {
            // SAFETY: the caller's promise.
            numbers.extend_from_slice(unsafe { std::slice::from_raw_parts(tensor.shape, rank) });
        }
        if rank > 0 && !tensor.strides.is_null() {
            // SAFETY: the caller's promise.
            numbers.extend_from_slice(unsafe { std::slice::from_raw_parts(tensor.strides, rank) });
        } else {
            append_row_major(&mut numbers);
        }
        let address = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
        Self::new(address, place, element, numbers)
    }

    /// `None` for sizes that memory has no room for, negative strides, and elements without memory.
    pub fn new(address: u64, place: Place, element: usize, mut numbers: SmallVec<[i64; 8]>) -> Option<Self> {
        let rank = numbers.len() / 2;
        let (shape, strides) = numbers.split_at_mut(rank);
        let size = dtype::ALL.get(element)?.bytes();
        let count =
            shape.iter().try_fold(1_usize, |count, size| count.checked_mul(usize::try_from(*size).ok()?))?;
        let bytes = count.checked_mul(size).filter(|bytes| *bytes <= isize::MAX as usize)?;
        // Where there is at most one element, a stride says nothing.
        let unused = shape.iter().zip(&mut *strides).filter(|(size, _)| count == 0 || **size == 1);
        unused.for_each(|(_, stride)| *stride = (*stride).max(1));
        if count > 0 && (address == 0 || strides.iter().any(|stride| *stride < 0)) {
            return None;
        }
        let order = order(shape, strides, count);
        Some(Self { address, place, element, numbers, bytes, order })
    }

    pub fn shape(&self) -> &[i64] {
        &self.numbers[..self.numbers.len() / 2]
    }

    pub fn strides(&self) -> &[i64] {
        &self.numbers[self.numbers.len() / 2..]
    }

    pub fn rank(&self) -> usize {
        self.numbers.len() / 2
    }

    pub fn type_of_elements(&self) -> dtype::ElementType {
        dtype::ALL[self.element]
    }

    /// The leaf as its copy is: without gaps.
    pub fn copied(&self) -> Self {
        let mut copied = self.clone();
        if self.order == Order::Strided {
            copied.numbers.truncate(self.rank());
            append_row_major(&mut copied.numbers);
            copied.order = Order::Contiguous;
        }
        copied
    }
}

/// Appends the strides of a tensor without gaps, row by row, to its sizes.
pub fn append_row_major(numbers: &mut SmallVec<[i64; 8]>) {
    let rank = numbers.len();
    numbers.resize(rank * 2, 1);
    for dim in (1..rank).rev() {
        numbers[rank + dim - 1] = numbers[rank + dim].saturating_mul(numbers[dim].max(1));
    }
}

fn order(shape: &[i64], strides: &[i64], count: usize) -> Order {
    if count == 0 || is_row_major(shape, strides) {
        return Order::Contiguous;
    }
    let mut dims: SmallVec<[(i64, i64); 8]> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|(_, size)| *size != 1).collect();
    dims.sort_unstable();
    let mut expected = 1;
    for (stride, size) in dims {
        if stride != expected {
            return Order::Strided;
        }
        expected *= size;
    }
    Order::Dense
}

fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    for (size, stride) in shape.iter().zip(strides).rev() {
        if *size != 1 {
            if *stride != expected {
                return false;
            }
            expected *= size;
        }
    }
    true
}
