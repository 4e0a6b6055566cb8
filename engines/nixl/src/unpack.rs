//! What has arrived, copied to where it belongs while the rest is still on its way.

use std::sync::Arc;

use transship::{CopyOptions, Device, Manifest, Tensor, start_copy_into};

use crate::arena::Range;
use crate::copies::{Copying, devices_of};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::pack::PIECE;
use crate::received::{lend, shared};
use crate::tree::Filled;

/// Tensors that are filled.
pub(crate) struct Unpack {
    /// In the order of their paths. `None` where a copy has it.
    tensors: Vec<Option<Tensor>>,
    /// Which come next, by the ends of their bytes: the last one first.
    left: Vec<(usize, usize)>,
    copies: Vec<(Vec<usize>, Copying)>,
    /// Where it arrives.
    device: Device,
}

impl Unpack {
    /// `tensors` are those of `manifest`, in its order, whose bytes arrive on `device`.
    pub(crate) fn new(tensors: Vec<Tensor>, manifest: &Manifest, device: Device) -> Self {
        let (mut left, mut number) = (Vec::with_capacity(tensors.len()), 0);
        let listed = manifest.for_each_leaf(|leaf| {
            if leaf.chunk().is_some() {
                left.push((leaf.offset() + leaf.layout().span(), number));
            }
            number += 1;
            Ok(())
        });
        debug_assert!(listed.is_ok());
        left.sort_unstable_by(|one, other| other.cmp(one));
        Self { tensors: tensors.into_iter().map(Some).collect(), left, copies: Vec::new(), device }
    }

    /// So many bytes of `range` have arrived.
    pub(crate) fn arrived(&mut self, manifest: &Manifest, range: &Arc<Range>, bytes: usize) -> Result<()> {
        let behind = self.left.partition_point(|(end, _)| *end > bytes);
        let first = self.left.last().map_or(bytes, |(end, _)| *end);
        // A copy of few bytes costs more than it brings.
        if behind == self.left.len() || (bytes < range.bytes && bytes - first < PIECE / 2) {
            return Ok(());
        }
        let mut numbers: Vec<usize> = self.left.drain(behind..).map(|(_, number)| number).collect();
        numbers.sort_unstable();
        self.copy(manifest, range, numbers)
    }

    fn copy(&mut self, manifest: &Manifest, range: &Arc<Range>, numbers: Vec<usize>) -> Result<()> {
        let memory = shared(range, &self.device)?;
        let (mut sources, mut number, mut wanted) = (Vec::new(), 0, numbers.iter().peekable());
        manifest.for_each_leaf(|leaf| {
            if wanted.next_if_eq(&&number).is_some() {
                sources.push(lend(&memory, leaf)?);
            }
            number += 1;
            Ok(())
        })?;
        let into: Vec<Tensor> =
            numbers.iter().filter_map(|number| self.tensors.get_mut(*number)?.take()).collect();
        let others = devices_of(&into);
        match start_copy_into(sources, into, CopyOptions::default()) {
            Ok(copy) => self.copies.push((numbers, Copying::new("unpacking", &self.device, others, copy))),
            Err(failed) => {
                let error = failed.error().clone();
                self.put_back(&numbers, failed.into_both().1);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Waits for all copies, and gives the tensors back.
    pub(crate) fn finish(mut self, result: Result<()>, deadline: Deadline) -> Filled {
        let mut error = result.err();
        for (numbers, copy) in std::mem::take(&mut self.copies) {
            match copy.wait(deadline) {
                Ok(tensors) => self.put_back(&numbers, Some(tensors)),
                Err((failed, tensors)) => {
                    error = error.or(Some(failed));
                    self.put_back(&numbers, tensors);
                }
            }
        }
        Filled { tensors: self.tensors, error }
    }

    fn put_back(&mut self, numbers: &[usize], tensors: Option<Vec<Tensor>>) {
        for (number, tensor) in numbers.iter().zip(tensors.into_iter().flatten()) {
            if let Some(slot) = self.tensors.get_mut(*number) {
                *slot = Some(tensor);
            }
        }
    }
}
