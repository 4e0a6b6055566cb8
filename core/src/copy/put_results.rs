//! Puts the copies of a job into the tensors that their sources were taken out of.

use crate::job::chunk_memory::Destinations;
use crate::job::job::Job;
use crate::job::leaf::Leaf;
use crate::plan::plan::Route;
use crate::tensor::storage::{Shares, Storage};
use crate::tensor::tensor::Tensor;

impl Job {
    /// For all tensors of the structure, in any order.
    pub(crate) fn placing(&self) -> ResultPlacer<'_> {
        ResultPlacer { job: self, destinations: self.destinations.get(), chunk: u32::MAX, shares: None }
    }
}

/// Gives tensors their share of the memory of chunks. Neighbours mostly share a chunk: its references are counted once for all.
pub(crate) struct ResultPlacer<'a> {
    job: &'a Job,
    /// `None` if nothing is copied: sources stay.
    destinations: Option<&'a Destinations>,
    /// The chunk that `shares` belong to.
    chunk: u32,
    shares: Option<Shares>,
}

impl ResultPlacer<'_> {
    /// Puts the copy of `leaf`, which is planned by `route`, into `tensor`; `false` if there is none that fits.
    #[inline(always)]
    pub(crate) fn place(&mut self, leaf: &Leaf, route: Route, tensor: &mut Tensor) -> bool {
        if leaf.special.is_some() {
            return self.place_special(leaf, route, tensor);
        }
        let Some(destinations) = self.destinations else {
            return tensor.put_back(leaf.storage.clone(), leaf.offset);
        };
        let (chunk, offset) = match route {
            Route::Packed { chunk, offset } | Route::Alone { chunk, offset } => (chunk, offset),
            _ => return self.place_uncopied(leaf, route, destinations, tensor),
        };
        let known = self.shares.as_mut().filter(|_| chunk == self.chunk).and_then(Iterator::next);
        match known.or_else(|| self.share(chunk, destinations)) {
            Some(storage) => tensor.put_copy(storage, offset, true),
            None => false,
        }
    }

    /// Puts into `tensor` what does not lie in one run, or gets another type.
    #[inline(never)]
    fn place_special(&mut self, leaf: &Leaf, route: Route, tensor: &mut Tensor) -> bool {
        if let Some(dtype) = leaf.cast_to() {
            tensor.become_contiguous(dtype);
        }
        let Some(destinations) = self.destinations else {
            return tensor.put_back(leaf.storage.clone(), leaf.offset);
        };
        match route {
            Route::Packed { chunk, offset } | Route::Alone { chunk, offset } => {
                let to = destinations.chunks.get(chunk as usize);
                to.is_some_and(|to| tensor.put_copy(to.storage.clone(), offset, leaf.is_gathered()))
            }
            _ => self.place_uncopied(leaf, route, destinations, tensor),
        }
    }

    /// The memory of a chunk. If several tensors lie in it, the references of all are counted now.
    #[inline(never)]
    fn share(&mut self, chunk: u32, destinations: &Destinations) -> Option<Storage> {
        let storage = &destinations.chunks.get(chunk as usize)?.storage;
        let tensors = self.job.plan.chunks().get(chunk as usize).map_or(1, |chunk| chunk.order.len());
        if tensors == 1 {
            return Some(storage.clone());
        }
        self.chunk = chunk;
        self.shares.insert(storage.shares(tensors)).next()
    }

    /// Puts into `tensor` what has no copy of its own.
    #[inline(never)]
    fn place_uncopied(
        &self,
        leaf: &Leaf,
        route: Route,
        destinations: &Destinations,
        tensor: &mut Tensor,
    ) -> bool {
        match route {
            Route::Resident => tensor.put_back(leaf.storage.clone(), leaf.offset),
            Route::Empty => {
                let nothing = destinations.empty.as_ref().unwrap_or(&leaf.storage);
                tensor.put_copy(nothing.clone(), 0, true)
            }
            _ => {
                let copied = self.job.plan.placement_by(route);
                let placed =
                    copied.and_then(|(chunk, at)| Some((destinations.chunks.get(chunk as usize)?, at)));
                placed.is_some_and(|(to, at)| tensor.put_copy(to.storage.clone(), at, leaf.is_gathered()))
            }
        }
    }
}
