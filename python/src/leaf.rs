//! What the copy knows of a leaf.

use smallvec::SmallVec;
use transship::dlpack::DLTensor;

use crate::dtype;
use crate::place::Place;

/// A tensor of somebody else, described. Its memory is kept by the object that it was read from.
#[derive(Debug)]
pub struct Leaf {
    /// Where the first element is.
    pub address: u64,
    pub place: Place,
    /// Of [`dtype::ALL`]. As small as it can be: leaves are many.
    element: u8,
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

impl Clone for Leaf {
    #[inline]
    fn clone(&self) -> Self {
        // At once: what is derived copies number by number.
        let numbers = SmallVec::from_slice(&self.numbers);
        Self { numbers, ..*self }
    }
}

impl Leaf {
    /// Reads a struct of DLPack; `None` if this module cannot copy such a tensor by itself.
    ///
    /// # Safety
    ///
    /// `tensor` is valid: its numbers are as many as it says.
    #[inline]
    pub unsafe fn read(tensor: &DLTensor) -> Option<Self> {
        let rank = usize::try_from(tensor.ndim).ok()?;
        let element = dtype::number_of(tensor.dtype)?;
        let place = Place::of(tensor.device)?;
        let slice = |start: *mut i64| match start.is_null() || rank == 0 {
            true => &[][..],
            // SAFETY: the caller's promise.
            false => unsafe { std::slice::from_raw_parts(start, rank) },
        };
        let (shape, strides) = (slice(tensor.shape), slice(tensor.strides));
        let numbers = numbers(Some(shape).filter(|shape| shape.len() == rank)?, strides);
        let address = (tensor.data.expose_provenance() as u64).checked_add(tensor.byte_offset)?;
        Self::new(address, place, element, numbers)
    }

    /// `None` for sizes that memory has no room for, negative strides, and elements without memory.
    #[inline]
    pub fn new(address: u64, place: Place, element: usize, mut numbers: SmallVec<[i64; 8]>) -> Option<Self> {
        let rank = numbers.len() / 2;
        let (shape, strides) = numbers.split_at_mut(rank);
        let size = dtype::ALL.get(element)?.bytes();
        let (mut count, mut is_row_major, mut is_negative) = (1_usize, true, false);
        for (size, stride) in shape.iter().zip(&mut *strides).rev() {
            if *size == 1 {
                // Where there is at most one element, a stride says nothing.
                *stride = (*stride).max(1);
                continue;
            }
            is_negative |= *stride < 0;
            is_row_major &= *stride == count as i64;
            count = count.checked_mul(usize::try_from(*size).ok()?)?;
        }
        let bytes = count.checked_mul(size).filter(|bytes| *bytes <= isize::MAX as usize)?;
        if count == 0 {
            strides.iter_mut().for_each(|stride| *stride = (*stride).max(1));
        } else if address == 0 || is_negative {
            return None;
        }
        let order = if is_row_major || count == 0 { Order::Contiguous } else { order(shape, strides) };
        Some(Self { address, place, element: element as u8, numbers, bytes, order })
    }

    /// One without gaps. Its sizes and strides, so many numbers in all, and its bytes are to be written by the caller.
    #[inline(always)]
    pub fn to_be_filled(address: u64, place: Place, element: usize, numbers: usize) -> Self {
        let numbers = SmallVec::from_buf_and_len([0; 8], numbers);
        Self { address, place, element: element as u8, numbers, bytes: 0, order: Order::Contiguous }
    }

    /// Of [`dtype::ALL`].
    #[inline]
    pub fn element(&self) -> usize {
        self.element.into()
    }

    /// The same bytes as elements of another type of [`dtype::ALL`], each as large as before.
    pub fn as_elements(&self, element: usize) -> Self {
        Self { element: element as u8, ..self.clone() }
    }

    /// Whether the first element lies where the processor wants such elements.
    pub fn is_aligned(&self) -> bool {
        self.bytes == 0 || is_aligned(self.address, self.element())
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
        dtype::ALL[self.element()]
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

/// Whether this address is so small that it may be nothing but an offset: most are not.
#[inline]
pub fn may_be_nowhere(address: u64) -> bool {
    address < 1 << 40
}

/// Whether a storage has no memory (PyTorch's zero tensors, storages that were given up): then the address of what begins so many elements behind its first one
/// is nothing else.
pub fn is_nowhere(address: u64, element: usize, offset: i64) -> bool {
    let offset = u64::try_from(offset).ok();
    offset.and_then(|offset| offset.checked_mul(dtype::ALL[element].bytes() as u64)) == Some(address)
}

/// Whether this is where the processor wants such elements.
#[inline]
pub fn is_aligned(address: u64, element: usize) -> bool {
    // Elements are of 1, 2, 4, 8 or 16 bytes.
    address & (dtype::ALL[element].bytes().min(8) as u64 - 1) == 0
}

/// Sizes and strides, one behind the other; without strides those of a tensor without gaps.
#[inline]
fn numbers(shape: &[i64], strides: &[i64]) -> SmallVec<[i64; 8]> {
    let rank = shape.len();
    let mut both: SmallVec<[i64; 8]> = match 2 * rank {
        len @ 0..=8 => SmallVec::from_buf_and_len([0; 8], len),
        len => SmallVec::from_elem(0, len),
    };
    both[..rank].copy_from_slice(shape);
    if strides.len() == rank {
        both[rank..].copy_from_slice(strides);
    } else {
        both.truncate(rank);
        append_row_major(&mut both);
    }
    both
}

impl Leaf {
    /// The leaf as its copy is with elements of another type.
    pub fn copied_as(&self, element: usize) -> Self {
        let mut copied = self.copied();
        let count = self.bytes / self.type_of_elements().bytes();
        copied.element = element as u8;
        copied.bytes = count.saturating_mul(copied.type_of_elements().bytes());
        copied
    }

    /// How many bytes lie from its first element to the end of its last one.
    pub fn span(&self) -> usize {
        if self.bytes == 0 {
            return 0;
        }
        let steps =
            self.shape().iter().zip(self.strides()).map(|(size, stride)| (size - 1).saturating_mul(*stride));
        let last = usize::try_from(steps.fold(0, i64::saturating_add)).unwrap_or(usize::MAX);
        last.saturating_add(1).saturating_mul(self.type_of_elements().bytes())
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

/// Of what is not row by row.
#[cold]
fn order(shape: &[i64], strides: &[i64]) -> Order {
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
