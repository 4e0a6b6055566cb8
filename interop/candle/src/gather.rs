//! Small tensors of the CPU, put together here in the order in which they are to lie: to copy some kilobytes twice costs less than one more
//! tensor of transship does.

use std::slice;

use candle_core::{Storage, Tensor, WithDType};

use crate::element::{of_candle, with_element};
use crate::error::{Error, Result};
use crate::landing::Landing;
use crate::plan::Spot;

/// Up to so many bytes.
const LARGEST_GATHERED: usize = 8 << 10;

/// What was gathered, and what was not.
pub(crate) struct Gathered {
    /// Neighbours in a chunk as one tensor, and where that is to lie.
    pub(crate) runs: Vec<(transship::Tensor, Spot)>,
    /// The numbers of the others.
    pub(crate) alone: Vec<usize>,
}

/// Gathers those of `tensors` that are small, contiguous and on the CPU.
///
/// Waits for who writes to one, and reads it while no other is locked.
///
/// # Errors
///
/// The number of a tensor, with what is wrong with it.
pub(crate) fn gather(tensors: &[Tensor], landing: &Landing) -> Result<Gathered, (usize, Error)> {
    let mut gathered = Gathered { runs: Vec::new(), alone: Vec::new() };
    let mut run: Vec<Placed<'_>> = Vec::new();
    for number in &landing.order {
        let (Some(tensor), Some(spot)) = (tensors.get(*number), landing.spots.get(*number)) else { continue };
        let is_small = is_small(tensor);
        if !is_small || run.last().is_some_and(|(.., last)| last.chunk != spot.chunk) {
            gathered.add(&mut run)?;
        }
        match is_small {
            true => run.push((tensor, *number, *spot)),
            false => gathered.alone.push(*number),
        }
    }
    gathered.add(&mut run)?;
    gathered.alone.sort_unstable();
    Ok(gathered)
}

/// A tensor, its number, and where it is to lie.
type Placed<'a> = (&'a Tensor, usize, Spot);

impl Gathered {
    /// Leaves `neighbours` empty.
    fn add(&mut self, neighbours: &mut Vec<Placed<'_>>) -> Result<(), (usize, Error)> {
        if let [first, ..] = neighbours[..] {
            self.runs.push((run(&first, neighbours)?, first.2));
            neighbours.clear();
        }
        Ok(())
    }
}

fn is_small(tensor: &Tensor) -> bool {
    let bytes = tensor.elem_count().saturating_mul(tensor.dtype().size_in_bytes());
    bytes <= LARGEST_GATHERED && tensor.device().is_cpu() && tensor.is_contiguous()
}

/// All elements of neighbours, of which `first` is the first one.
fn run(
    (first, number, _): &Placed<'_>,
    neighbours: &[Placed<'_>],
) -> Result<transship::Tensor, (usize, Error)> {
    let of_first = |error: transship::Error| (*number, Error::from(error));
    let unknown = || (*number, Error::NotCopied { path: String::new(), dtype: first.dtype() });
    let dtype = of_candle(first.dtype()).ok_or_else(unknown)?;
    let elements = neighbours.iter().map(|(tensor, ..)| tensor.elem_count()).sum();
    let mut all =
        transship::Tensor::empty(&[elements], dtype, &transship::Device::host()).map_err(of_first)?;
    let mut rest = all.as_mut_bytes().map_err(of_first)?;
    for (tensor, number, _) in neighbours {
        rest = read(tensor, rest).map_err(|error| (*number, error))?;
    }
    Ok(all)
}

/// Reads the elements of a contiguous tensor of the CPU to where `into` begins; what of `into` lies behind them.
fn read<'a>(tensor: &Tensor, into: &'a mut [u8]) -> Result<&'a mut [u8]> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        let device = format!("{:?}", tensor.device().location());
        return Err(Error::UnsupportedDevice { path: String::new(), device });
    };
    let dtype = tensor.dtype();
    with_element!(dtype, T => {
        let all = <T as WithDType>::cpu_storage_as_slice(storage)?;
        let (start, limit) = (layout.start_offset(), all.len());
        let end = start.saturating_add(tensor.elem_count());
        // candle makes a tensor of any shape over any storage (`Tensor::from_storage`), and finds out when it reads it.
        let outside = || transship::Error::OutOfRange { what: "elements", start, end, limit };
        let elements = all.get(start..end).ok_or_else(outside)?;
        // SAFETY: these are numbers: each of their bytes is initialised, and may be read.
        let bytes = unsafe { slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
        let (here, rest) = into.split_at_mut_checked(bytes.len()).ok_or_else(outside)?;
        here.copy_from_slice(bytes);
        Ok(rest)
    }, else Err(Error::NotCopied { path: String::new(), dtype }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use candle_core::{DType, Device};

    use super::*;
    use crate::device::Target;
    use crate::landing::Arriving;

    /// Deliberate bugs: tensors are gathered in the order of the structure; runs go on into the next chunk, where nothing lies in the first.
    #[test]
    fn what_is_small_is_one_run_for_each_chunk() {
        let ones = |shape: usize, dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        let sizes = [(0, DType::F64), (3, DType::F32), (5, DType::U8), (64, DType::F32), (2, DType::F32)];
        let tensors: Vec<_> = sizes.iter().map(|(shape, dtype)| ones(*shape, *dtype)).collect();
        let arriving = |tensor: &Tensor| Arriving::new(of_candle(tensor.dtype()).unwrap(), tensor.dims());
        let target = Target::new(&Device::Cpu).unwrap();
        let landing = Landing::new(tensors.iter().map(arriving).collect(), &target).unwrap();
        let gathered = gather(&tensors, &landing).map_err(|(_, error)| error).unwrap();
        let runs = gathered.runs.iter().map(|(run, spot)| (spot.chunk, spot.first, run.dtype(), run.numel()));
        let whole = [
            (0, 0, transship::DType::F64, 0),
            (1, 0, transship::DType::F32, 69),
            (2, 0, transship::DType::U8, 5),
        ];
        assert_eq!(runs.collect::<Vec<_>>(), whole);
        assert!(gathered.alone.is_empty());
    }

    /// Deliberate bug: a run goes on behind what is not gathered.
    #[test]
    fn a_run_ends_where_something_larger_lies() {
        let sizes = [LARGEST_GATHERED, LARGEST_GATHERED * 2, LARGEST_GATHERED];
        let tensors: Vec<_> =
            sizes.iter().map(|size| Tensor::ones(*size, DType::U8, &Device::Cpu).unwrap()).collect();
        let arriving = |tensor: &Tensor| Arriving::new(transship::DType::U8, tensor.dims());
        let target = Target::new(&Device::Cpu).unwrap();
        let landing = Landing::new(tensors.iter().map(arriving).collect(), &target).unwrap();
        let gathered = gather(&tensors, &landing).map_err(|(_, error)| error).unwrap();
        let runs: Vec<_> = gathered.runs.iter().map(|(run, spot)| (spot.first, run.numel())).collect();
        assert_eq!(runs, [(0, LARGEST_GATHERED), (3 * LARGEST_GATHERED, LARGEST_GATHERED)]);
        assert_eq!(gathered.alone, [1]);
    }
}
