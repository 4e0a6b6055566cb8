//! Small tensors of the CPU, put together here in the order in which they are to lie: to copy some kilobytes twice costs less than one more
//! tensor of transship does.

use std::slice;

use candle_core::{Storage, Tensor, WithDType};

use crate::element::{of_candle, with_element};
use crate::error::{Error, Result};
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

/// A tensor, its number, and where it is to lie.
type Placed<'a> = (&'a Tensor, usize, Spot);

/// Gathers those of `tensors` that are small, contiguous and on the CPU.
///
/// Waits for who writes to one, and reads it while no other is locked.
///
/// # Errors
///
/// The number of a tensor, with what is wrong with it.
pub(crate) fn gather(tensors: &[Tensor], spots: &[Spot]) -> Result<Gathered, (usize, Error)> {
    let placed =
        tensors.iter().zip(spots).enumerate().map(|(number, (tensor, spot))| (tensor, number, *spot));
    let (mut small, alone): (Vec<Placed<'_>>, Vec<_>) = placed.partition(|(tensor, ..)| is_small(tensor));
    // Those of no elements begin where others do.
    small.sort_unstable_by_key(|(tensor, _, spot)| (spot.chunk, spot.first, tensor.elem_count()));
    let neighbours = small.chunk_by(|(tensor, _, spot), (.., next)| {
        spot.chunk == next.chunk && spot.first + tensor.elem_count() == next.first
    });
    let runs = neighbours.map(run).collect::<Result<_, _>>()?;
    Ok(Gathered { runs, alone: alone.into_iter().map(|(_, number, _)| number).collect() })
}

fn is_small(tensor: &Tensor) -> bool {
    let bytes = tensor.elem_count().saturating_mul(tensor.dtype().size_in_bytes());
    bytes <= LARGEST_GATHERED && tensor.device().is_cpu() && tensor.is_contiguous()
}

fn run(neighbours: &[Placed<'_>]) -> Result<(transship::Tensor, Spot), (usize, Error)> {
    let (dtype, number, spot) =
        neighbours.first().map_or((candle_core::DType::U8, 0, Spot::default()), |(tensor, number, spot)| {
            (tensor.dtype(), *number, *spot)
        });
    let of_first = |error: transship::Error| (number, Error::from(error));
    let unknown = || (number, Error::NotCopied { path: String::new(), dtype });
    let elements = neighbours.iter().map(|(tensor, ..)| tensor.elem_count()).sum();
    let dtype = of_candle(dtype).ok_or_else(unknown)?;
    let mut all =
        transship::Tensor::empty(&[elements], dtype, &transship::Device::host()).map_err(of_first)?;
    let mut rest = all.as_mut_bytes().map_err(of_first)?;
    for (tensor, number, _) in neighbours {
        rest = read(tensor, rest).map_err(|error| (*number, error))?;
    }
    Ok((all, spot))
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
    use crate::plan::{Wanted, place};

    /// Deliberate bugs: tensors are gathered in the order of the structure; runs go on into the next chunk, where nothing lies in the first.
    #[test]
    fn what_is_small_is_one_run_for_each_chunk() {
        let ones = |shape: usize, dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        let sizes = [(0, DType::F64), (3, DType::F32), (5, DType::U8), (64, DType::F32), (2, DType::F32)];
        let tensors: Vec<_> = sizes.iter().map(|(shape, dtype)| ones(*shape, *dtype)).collect();
        let wanted = |tensor: &Tensor| Wanted {
            dtype: of_candle(tensor.dtype()).unwrap(),
            elements: tensor.elem_count(),
        };
        let (chunks, spots) = place(&tensors.iter().map(wanted).collect::<Vec<_>>(), usize::MAX);
        let gathered = gather(&tensors, &spots).map_err(|(_, error)| error).unwrap();
        let runs = gathered.runs.iter().map(|(run, spot)| (spot.chunk, spot.first, run.dtype(), run.numel()));
        let whole = chunks.iter().enumerate().map(|(number, chunk)| (number, 0, chunk.dtype, chunk.elements));
        assert_eq!(runs.collect::<Vec<_>>(), whole.collect::<Vec<_>>());
        assert_eq!((chunks.len(), gathered.alone.len()), (3, 0));
    }
}
