//! What has arrived, copied to where it belongs while the rest is still on its way.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use transship::{CopyOptions, Device, Manifest, ManifestLeaf, SharedMemory, Tensor, start_copy_into};

use crate::arena::Range;
use crate::copies::{Copying, devices_of, named};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::held::{Filling, Held};
use crate::pieces::Pieces;
use crate::received::shared;

/// Tensors that are filled.
pub(crate) struct Unpack<'a> {
    manifest: &'a Manifest,
    held: Held,
    /// What comes next, as it is due: the last one first.
    left: Vec<Filling>,
    /// In the order in which they were begun.
    copies: VecDeque<(Vec<usize>, Copying)>,
    /// The first error of those that have ended.
    ended: Result<()>,
    pieces: Pieces,
    /// Where it arrives, on which device.
    range: Arc<Range>,
    device: Device,
    deadline: Deadline,
}

impl<'a> Unpack<'a> {
    /// `tensors` are those of `manifest`, in its order, whose bytes arrive in `range` on `device`.
    pub(crate) fn new(
        tensors: Vec<Tensor>,
        manifest: &'a Manifest,
        range: Arc<Range>,
        device: Device,
        deadline: Deadline,
    ) -> Self {
        let pieces = Pieces::new(range.bytes, &device);
        let (held, mut left) = Held::new(tensors, manifest, &pieces, &device);
        left.sort_unstable_by_key(|filling| Reverse(filling.due));
        let copies = VecDeque::new();
        Self { manifest, held, left, copies, ended: Ok(()), pieces, range, device, deadline }
    }

    /// So many bytes have arrived, from the first one on.
    pub(crate) fn arrived(&mut self, bytes: usize) -> Result<()> {
        let first = self.left.last().map_or(bytes, |next| next.due.saturating_sub(1));
        // A copy of few bytes costs more than it brings.
        if bytes < self.range.bytes.min(self.pieces.end_at(first)) {
            return Ok(());
        }
        let behind = self.left.partition_point(|filling| filling.due > bytes);
        let mut some = self.left.split_off(behind);
        some.sort_unstable_by_key(|filling| filling.part);
        if !some.is_empty() {
            self.copy(&shared(&self.range, &self.device)?, &some)?;
        }
        self.collect();
        Ok(())
    }

    fn copy(&mut self, memory: &SharedMemory, some: &[Filling]) -> Result<()> {
        let sources = some.iter().map(|filling| memory.tensor(filling.offset, filling.layout.clone()));
        let sources = sources.collect::<transship::Result<Vec<_>>>()?;
        let parts: Vec<usize> = some.iter().map(|filling| filling.part).collect();
        let into = self.held.take(parts.iter().copied());
        let others = devices_of(&into);
        match start_copy_into(sources, into, CopyOptions::default()) {
            Ok(copy) => self.copies.push_back((parts, Copying::new("unpacking", &self.device, others, copy))),
            Err(failed) => {
                let (error, (_, into)) = (failed.error().clone(), failed.into_both());
                self.put_back(parts, into);
                let is_it = |index: usize, leaf: &ManifestLeaf<'_>| {
                    some.get(index).is_some_and(|filling| filling.leaf == leaf.number())
                };
                return Err(named(error, self.manifest, is_it).into());
            }
        }
        Ok(())
    }

    /// Waits for all copies. The first error of them, and what was filled.
    pub(crate) fn wait(mut self) -> (Result<()>, Held) {
        while !self.copies.is_empty() {
            self.end_first();
        }
        (self.ended, self.held)
    }

    /// Ends the copies that are done: what that takes is not left for when all has arrived.
    fn collect(&mut self) {
        while self.copies.front().is_some_and(|(_, copy)| copy.is_done()) {
            self.end_first();
        }
    }

    fn end_first(&mut self) {
        let Some((parts, copy)) = self.copies.pop_front() else { return };
        let (error, tensors) = match copy.wait(self.deadline) {
            Ok(tensors) => (None, Some(tensors)),
            Err((error, tensors)) => (Some(error), tensors),
        };
        if self.ended.is_ok() {
            self.ended = error.map_or(Ok(()), Err);
        }
        self.put_back(parts, tensors);
    }

    fn put_back(&mut self, parts: Vec<usize>, tensors: Option<Vec<Tensor>>) {
        self.held.put_back(parts.into_iter(), tensors.unwrap_or_default());
    }
}
