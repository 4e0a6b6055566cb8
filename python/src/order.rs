//! In whose order leaves of a device are read and written.

use pyo3::prelude::*;

use crate::place::Place;
use crate::torch::Torch;

/// The driver's handle of the stream of a device that copies from there, and into memory there, come behind (see
/// [`streams`](crate::start::streams)): PyTorch's current one, if it has done anything on a GPU, else the default one, which is 0. Who hands
/// out a tensor lets this one wait for what fills it.
pub fn handle_of(py: Python<'_>, torch: Option<&Torch>, place: Place) -> usize {
    let current = |torch: &Torch| match torch.has_begun(py) {
        Ok(true) => torch.current_stream(py, place).ok(),
        _ => None,
    };
    // A device that PyTorch does not have is an error of the copy, where it comes to one.
    torch.and_then(current).unwrap_or(0)
}
