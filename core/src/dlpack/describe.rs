//! What a tensor of DLPack is, as far as its numbers can be believed.

use smallvec::SmallVec;

use crate::dlpack::abi::DLTensor;
use crate::dlpack::words::{Place, dtype_of, place_of};
use crate::error::{Error, Result};
use crate::tensor::layout::Layout;

/// A tensor of somebody else.
pub(crate) struct Description {
    pub(crate) layout: Layout,
    pub(crate) place: Place,
    /// The first element; aligned, and not null, if there is one.
    pub(crate) start: *mut u8,
}

impl Description {
    /// # Safety
    ///
    /// `shape`, and `strides` unless it is null, are valid for reads of `ndim` numbers.
    pub(crate) unsafe fn read(tensor: &DLTensor) -> Result<Self> {
        let place = place_of(tensor.device)?;
        // SAFETY: passed on.
        let layout = unsafe { layout_of(tensor) }?;
        let start = start_of(tensor, &layout)?;
        Ok(Self { layout, place, start })
    }
}

/// # Safety
///
/// As [`Description::read`].
unsafe fn layout_of(tensor: &DLTensor) -> Result<Layout> {
    let dtype = dtype_of(tensor.dtype)?;
    let rank = usize::try_from(tensor.ndim)
        .map_err(|_| invalid("ndim", tensor.ndim.to_string(), "there cannot be less dimensions than none"))?;
    // SAFETY: passed on.
    let shape = unsafe { numbers(tensor.shape, rank) };
    let shape = match shape {
        Some(shape) => {
            shape.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<Dims>>().ok_or(shape)
        }
        None => return Err(invalid("shape", "null".to_owned(), "each dimension needs a size")),
    };
    let shape = shape.map_err(|sizes| invalid("shape", format!("{sizes:?}"), "sizes are not negative"))?;
    // SAFETY: passed on.
    match unsafe { numbers(tensor.strides, rank) } {
        Some(strides) if !shape.contains(&0) => Layout::strided(dtype, &shape, &steps(&shape, strides)?),
        _ => Layout::contiguous(dtype, &shape),
    }
}

type Dims = SmallVec<[usize; 4]>;

/// # Safety
///
/// `start`, unless it is null, is valid for reads of `count` numbers.
unsafe fn numbers<'a>(start: *const i64, count: usize) -> Option<&'a [i64]> {
    match (count, start.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: the caller's promise.
        (_, false) => Some(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// The strides, for a shape without zeros. That of a dimension of size 1 says nothing, whatever its sign.
fn steps(shape: &[usize], strides: &[i64]) -> Result<Dims> {
    let dims = shape.iter().zip(strides);
    let steps = dims.map(|(size, stride)| if *size == 1 { Some(0) } else { usize::try_from(*stride).ok() });
    let reason =
        "a tensor has no negative ones; make a contiguous copy first (ascontiguousarray, contiguous)";
    steps.collect::<Option<_>>().ok_or_else(|| invalid("strides", format!("{strides:?}"), reason))
}

/// Where the first element is; null if there is none.
fn start_of(tensor: &DLTensor, layout: &Layout) -> Result<*mut u8> {
    if layout.numel() == 0 {
        return Ok(std::ptr::null_mut());
    }
    if tensor.data.is_null() {
        return Err(invalid("data", "null".to_owned(), "only a tensor without elements needs no memory"));
    }
    let data = tensor.data.cast::<u8>();
    let offset = usize::try_from(tensor.byte_offset).ok();
    let ends = |offset: usize| data.addr().checked_add(offset)?.checked_add(layout.span());
    let offset = offset.filter(|offset| ends(*offset).is_some()).ok_or_else(|| {
        let reason = "the elements would lie beyond the end of the address space";
        invalid("byte_offset", tensor.byte_offset.to_string(), reason)
    })?;
    let start = data.wrapping_add(offset);
    let (value, alignment) = (start.addr() as u64, layout.dtype().alignment().bytes());
    match start.addr().is_multiple_of(alignment) {
        true => Ok(start),
        false => {
            let cure = "copy the data to an aligned place";
            Err(Error::Misaligned { what: "address", value, alignment, cure })
        }
    }
}

fn invalid(field: &'static str, value: String, reason: &'static str) -> Error {
    Error::InvalidDlpack { field, value, reason }
}
