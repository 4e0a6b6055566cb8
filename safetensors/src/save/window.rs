//! What is copied down and written at a time.

use transship_core::{Result, Tensor};

use crate::save::plan::PlannedFile;

/// Tensors, and parts of tensors, that lie one behind the other in a file.
#[derive(Default)]
pub(crate) struct Window {
    /// The number of the file.
    pub(crate) file: usize,
    /// Where the first one begins in the file.
    pub(crate) offset: u64,
    pub(crate) parts: Vec<Tensor>,
    bytes: usize,
}

impl Window {
    /// How many bytes of tensors it has.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.nbytes() as u64).sum()
    }
}

/// What small tensors are packed with: each takes at least so many bytes of a block.
const PACKED: usize = 256;

/// Windows of at most `most` bytes for all tensors of a file, or the place and the error of one that cannot be cut.
pub(crate) fn windows(
    number: usize,
    file: &PlannedFile,
    most: usize,
) -> std::result::Result<Vec<Window>, (u64, transship_core::Error)> {
    let (mut windows, mut window) = (Vec::new(), Window { file: number, ..Window::default() });
    for planned in &file.tensors {
        let mut offset = planned.offset;
        let cut = cut(&planned.tensor, most, &mut |part| {
            let bytes = part.nbytes().next_multiple_of(PACKED);
            if window.bytes + bytes > most && !window.parts.is_empty() {
                windows.push(std::mem::take(&mut window));
            }
            if window.parts.is_empty() {
                (window.file, window.offset) = (number, offset);
            }
            offset += part.nbytes() as u64;
            window.bytes += bytes;
            window.parts.push(part);
            Ok(())
        });
        cut.map_err(|error| (planned.offset, error))?;
    }
    windows.push(window);
    Ok(windows)
}

/// Gives `each` the parts of a tensor in row-major order, of at most `most` bytes or one element.
pub(crate) fn cut(tensor: &Tensor, most: usize, each: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
    let (bytes, shape) = (tensor.nbytes(), tensor.shape());
    let longer = shape.iter().copied().enumerate().find(|(_, size)| *size > 1);
    let Some((dim, size)) = longer.filter(|_| bytes > most) else { return each(tensor.clone()) };
    let at_once = (most / (bytes / size)).max(1);
    for start in (0..size).step_by(at_once) {
        cut(&tensor.narrow(dim, start, at_once.min(size - start))?, most, each)?;
    }
    Ok(())
}
