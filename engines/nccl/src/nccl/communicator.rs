//! A rank among those of several processes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use transship::{Device, StreamPriority, Tensor, TensorTree};

use crate::error::{Error, Failed, Result};
use crate::leaves::Leaves;
use crate::nccl::agree::agree;
use crate::nccl::comm::Comm;
use crate::nccl::library::Nccl;
use crate::nccl::pending::Pending;
use crate::nccl::run::{Member, Operation, check_reducible, run};
use crate::nccl::unique_id::UniqueId;
use crate::reduce_op::ReduceOp;

/// A rank among those of several processes, or threads, each with a device of its own.
///
/// All ranks make the same calls in the same order, with trees of the same tensors. Each call first tells the others what it is, and waits
/// for them: ranks that differ get an error, all of them, and nothing moves. That comes behind what the calls before have moved, and what fills their trees: it waits
/// for these as well, within `limit` of [`join`](Self::join). What moves then is submitted to a stream of the communicator's, and not waited for.
///
/// Trees come in from anywhere, and out on the device: small tensors of one type in one allocation. A rank whose process ends, or that does
/// not come within the time given, is an error of whoever waits for it, and the end of the communicator.
///
/// ```no_run
/// use std::time::Duration;
/// use transship::{Device, Tensor};
/// use transship_nccl::{Communicator, Nccl, ReduceOp, UniqueId};
///
/// # fn the_same_on_all_ranks() -> [u8; 128] { [0; 128] }
/// # fn main() -> Result<(), transship_nccl::Error> {
/// let device = Device::open("cuda:1".parse().map_err(transship::Error::from)?)?;
/// let nccl = Nccl::of(&device)?;
/// // One rank makes it, with `UniqueId::new`, and gives it to the others.
/// let id = UniqueId::from_bytes(the_same_on_all_ranks());
/// let mut ranks = Communicator::join(&nccl, &id, 1, 2, &device, Duration::from_secs(60))?;
/// let gradients = vec![Tensor::from(vec![0.5_f32; 3])];
/// let gradients = ranks.all_reduce(gradients, ReduceOp::Sum)?.wait()?;
/// # Ok(())
/// # }
/// ```
///
/// Dropped, it waits for its last collective, and for the other ranks to leave as well, for at most `limit` of [`join`](Self::join): they may still read what this rank has.
/// Where one of them has died, [`abort`](Self::abort) waits for nobody, and an [`Aborter`] ends that wait too. What [pending](Pending) collectives have filled by then is theirs.
pub struct Communicator {
    member: Member,
    /// How many calls were made, which those of the others are compared with.
    calls: u32,
}

impl Communicator {
    /// Joins as rank `rank` of `size`, and waits for the others. Each later call has as long as `limit`, as this one has.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`]; [`Error::UnsuitedDevices`] for a device of another driver, or one whose feature is off; [`Error::Nccl`];
    /// [`Error::TimedOut`]; what the driver says.
    pub fn join(
        nccl: &Nccl,
        id: &UniqueId,
        rank: usize,
        size: usize,
        device: &Device,
        limit: Duration,
    ) -> Result<Self> {
        let stream = device.create_stream(StreamPriority::High)?;
        let comm = Comm::join(*nccl, id, rank, size, &stream, limit)?;
        Ok(Self { member: Member { comm: Arc::new(comm), rank, size }, calls: 0 })
    }

    /// Its number, counted from 0.
    pub fn rank(&self) -> usize {
        self.member.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.member.size
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.member.comm.device()
    }

    /// What `op` makes of the tensors of all ranks, for each rank.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDiffer`], [`Error::CallsDiffer`] and [`Error::NotReducible`] on all ranks, with nothing moved; [`Error::Nccl`] and
    /// [`Error::TimedOut`] where another rank fails or does not come, [`Error::Aborted`] after one of these; what transship says.
    pub fn all_reduce<S: TensorTree>(&mut self, tree: S, op: ReduceOp) -> Result<Pending<S>, Failed<S>> {
        self.in_place(tree, Operation::AllReduce(op))
    }

    /// The tensors of rank `root`, for each rank: the trees of others say what comes, and their elements play no part.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`], on all ranks if all have named it; as [`all_reduce`](Self::all_reduce).
    pub fn broadcast<S: TensorTree>(&mut self, tree: S, root: usize) -> Result<Pending<S>, Failed<S>> {
        self.in_place(tree, Operation::Broadcast(root))
    }

    /// The trees of all ranks, in their order, for each rank.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<S: TensorTree + Clone>(&mut self, mut tree: S) -> Result<Pending<Vec<S>>, Failed<S>> {
        let started = Instant::now();
        let gathered = self.collective(&mut tree, Operation::AllGather).and_then(|(_, results)| {
            let copies = results.into_iter().map(|tensors| {
                let mut copy = tree.clone();
                Leaves::of(&mut copy)?.put(&mut copy, tensors)?;
                Ok(copy)
            });
            copies.collect::<Result<Vec<S>>>()
        });
        match gathered.and_then(|trees| Ok((trees, self.member.comm.stream().record()?))) {
            Ok((trees, end)) => Ok(Pending { tree: trees, comm: self.member.comm.clone(), end, started }),
            Err(error) => Err(Failed::new(error, tree)),
        }
    }

    /// Asks whether all ranks are well. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`] where one has failed: the communicator is aborted with it. [`Error::Aborted`] where it was before.
    pub fn check(&self) -> Result<()> {
        self.member.comm.wait("", Instant::now(), || Ok(true))
    }

    /// Ends all that it is doing, on the device too. What that was to fill is undefined, and all later calls fail.
    ///
    /// A call that waits for other ranks has the communicator for itself: [`aborter`](Self::aborter) ends it from another thread.
    pub fn abort(&self) {
        self.member.comm.abort();
    }

    /// What aborts it from any thread, also while a call waits.
    ///
    /// ```no_run
    /// # use std::{thread, time::Duration};
    /// # use transship_nccl::{Communicator, ReduceOp};
    /// # fn watched(mut ranks: Communicator, gradients: Vec<transship::Tensor>) {
    /// let aborter = ranks.aborter();
    /// thread::spawn(move || {
    ///     // Whatever says that another rank is gone.
    ///     thread::sleep(Duration::from_secs(5));
    ///     aborter.abort();
    /// });
    /// let reduced = ranks.all_reduce(gradients, ReduceOp::Sum);
    /// # }
    /// ```
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::downgrade(&self.member.comm))
    }

    fn in_place<S: TensorTree>(
        &mut self,
        mut tree: S,
        operation: Operation,
    ) -> Result<Pending<S>, Failed<S>> {
        let started = Instant::now();
        let put = self.collective(&mut tree, operation).and_then(|(leaves, results)| {
            let tensors = results.into_iter().next().unwrap_or_default();
            leaves.put(&mut tree, tensors)?;
            Ok(self.member.comm.stream().record()?)
        });
        match put {
            Ok(end) => Ok(Pending { tree, comm: self.member.comm.clone(), end, started }),
            Err(error) => Err(Failed::new(error, tree)),
        }
    }

    fn collective<S: TensorTree>(
        &mut self,
        tree: &mut S,
        operation: Operation,
    ) -> Result<(Leaves, Vec<Vec<Tensor>>)> {
        // A panic of the program goes on behind what the others are told: they would take the next call for this one.
        let leaves = catch_unwind(AssertUnwindSafe(|| Leaves::of(tree)));
        self.calls = self.calls.wrapping_add(1);
        // Those that have no tree to give take part, so that nobody waits for them.
        let given = leaves.as_ref().ok().and_then(|leaves| leaves.as_ref().ok());
        let agreed = agree(&self.member, tree, given, (operation, self.calls));
        let leaves = leaves.unwrap_or_else(|panic| resume_unwind(panic))?;
        agreed?;
        if let Operation::Broadcast(rank) = operation
            && rank >= self.size()
        {
            return Err(Error::NoSuchRank { rank, ranks: self.size() });
        }
        if let Operation::AllReduce(op) | Operation::Reduce(op, _) = operation {
            check_reducible(&leaves, op)?;
        }
        let results = run(std::slice::from_ref(&self.member), &[&leaves.tensors], operation);
        match results {
            Ok(results) => Ok((leaves, results.into_iter().next().unwrap_or_default())),
            Err(error) => {
                // Others wait for what does not come.
                self.abort();
                Err(error)
            }
        }
    }
}

impl Drop for Communicator {
    /// Here, and not where the last of its pending collectives goes.
    fn drop(&mut self) {
        self.member.comm.end();
    }
}

/// Aborts a [`Communicator`]. It keeps none.
#[derive(Clone)]
pub struct Aborter(Weak<Comm>);

impl Aborter {
    /// As [`Communicator::abort`], also while its end waits for other ranks; nothing where the communicator has gone.
    pub fn abort(&self) {
        if let Some(comm) = self.0.upgrade() {
            comm.abort();
        }
    }
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aborter").finish_non_exhaustive()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank(), self.size(), self.device().id())
    }
}
