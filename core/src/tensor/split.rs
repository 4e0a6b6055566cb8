//! Tensors that are split into parts with one owner each, and joined again.

use std::ops::Range;
use std::sync::Arc;

use crate::alignment::Alignment;
use crate::error::{Error, Refused, Result};
use crate::in_flight::completion::Completion;
use crate::tensor::layout::Layout;
use crate::tensor::parts::Whole;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::{Tensor, TensorMemory};

impl Tensor {
    /// Gives the tensor up for parts of one dimension, of so many indices each, that are filled and used each by itself: rows of a cache, slots of a
    /// ring. Nothing is copied, and addresses stay what they are.
    ///
    /// Unlike a [view](Self::narrow), a part is the only owner of its bytes: it is held memory for [`start_copy_into`](crate::start_copy_into), and
    /// on the host [`as_mut_slice`](Self::as_mut_slice) changes it, whatever is done with the other parts meanwhile. It has a copy of its
    /// own that fills it and streams of its own that use it, and nothing of that waits for another part. The memory is given back when the last part is
    /// gone and the uses of all are over. [`join`](Self::join) gives the tensor back; a part that was dropped or forgotten makes that impossible, and nothing else.
    ///
    /// The bytes of a part lie in one range, with none of another part between them: the first dimension of a contiguous tensor always
    /// suits. On a device that copies whole granules ([`Limits::copy_granularity`](crate::backend::Limits::copy_granularity); wgpu: 4 bytes) each part
    /// begins with one. To bind a part as a storage buffer of wgpu, let it begin at a multiple of
    /// [`Limits::bindable_alignment`](crate::backend::Limits::bindable_alignment).
    ///
    /// Does not block. While a copy still fills the tensor, its parts are filled by that copy; whether a clone of the tensor is alive then shows when a
    /// part is written, which is [`Error::NotWritable`].
    ///
    /// ```
    /// use transship_core::{CopyOptions, DType, Device, Tensor, start_copy_into};
    ///
    /// let cache = Tensor::zeros(&[4, 3], DType::F32, &Device::host())?; // or a GPU
    /// let mut rows = cache.split(0, &[1, 2, 1])?;
    /// let row = rows.remove(1);
    /// let row = start_copy_into(Tensor::from_vec(vec![7.0_f32; 6], &[2, 3])?, row, CopyOptions::default())?.wait()?;
    /// rows.insert(1, row);
    /// let cache = Tensor::join(rows)?;
    /// assert_eq!(cache.as_slice::<f32>()?[2..10], [0.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 0.0]);
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The tensor comes back with each: [`Error::NotWritable`] if it was lent to be read, or if anything else holds its memory, a copy that reads it
    /// included; [`Error::NotSplittable`] if `sizes` do not add up to the dimension or the parts would not lie as said above;
    /// [`Error::OutOfRange`] if there is no such dimension; [`Error::Taken`].
    pub fn split(mut self, dim: usize, sizes: &[usize]) -> Result<Vec<Self>, Refused<Self>> {
        match self.cut(dim, sizes).and_then(|cuts| Ok((cuts, self.storage()?.clone()))) {
            Ok((cuts, storage)) => {
                let (offset, layout) = (self.offset(), self.layout.clone());
                // The parts are the only holders from here on.
                drop(self);
                Ok(parts(&Whole::new(storage, offset, layout, cuts.len()), cuts))
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// All parts of a tensor that was [split](Self::split), in their order, as that tensor again. Of each part it takes any tensor that lies in it, a view
    /// included. Does not block: what still fills a part fills the tensor, and what uses a part uses the tensor.
    ///
    /// A clone of a part that is still alive shares the memory of the tensor, which cannot be written before that has gone.
    ///
    /// # Errors
    ///
    /// The parts come back with each: [`Error::NotJoinable`], which says which part is missing, of another tensor or in the place of another one, or
    /// whose copy has failed: fill that again; [`Error::Taken`]; [`Error::NotReady`] if a copy into a part is not submitted yet.
    pub fn join(parts: Vec<Self>) -> Result<Self, Refused<Vec<Self>>> {
        match check_parts(&parts).and_then(|whole| Ok((whole, fillers(&parts)?))) {
            Ok((whole, filled_by)) => {
                let (offset, layout) = (whole.offset(), whole.layout().clone());
                let storages = parts.into_iter().filter_map(Self::into_storage).collect();
                let storage = Storage::joined(whole, storages, filled_by);
                Ok(Self { memory: TensorMemory::Here { storage, offset }, layout })
            }
            Err(error) => Err(Refused::new(error, parts)),
        }
    }

    /// Where the parts lie; fails if the tensor cannot be split like that.
    fn cut(&mut self, dim: usize, sizes: &[usize]) -> Result<Vec<Cut>> {
        let storage = self.storage_mut()?;
        storage.settle();
        storage.check_splittable()?;
        let granularity = storage.device().map_or(Alignment::ONE, |device| device.limits().copy_granularity);
        let limit = storage.bytes();
        let mut cuts = cuts(&self.layout, self.offset(), dim, sizes)?;
        check_apart(&cuts, dim)?;
        check_granules(&cuts, granularity)?;
        let mut end = limit;
        for cut in cuts.iter_mut().rev().filter(|cut| cut.layout.nbytes() > 0) {
            // What lies between two parts belongs to the first one.
            cut.range.end = end;
            end = cut.range.start;
        }
        Ok(cuts)
    }

    fn into_storage(self) -> Option<Storage> {
        match self.memory {
            TensorMemory::Here { storage, .. } => Some(storage),
            TensorMemory::Taken(_) => None,
        }
    }
}

/// Where a part lies.
struct Cut {
    layout: Layout,
    /// In the buffer.
    range: Range<usize>,
    /// Where its last element ends.
    elements_end: usize,
}

fn cuts(layout: &Layout, offset: usize, dim: usize, sizes: &[usize]) -> Result<Vec<Cut>> {
    let limit = layout.shape().get(dim).copied();
    // Names the dimension if there is none.
    let limit = limit.map_or_else(|| layout.narrow(dim, 0, 0).map(|_| 0), Ok)?;
    let sum = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
    if sum != Some(limit) || sizes.is_empty() {
        let sum = sum.map_or("more than there can be".to_owned(), |sum| sum.to_string());
        let why =
            format!("the sizes of {} parts add up to {sum}, but dimension {dim} has {limit}", sizes.len());
        return Err(Error::NotSplittable { why, cure: "let them add up to it" });
    }
    let mut first = 0;
    let cut = |size: &usize| {
        let (layout, delta) = layout.narrow(dim, first, *size)?;
        first += size;
        let start = offset + delta;
        let end = start + layout.span();
        Ok(Cut { range: start..end, elements_end: end, layout })
    };
    sizes.iter().map(cut).collect()
}

/// Fails unless each part lies behind the one before it.
fn check_apart(cuts: &[Cut], dim: usize) -> Result<()> {
    let mut end = 0;
    for cut in cuts.iter().filter(|cut| cut.layout.nbytes() > 0) {
        if cut.range.start < end {
            let why = format!("parts along dimension {dim} would lie between each other's elements");
            let cure =
                "split along the dimension with the largest stride: the first one of a contiguous tensor";
            return Err(Error::NotSplittable { why, cure });
        }
        end = cut.range.end;
    }
    Ok(())
}

/// Fails unless each part but the first begins with a granule, so that no copy of a part writes to another one.
fn check_granules(cuts: &[Cut], granularity: Alignment) -> Result<()> {
    let filled = cuts.iter().enumerate().filter(|(_, cut)| cut.layout.nbytes() > 0);
    for (number, cut) in filled.skip(1) {
        if !granularity.divides(cut.range.start) {
            let why = format!(
                "part {number} would begin at byte {}, and the device copies whole granules of {} bytes",
                cut.range.start,
                granularity.bytes()
            );
            let cure = "choose sizes whose bytes are multiples of that, or pad the rows";
            return Err(Error::NotSplittable { why, cure });
        }
    }
    Ok(())
}

fn parts(whole: &Arc<Whole>, cuts: Vec<Cut>) -> Vec<Tensor> {
    let part = |(number, Cut { layout, range, elements_end }): (usize, Cut)| {
        let offset = range.start;
        let storage = Storage::part(whole, number, range, elements_end);
        Tensor { memory: TensorMemory::Here { storage, offset }, layout }
    };
    cuts.into_iter().enumerate().map(part).collect()
}

/// What `parts` are all parts of, in their order.
fn check_parts(parts: &[Tensor]) -> Result<Arc<Whole>> {
    let not = |why, cure| Err(Error::NotJoinable { why, cure });
    let mut whole: Option<&Arc<Whole>> = None;
    for (place, tensor) in parts.iter().enumerate() {
        let Some(part) = tensor.storage()?.as_part() else {
            let cure = "hand in what Tensor::split has returned";
            return not(format!("tensor {place} is no part of a tensor that was split"), cure);
        };
        if !Arc::ptr_eq(whole.get_or_insert(part.whole()), part.whole()) {
            let cure = "join the parts of each tensor by themselves";
            return not(format!("tensor {place} is a part of another tensor than tensor 0"), cure);
        }
        if part.number() != place {
            let why = format!("tensor {place} is part {}, where part {place} belongs", part.number());
            return not(why, "hand in each part once, in the order in which Tensor::split has returned them");
        }
    }
    match whole {
        Some(whole) if whole.parts() == parts.len() => Ok(whole.clone()),
        Some(whole) => {
            let why = format!("part {} of {} is missing", parts.len(), whole.parts());
            not(why, "hand in all of them; one that was dropped cannot come back")
        }
        None => not("there are none".to_owned(), "hand in what Tensor::split has returned"),
    }
}

/// One completion for all copies that still fill parts; `None` if there are none.
fn fillers(parts: &[Tensor]) -> Result<Option<Arc<Completion>>> {
    let all = Completion::new();
    let mut fills = false;
    for (number, tensor) in parts.iter().enumerate() {
        let Some(filler) = tensor.storage()?.pending() else { continue };
        if !filler.is_submitted() {
            return Err(Error::NotReady);
        }
        filler.positions().iter().for_each(|(queue, position)| all.reach(queue, *position));
        // Asked last: a copy that has failed has no positions.
        match filler.is_done() {
            Ok(is_over) => fills |= !is_over,
            Err(error) => {
                let why = format!("the copy into part {number} has failed: {error}");
                return Err(Error::NotJoinable { why, cure: "fill that part again" });
            }
        }
    }
    all.submitted();
    Ok(fills.then_some(all))
}
