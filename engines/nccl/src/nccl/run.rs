//! One collective over the tensors of a tree, by all ranks of this process.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use transship::backend::Ticket;
use transship::{Device, Tensor};

use crate::blocks::{Block, blocks_of, part};
use crate::error::{Error, Result};
use crate::leaves::Leaves;
use crate::nccl::comm::{Comm, Held};
use crate::nccl::elements::{NcclElements, bytes_of, number_of, numbers_of};
use crate::nccl::functions::RawComm;
use crate::nccl::library::Nccl;
use crate::nccl::memory::{BlockMemory, pack};
use crate::nccl::native;
use crate::reduce_op::ReduceOp;

/// A rank of this process.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) comm: Arc<Comm>,
    pub(crate) rank: usize,
    /// How many ranks there are, in all processes.
    pub(crate) size: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce(ReduceOp),
    /// To the rank of the number.
    Reduce(ReduceOp, usize),
    /// From the rank of the number.
    Broadcast(usize),
    AllGather,
}

/// Of one member: for each rank whose tensors it gets (one, but for [`Operation::AllGather`]) the tensors, in order. None where it gets none.
pub(crate) type Results = Vec<Vec<Tensor>>;

/// Fails unless NCCL can combine all tensors.
pub(crate) fn check_reducible(leaves: &Leaves, op: ReduceOp) -> Result<()> {
    match leaves.named().find(|(_, tensor)| numbers_of(tensor.dtype(), op).is_none()) {
        Some((path, tensor)) => Err(Error::NotReducible {
            path: path.to_owned(),
            dtype: tensor.dtype(),
            op,
            by_nccl: op.takes(tensor.dtype()),
        }),
        None => Ok(()),
    }
}

/// Submits the collective for all members, whose tensors have the same types and shapes. Waits for no device.
pub(crate) fn run(members: &[Member], tensors: &[&[Tensor]], operation: Operation) -> Result<Vec<Results>> {
    let Some((first, shapes)) = members.first().zip(tensors.first()) else { return Ok(Vec::new()) };
    let blocks = blocks_of(shapes);
    if blocks.is_empty() {
        let all = members.iter().zip(tensors);
        return all.map(|(member, given)| member.results(given, &blocks, Vec::new(), operation)).collect();
    }
    let prepared =
        members.iter().zip(tensors).map(|(member, tensors)| prepare(member, tensors, &blocks, operation));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    let finish = |((member, tensors), exchanges): ((&Member, &&[Tensor]), Vec<Exchange>)| {
        member.comm.settle(started)?;
        member.results(tensors, &blocks, exchanges, operation)
    };
    // Some ranks may have been called, and wait for others.
    let abort = || members.iter().for_each(|member| member.comm.abort());
    // While the memory is there: what was called may still be on its way to the stream.
    submit(first, members, &blocks, &prepared, operation).inspect_err(|_| abort())?;
    let finished = members.iter().zip(tensors).zip(prepared).map(finish).collect::<Result<_>>();
    finished.inspect_err(|_| abort())
}

/// Makes the calls of all members as one.
fn submit(
    first: &Member,
    members: &[Member],
    blocks: &[Block],
    prepared: &[Vec<Exchange>],
    operation: Operation,
) -> Result<()> {
    // Between the begin and the end of the group the library has all of them: nobody ends one.
    let held = members.iter().map(|member| member.comm.hold()).collect::<Result<Vec<_>>>()?;
    // The library makes devices current itself, and leaves one so at the end of a group.
    native::on(first.comm.stream(), |_| {
        first.comm.nccl().grouped(|| {
            let mut all = members.iter().zip(&held).zip(prepared);
            all.try_for_each(|(member, exchanges)| call_all(member, blocks, exchanges, operation))
        })
    })
}

/// The memory of one block in a collective.
struct Exchange {
    /// `None` where nothing is sent.
    from: Option<BlockMemory>,
    /// `None` where it comes to where it was sent from, or nothing comes.
    to: Option<BlockMemory>,
}

fn prepare(
    member: &Member,
    tensors: &[Tensor],
    blocks: &[Block],
    operation: Operation,
) -> Result<Vec<Exchange>> {
    let stream = member.comm.stream();
    let receive =
        |block: &Block, times: usize| BlockMemory::new(block, block.elements * times, stream).map(Some);
    if !member.sends(operation) {
        let exchange = |block| Ok(Exchange { from: None, to: receive(block, 1)? });
        return blocks.iter().map(exchange).collect();
    }
    let exchange = |(from, block): (BlockMemory, &Block)| {
        let to = match operation {
            Operation::AllGather => receive(block, member.size)?,
            // What is the program's is not written.
            Operation::AllReduce(_) if !from.is_own => receive(block, 1)?,
            Operation::Reduce(_, root) if root == member.rank && !from.is_own => receive(block, 1)?,
            _ => None,
        };
        Ok(Exchange { from: Some(from), to })
    };
    pack(tensors, blocks, stream)?.into_iter().zip(blocks).map(exchange).collect()
}

fn call_all(
    (member, held): (&Member, &Held<'_>),
    blocks: &[Block],
    exchanges: &[Exchange],
    operation: Operation,
) -> Result<()> {
    native::on(member.comm.stream(), |stream| {
        let comm = (member.comm.nccl(), held.raw()?);
        blocks
            .iter()
            .zip(exchanges)
            .try_for_each(|(block, exchange)| call(comm, block, exchange, operation, stream))
    })
}

fn call(
    (nccl, raw): (&Nccl, RawComm),
    block: &Block,
    exchange: &Exchange,
    operation: Operation,
    stream: *mut c_void,
) -> Result<()> {
    let functions = nccl.functions();
    let (from, to) = exchange.addresses()?;
    let NcclElements { dtype, each } = operation.elements(block);
    let count = block.elements * each;
    // `from` and `to` are memory of the device with `count` elements of this type, of all ranks in `to` of an all-gather (`prepare`). It
    // has recorded the stream: it is filled, and stays until the stream has come by. The communicator is held (`submit`).
    let (name, code) = match operation {
        Operation::AllReduce(op) => {
            // SAFETY: as said above.
            let code = unsafe { (functions.all_reduce)(from, to, count, dtype, number_of(op), raw, stream) };
            ("ncclAllReduce", code)
        }
        Operation::Reduce(op, root) => {
            let (op, root) = (number_of(op), number(root));
            // SAFETY: as said above.
            ("ncclReduce", unsafe { (functions.reduce)(from, to, count, dtype, op, root, raw, stream) })
        }
        Operation::Broadcast(root) => {
            // SAFETY: as said above.
            let code = unsafe { (functions.broadcast)(from, to, count, dtype, number(root), raw, stream) };
            ("ncclBroadcast", code)
        }
        Operation::AllGather => {
            // SAFETY: as said above.
            ("ncclAllGather", unsafe { (functions.all_gather)(from, to, count, dtype, raw, stream) })
        }
    };
    nccl.check(name, code)
}

/// Ranks were counted in a `c_int` when the communicator was made.
fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

impl Exchange {
    fn addresses(&self) -> Result<(*const c_void, *mut c_void)> {
        let address = |memory: Option<&BlockMemory>| memory.map_or(Ok(0), BlockMemory::address);
        let from = address(self.from.as_ref().or(self.to.as_ref()))?;
        let to = address(self.to.as_ref().or(self.from.as_ref()))?;
        // Addresses of the device, which the host never follows.
        Ok((ptr::without_provenance(from as usize), ptr::without_provenance_mut(to as usize)))
    }
}

impl Operation {
    fn elements(self, block: &Block) -> NcclElements {
        let moved = bytes_of(block.dtype);
        match self {
            Self::AllReduce(op) | Self::Reduce(op, _) => numbers_of(block.dtype, op).unwrap_or(moved),
            Self::Broadcast(_) | Self::AllGather => moved,
        }
    }
}

impl Member {
    fn sends(&self, operation: Operation) -> bool {
        !matches!(operation, Operation::Broadcast(root) if root != self.rank)
    }

    fn receives(&self, operation: Operation) -> bool {
        !matches!(operation, Operation::Reduce(_, root) if root != self.rank)
    }

    /// What comes of its tensors, `given`.
    fn results(
        &self,
        given: &[Tensor],
        blocks: &[Block],
        exchanges: Vec<Exchange>,
        operation: Operation,
    ) -> Result<Results> {
        let stream = self.comm.stream().backend_stream();
        // Behind the collective: whatever uses the results waits for it.
        let filled = Ticket { position: stream.record()?, stream: stream.clone() };
        if !self.receives(operation) {
            return Ok(Vec::new());
        }
        let ranks = if operation == Operation::AllGather { self.size } else { 1 };
        let mut results: Vec<Vec<Option<Tensor>>> = vec![vec![None; given.len()]; ranks];
        for (block, exchange) in blocks.iter().zip(exchanges) {
            let memory = exchange.to.or(exchange.from).ok_or(transship::Error::Taken)?;
            // What was sent from where it lies is all that there is to get.
            let whole = match memory.is_own {
                true => Some(memory.filled(block, block.elements * ranks, &filled)?),
                false => None,
            };
            for (rank, row) in results.iter_mut().enumerate() {
                for (leaf, start) in &block.leaves {
                    if let (Some(place), Some(given)) = (row.get_mut(*leaf), given.get(*leaf)) {
                        *place = Some(match &whole {
                            Some(whole) => part(whole, rank * block.elements + start, given.shape())?,
                            None => given.clone(),
                        });
                    }
                }
            }
        }
        results.into_iter().map(|row| complete(row, given, self.comm.device())).collect()
    }
}

/// Tensors without elements are made anew.
fn complete(row: Vec<Option<Tensor>>, shapes: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let tensor = |(found, like): (Option<Tensor>, &Tensor)| match found {
        Some(tensor) => Ok(tensor),
        None => Ok(Tensor::empty(like.shape(), like.dtype(), device)?),
    };
    row.into_iter().zip(shapes).map(tensor).collect()
}
