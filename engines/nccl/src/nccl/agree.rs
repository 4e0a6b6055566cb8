//! What ranks tell each other before anything moves. Calls of NCCL that differ hang, or write where nothing is theirs; this one is the same
//! for all calls and trees.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use transship::{CopyOptions, Device, Manifest, Tensor, TensorTree, start_copy};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::leaves::Leaves;
use crate::nccl::run::{Member, Operation, run};
use crate::reduce_op::ReduceOp;

/// What a rank has called, and with which tree: 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header([u8; HEADER_BYTES]);

const HEADER_BYTES: usize = 32;
/// Of the header. Another one has another number.
const VERSION: u8 = 2;
/// A call whose tree the rank could not take.
const REFUSED: u8 = 0;

/// Fails unless all ranks have called `operation` with the same tensors, as their call of this number: then on all ranks. Waits for them. Without `leaves` the rank has no tree that it can
/// give.
pub(crate) fn agree<S: TensorTree>(
    member: &Member,
    tree: &S,
    leaves: Option<&Leaves>,
    (operation, number): (Operation, u32),
) -> Result<()> {
    let own = Header::new((operation, number), leaves);
    let all = exchange(member, own.0.to_vec())?;
    let headers = all.iter().map(|bytes| Header::from(bytes)).collect::<Vec<_>>();
    let Some(first) = headers.first() else { return Ok(()) };
    for (rank, header) in headers.iter().enumerate() {
        if header.call() != first.call() {
            let [actual, expected] = [header, first].map(|told| told.name(header.number() != first.number()));
            return Err(Error::CallsDiffer { rank, actual, expected });
        }
    }
    if headers.iter().all(|header| header == first) {
        return Ok(());
    }
    compare_trees(member, tree)
}

/// The error of ranks that have other trees.
fn compare_trees<S: TensorTree>(member: &Member, tree: &S) -> Result<()> {
    // A tree that cannot be described is an empty one to others, who wait for it: a panic of the program goes on behind that.
    let described = catch_unwind(AssertUnwindSafe(|| Manifest::of(tree)));
    let own = described.as_ref().ok().and_then(|described| described.as_ref().ok());
    let told = exchange_of_any_length(member, own.map_or(Vec::new(), |own| own.to_bytes().to_vec()));
    if let Err(panic) = described {
        resume_unwind(panic);
    }
    let manifests = told?.into_iter().map(Manifest::from_bytes).collect::<transship::Result<Vec<_>>>()?;
    let Some((first, others)) = manifests.split_first() else { return Ok(()) };
    for (rank, other) in (1..).zip(others) {
        other.check_tensors(first).map_err(|error| Error::RanksDiffer { rank, error })?;
    }
    // Hashes differ, and nothing else does.
    Err(transship::Error::TreeChanged { first: first.len(), second: first.len() }.into())
}

/// The bytes of each rank, however many they are.
fn exchange_of_any_length(member: &Member, mut bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let lengths = exchange(member, bytes.len().to_le_bytes().to_vec())?;
    let longest = lengths.iter().map(|bytes| number(bytes)).max().unwrap_or(0);
    bytes.resize(longest, 0);
    let mut all = exchange(member, bytes)?;
    all.iter_mut().zip(&lengths).for_each(|(bytes, length)| bytes.truncate(number(length)));
    Ok(all)
}

/// As many bytes of each rank, given to all of them. A rank that cannot take part ends the communicator: the others wait for it, and would take its next call for this one.
fn exchange(member: &Member, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    exchanged(member, bytes).inspect_err(|_| member.comm.abort())
}

fn exchanged(member: &Member, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let (sent, started) = (Tensor::from(bytes), Instant::now());
    let results = run(std::slice::from_ref(member), &[&[sent]], Operation::AllGather)?;
    let rows = results.into_iter().next().unwrap_or_default();
    let options = CopyOptions::default().stream(member.comm.stream());
    let copy = start_copy(rows, &Device::host(), options).map_err(transship::Error::from)?;
    member.comm.wait("what the other ranks have called", started, || Ok(copy.is_ready()?))?;
    let rows = copy.wait().map_err(transship::Error::from)?;
    Ok(rows.iter().flatten().map(Tensor::to_bytes).collect::<transship::Result<_>>()?)
}

impl Header {
    /// `None` for a tree that this rank cannot take.
    fn new((operation, number): (Operation, u32), leaves: Option<&Leaves>) -> Self {
        let (call, op, root) = match (leaves, operation) {
            (None, _) => (REFUSED, 0, 0),
            (_, Operation::AllReduce(op)) => (1, code_of(op), 0),
            (_, Operation::Reduce(op, root)) => (2, code_of(op), root),
            (_, Operation::Broadcast(root)) => (3, 0, root),
            (_, Operation::AllGather) => (4, 0, 0),
        };
        let hash = leaves.map_or(0, |leaves| XxHash3_64::oneshot(&described(leaves)));
        let mut bytes = [0; HEADER_BYTES];
        let number = number.to_le_bytes();
        let words = [&[VERSION, call, op, 0], &number[..], &root.to_le_bytes(), &hash.to_le_bytes()].concat();
        bytes.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
        Self(bytes)
    }

    fn from(bytes: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        header.iter_mut().zip(bytes).for_each(|(byte, received)| *byte = *received);
        Self(header)
    }

    /// All but the tree.
    fn call(&self) -> &[u8] {
        self.0.get(..16).unwrap_or_default()
    }

    fn call_code(&self) -> u8 {
        self.0.get(1).copied().unwrap_or(REFUSED)
    }

    /// Which call of its rank it is.
    fn number(&self) -> u32 {
        let bytes = self.0.get(4..8).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn name(&self, numbered: bool) -> String {
        let name = self.name_of_call();
        if numbered { format!("{name} in its call {}", self.number()) } else { name }
    }

    fn name_of_call(&self) -> String {
        let op = self.0.get(2).copied().unwrap_or_default();
        let op =
            [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max].into_iter().find(|known| code_of(*known) == op);
        let op = op.map_or("another operation".to_owned(), |op| format!("{op:?}"));
        let root = number(self.0.get(8..16).unwrap_or_default());
        match self.call_code() {
            REFUSED => "a tree that it cannot take".to_owned(),
            1 => format!("all_reduce by {op}"),
            2 => format!("reduce by {op} to rank {root}"),
            3 => format!("broadcast from rank {root}"),
            4 => "all_gather".to_owned(),
            other => format!("call {other} of another version"),
        }
    }
}

/// Paths, types and shapes, each in a form of its own.
fn described(leaves: &Leaves) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, tensor) in leaves.named() {
        bytes.extend_from_slice(path.as_bytes());
        // No letter of UTF-8.
        bytes.push(0xff);
        bytes.extend_from_slice(tensor.dtype().to_string().as_bytes());
        bytes.push(0xff);
        bytes.extend_from_slice(&tensor.rank().to_le_bytes());
        tensor.shape().iter().for_each(|size| bytes.extend_from_slice(&size.to_le_bytes()));
    }
    bytes
}

fn code_of(op: ReduceOp) -> u8 {
    match op {
        ReduceOp::Sum => 1,
        ReduceOp::Min => 2,
        ReduceOp::Max => 3,
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.first_chunk().map_or(0, |bytes| usize::from_le_bytes(*bytes))
}
