//! Takes the tensors of two structures, pair by pair: one to copy, and one to copy it into.

use std::cell::OnceCell;
use std::sync::Arc;

use crate::copy::{put_callers_memory, take_and_put};
use crate::device::device::Device;
use crate::error::{Error, Result, count};
use crate::in_flight::completion::Completion;
use crate::job::callers_memory::{Preallocated, SOURCE, unsuited};
use crate::job::leaves::Leaves;
use crate::job::locate_leaves::Scan;
use crate::job::options::CopyOptions;
use crate::job::plan_into::Paired;
use crate::runtime::foreign;
use crate::tensor::tensor::Tensor;
use crate::tree::pair::{PairSink, Pairs};
use crate::tree::tensor_tree::{Stop, TensorTree};

/// Takes the tensors of `value` and those of `into`, which tell the `target`. On an error both are as they were.
pub(crate) fn take<'a, S: TensorTree>(
    value: &mut S,
    into: &mut S,
    target: &'a OnceCell<Device>,
    options: &'a CopyOptions,
    completion: &Arc<Completion>,
) -> Result<Paired<'a>> {
    let mut taking =
        Taking { leaves: Leaves::new(completion), held: Preallocated::new(), scan: None, target, options };
    let taken = pair(value, into, &mut taking);
    let checked = taken.and_then(|()| {
        taking.check_count()?;
        taking.scan()?;
        taking.held.check(target.get_or_init(Device::host))
    });
    let Taking { leaves, held, scan, .. } = taking;
    match (checked, scan) {
        (Ok(()), Some(scan)) => Ok(Paired { leaves, held, scan }),
        (checked, _) => {
            take_and_put::restore(&leaves, value);
            put_callers_memory::restore(&held, into, leaves.copy());
            Err(located(checked.err().unwrap_or(Error::Taken), value, into))
        }
    }
}

/// `error` with the path of the tensor that it is about. Both structures are whole.
pub(crate) fn located<S: TensorTree>(error: Error, value: &mut S, into: &mut S) -> Error {
    let Error::UnsuitedTensor { index, path, .. } = &error else { return error };
    if !path.is_empty() {
        return error;
    }
    let mut search = Search { left: *index, error: &error };
    match pair(value, into, &mut search) {
        Err(found @ Error::UnsuitedTensor { .. }) => found,
        _ => error,
    }
}

fn pair<S: TensorTree>(value: &mut S, into: &mut S, sink: &mut dyn PairSink) -> Result<()> {
    foreign::call(|| value.pair(into, &mut Pairs::new(sink))).map_err(Stop::into_reason)
}

struct Taking<'a> {
    leaves: Leaves,
    held: Preallocated,
    /// Begun with the first tensor, when the target is known.
    scan: Option<Scan<'a>>,
    target: &'a OnceCell<Device>,
    options: &'a CopyOptions,
}

impl<'a> Taking<'a> {
    /// Fails unless both structures gave as many tensors. An implementation that goes on after an error has taken one of a pair
    /// and not the other one.
    fn check_count(&self) -> Result<()> {
        let (tensors, into) = (self.leaves.len(), self.held.len());
        match tensors == into {
            true => Ok(()),
            false => Err(Error::StructureMismatch {
                path: String::new(),
                value: count(tensors, "tensor"),
                into: count(into, "tensor"),
            }),
        }
    }

    #[inline]
    fn scan(&mut self) -> Result<&mut Scan<'a>> {
        if self.scan.is_none() {
            let target = self.target.get_or_init(|| self.held.target());
            self.scan = Some(Scan::new(target, self.options)?.gathering_all());
        }
        self.scan.as_mut().ok_or(Error::Taken)
    }
}

impl PairSink for Taking<'_> {
    fn destination(&mut self, tensor: &mut Tensor) -> Result<(), Stop> {
        self.held.take(tensor, self.leaves.copy()).map_err(Stop::new)
    }

    fn source(&mut self, tensor: &mut Tensor) -> Result<(), Stop> {
        let index = self.leaves.len();
        let compared = match &*self.options.casts {
            [] => self.held.compare(index, tensor, tensor.dtype()),
            casts => self.held.compare_cast(index, tensor, casts),
        };
        compared.map_err(Stop::new)?;
        self.scan().map_err(Stop::new)?;
        let Self { leaves, scan: Some(scan), held, .. } = self else { return Ok(()) };
        let index = leaves.len();
        scan.note_destination(held.strided(index).is_some(), held.is_lent(index));
        leaves.take(tensor, scan).map_err(|stop| match stop.into_reason() {
            failed @ Error::CopyFailed(_) => Stop::new(unsuited(index, SOURCE, failed)),
            other => Stop::new(other),
        })
    }
}

/// Stops at a pair, with an error that gets its path on the way back.
struct Search<'a> {
    left: usize,
    error: &'a Error,
}

impl PairSink for Search<'_> {
    fn destination(&mut self, _: &mut Tensor) -> Result<(), Stop> {
        Ok(())
    }

    fn source(&mut self, _: &mut Tensor) -> Result<(), Stop> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Stop::new(self.error.clone())),
        }
    }
}
