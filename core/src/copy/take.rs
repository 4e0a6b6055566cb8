//! Taking the storages out of a structure and putting copies, or the same ones, in.
//!
//! Each tensor keeps a [`Mark`]: the number of the copy and its own. What is put in is found by that, whatever the order in
//! which a visit shows the tensors.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::scan::Survey;
use crate::runtime::foreign;
use crate::runtime::foreign::Collecting;
use crate::runtime::scratch::{List, Room};
use crate::tensor::layout::Layout;
use crate::tensor::storage::Storage;
use crate::tensor::tensor::{Mark, Tensor};
use crate::tree::visitor::{Stop, TensorTree, Visitor};

/// What a copy must know of one tensor.
pub(crate) struct Leaf {
    pub(crate) storage: Storage,
    /// Where the first element lies in the storage, in bytes.
    pub(crate) offset: usize,
    /// Where the first element lies on the host, if it lies there.
    pub(crate) host: Option<HostAddress>,
    /// Bytes of the elements.
    pub(crate) payload: usize,
    /// Present where the elements do not lie in one run.
    pub(crate) strided: Option<Box<Layout>>,
}

/// The tensors of a structure, in the order in which they were taken.
pub(crate) struct Leaves {
    /// The number of the copy, which their marks have.
    copy: u32,
    list: List<Leaf>,
    // Dropped behind the list.
    retiring: Retiring,
}

/// Hands memory that the program has lent, and that the list was the last to hold, to the copy.
struct Retiring {
    completion: Arc<Completion>,
    collecting: Option<Collecting>,
}

thread_local! {
    static LEAVES: Room<Leaf> = const { Room::new() };
}

/// An address that may be sent to the thread that reads there.
#[derive(Clone, Copy)]
pub(crate) struct HostAddress(NonNull<u8>);

// SAFETY: an address alone does nothing; whoever reads there says why he may (`Transfer::read`).
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// Takes the storages of all tensors out of `value` and shows them to `survey`. On an error `value` is as it was.
pub(crate) fn take<S: TensorTree>(
    value: &mut S,
    survey: &mut Survey<'_>,
    completion: &Arc<Completion>,
) -> Result<Leaves> {
    let mut leaves = Leaves::new(completion);
    match visit(value, |tensor| leaves.take(tensor, survey)) {
        Ok(()) => Ok(leaves),
        Err(error) => {
            leaves.restore(value);
            Err(error)
        }
    }
}

/// Puts the copies in.
pub(crate) fn place<S: TensorTree>(value: &mut S, job: &Job) -> Result<()> {
    let (leaves, routes) = (&**job.leaves, job.plan.routes());
    let mut placing = job.placing();
    put_all(value, job.leaves.copy(), leaves.len(), |index, tensor| {
        match (leaves.get(index), routes.get(index)) {
            (Some(leaf), Some(route)) => placing.place(leaf, *route, tensor),
            _ => false,
        }
    })
}

/// Shows the tensors of `value` that copy number `copy` has taken to `put`, with the number of each: all of `count`, and each
/// once. An error if `value` shows others, or if `put` returns `false`.
#[inline(always)]
pub(crate) fn put_all<S: TensorTree>(
    value: &mut S,
    copy: u32,
    count: usize,
    mut put: impl FnMut(usize, &mut Tensor) -> bool,
) -> Result<()> {
    let mut shown = Shown::of(count);
    let mut sink = |tensor: &mut Tensor| match tensor.mark() {
        Some(mark)
            if mark.copy == copy && shown.note(mark.leaf as usize) && put(mark.leaf as usize, tensor) =>
        {
            Ok(())
        }
        _ => Err(Stop::new(shown.changed(1))),
    };
    foreign::call(|| value.visit(&mut Visitor::new(&mut sink))).map_err(Stop::into_reason)?;
    if shown.are_all() { Ok(()) } else { Err(shown.changed(0)) }
}

/// Shows all tensors of `value` to `sink`.
#[inline(always)]
pub(crate) fn visit<S: TensorTree>(
    value: &mut S,
    mut sink: impl FnMut(&mut Tensor) -> Result<(), Stop>,
) -> Result<()> {
    foreign::call(|| value.visit(&mut Visitor::new(&mut sink))).map_err(Stop::into_reason)
}

impl Leaves {
    /// None yet, of the copy that `completion` is about.
    pub(crate) fn new(completion: &Arc<Completion>) -> Self {
        // Nobody decides by the order: the model checker need not know it.
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let retiring = Retiring { completion: completion.clone(), collecting: None };
        Self { copy: COPIES.fetch_add(1, Ordering::Relaxed), list: List::new(&LEAVES), retiring }
    }

    /// The number in the marks of the tensors.
    pub(crate) fn copy(&self) -> u32 {
        self.copy
    }

    /// The copy that keeps what the program has lent until somebody drops it.
    pub(crate) fn keeper(&self) -> &Arc<Completion> {
        &self.retiring.completion
    }

    /// Takes the storage of `tensor` and shows it to `survey`. On an error the tensor is as it was.
    #[inline(always)]
    pub(crate) fn take(&mut self, tensor: &mut Tensor, survey: &mut Survey<'_>) -> Result<(), Stop> {
        // The plan refuses more leaves than it can count (`Plan::new`).
        let mark = Mark { copy: self.copy, leaf: self.list.len() as u32 };
        let Some((storage, offset)) = tensor.take(mark) else { return Err(Stop::new(Error::Taken)) };
        let layout = tensor.layout();
        if !survey.recognizes(&storage, offset, layout) {
            return self.take_closely(tensor, storage, offset, survey);
        }
        let host = storage.host_address(offset).map(HostAddress);
        self.list.push(Leaf { storage, offset, host, payload: layout.bytes(), strided: None });
        Ok(())
    }

    /// Adds a leaf that the survey has to look at: `storage`, which was taken out of `tensor` and is put back on an error.
    #[inline(never)]
    fn take_closely(
        &mut self,
        tensor: &mut Tensor,
        storage: Storage,
        offset: usize,
        survey: &mut Survey<'_>,
    ) -> Result<(), Stop> {
        let layout = tensor.layout();
        if let Err(refused) = survey.look_at(&storage, offset, layout) {
            tensor.put_back(storage, offset);
            return Err(Stop::new(refused));
        }
        let host = storage.host_address(offset).map(HostAddress);
        let strided = (!layout.is_contiguous()).then(|| Box::new(layout.clone()));
        self.list.push(Leaf { storage, offset, host, payload: layout.bytes(), strided });
        Ok(())
    }

    /// Puts all back into the tensors of `value` that they were taken out of, or into those of a clone. Others stay as they are.
    pub(crate) fn restore<S: TensorTree>(&self, value: &mut S) {
        // It stops where taking did, with the same reason.
        let _ = visit(value, |tensor| {
            let mark = tensor.mark().filter(|mark| mark.copy == self.copy);
            if let Some(leaf) = mark.and_then(|mark| self.list.get(mark.leaf as usize)) {
                tensor.put_back(leaf.storage.clone(), leaf.offset);
            }
            Ok(())
        });
    }
}

impl Deref for Leaves {
    type Target = [Leaf];

    #[inline]
    fn deref(&self) -> &[Leaf] {
        &self.list
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.retiring.collecting = Some(Collecting::begin());
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        let lent = self.collecting.take().map(Collecting::end);
        if let Some(lent) = lent.filter(|lent| !lent.is_empty()) {
            self.completion.retired.keep(lent);
        }
    }
}

/// Which of the tensors that were taken a visit has shown.
struct Shown {
    count: usize,
    /// How many, and the number that comes next as long as they come in order.
    shown: usize,
    /// Which, once one was out of order.
    seen: Option<Vec<bool>>,
}

impl Shown {
    fn of(count: usize) -> Self {
        Self { count, shown: 0, seen: None }
    }

    /// `false` if there is no such tensor, or it was shown before.
    #[inline(always)]
    fn note(&mut self, leaf: usize) -> bool {
        if leaf != self.shown || self.seen.is_some() {
            return self.note_out_of_order(leaf);
        }
        self.shown += 1;
        leaf < self.count
    }

    #[cold]
    #[inline(never)]
    fn note_out_of_order(&mut self, leaf: usize) -> bool {
        let (count, shown) = (self.count, self.shown);
        let seen = self.seen.get_or_insert_with(|| (0..count).map(|index| index < shown).collect());
        match seen.get_mut(leaf) {
            Some(seen) if !*seen => *seen = true,
            _ => return false,
        }
        self.shown += 1;
        true
    }

    fn are_all(&self) -> bool {
        self.shown == self.count
    }

    /// The error of a structure that shows `more` than it should.
    #[cold]
    fn changed(&self, more: usize) -> Error {
        Error::TreeChanged { first: self.count, second: self.shown + more }
    }
}

impl Leaf {
    /// Bytes from the first element to behind the last.
    #[inline]
    pub(crate) fn span(&self) -> usize {
        self.strided.as_ref().map_or(self.payload, |layout| layout.span())
    }

    /// Where the first element lies on the host. What a copy fills may be mapped only since the leaf was taken.
    #[inline]
    pub(crate) fn host_pointer(&self) -> Option<NonNull<u8>> {
        match self.host {
            Some(address) => Some(address.0),
            None => self.storage.host_address(self.offset),
        }
    }

    /// How many bytes are copied: the elements where they are gathered, else all that lies between the first and the last as
    /// well.
    #[inline]
    pub(crate) fn copied_bytes(&self) -> usize {
        if self.is_gathered() { self.payload } else { self.span() }
    }

    /// Whether the elements lie in one run where they are copied to. Strided sources on the host are gathered; on a device
    /// they keep their strides.
    #[inline]
    pub(crate) fn is_gathered(&self) -> bool {
        self.strided.is_none() || self.storage.device().is_none()
    }
}
