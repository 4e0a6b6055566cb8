//! Looks at the values that are to be cast.

use smallvec::SmallVec;

use crate::backend::Runs;
use crate::cast::Cast;
use crate::convert::write::CastScratch;
use crate::error::{Error, Result};
use crate::tensor::layout::Layout;

/// Fails if `cast` makes a type that cannot hold an element of the tensor of this layout that begins with `memory`, which holds all of it.
/// Elements that are repeated are looked at once.
pub(crate) fn check_values(cast: &Cast, memory: &[u8], layout: &Layout) -> Result<()> {
    let looked_at = counts_once(layout);
    let size = layout.dtype().size();
    let strides = layout.strides();
    let dims = looked_at.iter().zip(strides.iter()).filter(|(count, _)| **count != 1);
    let runs = Runs::new(size, dims.map(|(count, stride)| (*count, stride * size)));
    let count = looked_at.iter().product();
    // SAFETY: these elements are some of the tensor, which lies in `memory`, which nobody writes while it is borrowed.
    let outside =
        unsafe { CastScratch::new().first_that_does_not_fit(cast, (memory.as_ptr(), &runs), count) };
    let Some((number, value)) = outside else { return Ok(()) };
    Err(Error::DoesNotFit {
        path: String::new(),
        element: number_of_all(number, &looked_at, layout.shape()),
        value,
        shape: layout.shape().to_vec(),
        from: cast.from_dtype(),
        to: cast.to_dtype(),
    })
}

/// The shape, with 1 for a dimension that repeats what it has.
fn counts_once(layout: &Layout) -> SmallVec<[usize; 4]> {
    let strides = layout.strides();
    let dims = layout.shape().iter().zip(strides.iter());
    dims.map(|(count, stride)| if *stride == 0 { 1 } else { *count }).collect()
}

/// The number in `shape` of an element whose number in a part of it, of the first items of each dimension, is `number`.
fn number_of_all(mut number: usize, part: &[usize], shape: &[usize]) -> usize {
    let (mut of_all, mut step) = (0, 1);
    for (part, all) in part.iter().zip(shape).rev() {
        of_all += number % part * step;
        number /= part;
        step *= all;
    }
    of_all
}
