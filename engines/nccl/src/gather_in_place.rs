//! Putting the tensors of ranks behind each other, each by a copy to its place.

use transship::{CopyHandle, CopyOptions, DType, Device, Layout, Tensor, start_copy_into};

use crate::blocks::{Block, blocks_of_sizes, part};
use crate::error::Result;
use crate::leaves::Leaves;

/// Copies the tensors of all ranks to where they belong in tensors of `shapes` on `to`, along the first dimension; `None` where `to` takes no parts that begin or end there. Small results on a
/// device share an allocation.
pub(crate) fn gather_in_place(
    ranks: &[Leaves],
    shapes: &[Vec<usize>],
    to: &Device,
) -> Result<Option<Vec<Tensor>>> {
    let Some(first) = ranks.first() else { return Ok(None) };
    let dtypes: Vec<DType> = first.tensors.iter().map(Tensor::dtype).collect();
    let blocks = blocks_on(to, &dtypes, shapes)?;
    let (mut sources, mut places) = (Vec::new(), Vec::new());
    for block in &blocks {
        let given: Vec<Vec<&Tensor>> = block.leaves.iter().map(|(leaf, _)| column(ranks, *leaf)).collect();
        let Some(parts) = parts_of(block, &given, to)? else { return Ok(None) };
        sources.push(given.into_iter().flatten().cloned().collect::<Vec<_>>());
        places.push(parts);
    }
    let copied = match start_copy_into(sources, places, CopyOptions::default()).and_then(CopyHandle::wait) {
        Err(error) if is_misaligned(error.error()) => return Ok(None),
        copied => copied.map_err(transship::Error::from)?,
    };
    let mut results: Vec<Option<Tensor>> = vec![None; shapes.len()];
    for (block, parts) in blocks.iter().zip(copied) {
        let whole = Tensor::join(parts).map_err(transship::Error::from)?;
        for (leaf, start) in &block.leaves {
            if let (Some(result), Some(shape)) = (results.get_mut(*leaf), shapes.get(*leaf)) {
                *result = Some(part(&whole, *start, shape)?);
            }
        }
    }
    // Those without elements are in no block.
    let made = results.into_iter().zip(dtypes.iter().zip(shapes));
    let made =
        made.map(|(result, (dtype, shape))| result.map_or_else(|| Tensor::empty(shape, *dtype, to), Ok));
    Ok(Some(made.collect::<transship::Result<_>>()?))
}

/// Whether a device that copies whole granules refuses a part.
fn is_misaligned(error: &transship::Error) -> bool {
    match error {
        transship::Error::UnsuitedTensor { error, .. } => is_misaligned(error),
        error => matches!(error, transship::Error::Misaligned { .. }),
    }
}

/// On the host each tensor has an allocation of its own: whoever has it may write it.
fn blocks_on(to: &Device, dtypes: &[DType], shapes: &[Vec<usize>]) -> Result<Vec<Block>> {
    let size = |(dtype, shape): (&DType, &Vec<usize>)| {
        Ok((*dtype, Layout::contiguous(*dtype, shape)?.nbytes() / dtype.size()))
    };
    let sizes = dtypes.iter().zip(shapes).map(size).collect::<Result<Vec<_>>>()?;
    if !to.is_host() {
        return Ok(blocks_of_sizes(sizes.into_iter()));
    }
    let with_elements = sizes.into_iter().enumerate().filter(|(_, (_, elements))| *elements > 0);
    let alone = |(leaf, (dtype, elements))| Block { dtype, elements, leaves: vec![(leaf, 0)] };
    Ok(with_elements.map(alone).collect())
}

/// What all ranks have of one tensor.
fn column(ranks: &[Leaves], leaf: usize) -> Vec<&Tensor> {
    ranks.iter().filter_map(|rank| rank.tensors.get(leaf)).collect()
}

/// Memory for all that a block takes, in the order of its tensors and of the ranks.
fn parts_of(block: &Block, given: &[Vec<&Tensor>], to: &Device) -> Result<Option<Vec<Tensor>>> {
    let ends = block.leaves.iter().skip(1).map(|(_, start)| *start).chain([block.elements]);
    let mut sizes = Vec::new();
    for (((_, start), end), column) in block.leaves.iter().zip(ends).zip(given) {
        sizes.extend(column.iter().map(|tensor| tensor.numel()));
        // What lies between two tensors is the last rank's, which does not fill it.
        let filled: usize = column.iter().map(|tensor| tensor.numel()).sum();
        if let Some(last) = sizes.last_mut() {
            *last += (end - start).saturating_sub(filled);
        }
    }
    let whole = Tensor::empty(&[block.elements], block.dtype, to)?;
    let Ok(parts) = whole.split(0, &sizes) else { return Ok(None) };
    let shaped = parts.iter().zip(given.iter().flatten());
    shaped.map(|(memory, tensor)| part(memory, 0, tensor.shape())).collect::<Result<_>>().map(Some)
}
