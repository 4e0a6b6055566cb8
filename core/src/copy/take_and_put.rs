//! Takes the storages out of a structure, and puts copies or the same storages in.
//!
//! Each tensor keeps a [`Mark`]: the number of the copy and its own. What is put in is found by that, whatever the order in
//! which a visit shows the tensors.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::leaves::Leaves;
use crate::job::locate_leaves::Scan;
use crate::runtime::foreign;
use crate::tensor::tensor::Tensor;
use crate::tree::paths::{TensorPath, for_each_path};
use crate::tree::tensor_tree::{Stop, TensorTree, Visitor};

/// Takes the storages of all tensors out of `value` and shows them to `scan`. On an error `value` is as it was.
pub(crate) fn take<S: TensorTree>(
    value: &mut S,
    scan: &mut Scan<'_>,
    completion: &Arc<Completion>,
) -> Result<Leaves> {
    let mut leaves = Leaves::new(completion);
    match visit(value, |tensor| leaves.take(tensor, scan)) {
        Ok(()) => Ok(leaves),
        Err(error) => {
            restore(&leaves, value);
            Err(located(error, leaves.len(), value))
        }
    }
}

/// `error` with the path of tensor number `index`, which it is about, if it is about one and the structure shows its paths.
#[cold]
fn located<S: TensorTree>(error: Error, index: usize, value: &S) -> Error {
    if !matches!(error, Error::DoesNotFit { .. } | Error::NeverCast { .. } | Error::UnsuitedTensor { .. }) {
        return error;
    }
    let (mut left, mut found) = (index, String::new());
    let look = |path: TensorPath<'_>, _: &Tensor| {
        match left.checked_sub(1) {
            Some(less) => left = less,
            None if found.is_empty() => found = path.to_string(),
            None => {}
        }
        Ok(())
    };
    // A type that shows none leaves it open where it was.
    let _ = foreign::call(|| for_each_path(value, look));
    error.at(found)
}

/// Puts all of `leaves` back into the tensors of `value` that they were taken out of, or into those of a clone. Others stay as they
/// are.
pub(crate) fn restore<S: TensorTree>(leaves: &Leaves, value: &mut S) {
    // It stops where taking did, with the same reason.
    let _ = visit(value, |tensor| {
        let mark = tensor.mark().filter(|mark| mark.copy == leaves.copy());
        if let Some(leaf) = mark.and_then(|mark| leaves.get(mark.leaf as usize)) {
            tensor.put_back(leaf.storage.clone(), leaf.offset);
        }
        Ok(())
    });
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
