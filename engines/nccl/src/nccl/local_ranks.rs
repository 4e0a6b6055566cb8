//! All ranks of one process, which one thread calls for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use transship::{
    CopyHandle, CopyOptions, CopyPolicy, DType, Device, Event, Stream, StreamPriority, Tensor, start_copy,
};

use crate::error::{Error, Result};
use crate::leaves::Leaves;
use crate::nccl::comm::Comm;
use crate::nccl::library::Nccl;
use crate::nccl::native;
use crate::nccl::run::{Member, Operation, Results, check_reducible, run};
use crate::reduce_op::ReduceOp;

/// How long the end of a group waits for what its devices still do.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct LocalRanks {
    members: Vec<Member>,
}

impl LocalRanks {
    /// With the library for the driver of the devices.
    pub(crate) fn new(devices: &[Device]) -> Result<Self> {
        let first = devices.first().ok_or(Error::NoSuchRank { rank: 0, ranks: 0 })?;
        check_devices(devices)?;
        Self::with(Nccl::of(first)?, devices)
    }

    pub(crate) fn with(nccl: Nccl, devices: &[Device]) -> Result<Self> {
        check_devices(devices)?;
        open_to_each_other(devices)?;
        let streams = devices.iter().map(|device| device.create_stream(StreamPriority::High));
        let streams: Vec<Stream> = streams.collect::<Result<_, _>>()?;
        let (comms, size) = (Comm::all(nccl, &streams, LIMIT)?, devices.len());
        let member = |(rank, comm)| Member { comm: Arc::new(comm), rank, size };
        Ok(Self { members: comms.into_iter().enumerate().map(member).collect() })
    }

    /// `None` once it was aborted.
    pub(crate) fn nccl(&self) -> Option<&Nccl> {
        let are_alive = self.members.iter().all(|member| member.comm.is_alive());
        self.members.first().filter(|_| are_alive).map(|member| member.comm.nccl())
    }

    pub(crate) fn abort(&self) {
        self.members.iter().for_each(|member| member.comm.abort());
    }

    /// What `op` makes of the tensors of all ranks, on each device.
    pub(crate) fn all_reduce(&self, ranks: &[Leaves], op: ReduceOp) -> Result<Vec<Vec<Tensor>>> {
        let results = self.run(ranks, op, Operation::AllReduce(op))?;
        Ok(results.into_iter().map(|result| result.into_iter().next().unwrap_or_default()).collect())
    }

    /// The same on the device of one rank.
    pub(crate) fn reduce(&self, ranks: &[Leaves], op: ReduceOp, root: usize) -> Result<Vec<Tensor>> {
        let results = self.run(ranks, op, Operation::Reduce(op, root))?;
        Ok(results.into_iter().flatten().next().unwrap_or_default())
    }

    fn run(&self, ranks: &[Leaves], op: ReduceOp, operation: Operation) -> Result<Vec<Results>> {
        ranks.iter().try_for_each(|leaves| check_reducible(leaves, op))?;
        let tensors: Vec<&[Tensor]> = ranks.iter().map(|leaves| &leaves.tensors[..]).collect();
        run(&self.members, &tensors, operation)
    }

    /// Waits until all devices are done. Each is asked each time: others may wait for one that was lost.
    fn finish(&self) -> Result<()> {
        let Some(first) = self.members.first() else { return Ok(()) };
        let ends = self.members.iter().map(|member| member.comm.stream().record());
        let ends = ends.collect::<Result<Vec<Event>, _>>()?;
        first.comm.wait("the last collectives", Instant::now(), || {
            // An error of one rank need not show at the others.
            self.members.iter().try_for_each(|member| member.comm.async_state().map(drop))?;
            let reached = ends.iter().map(Event::is_reached).collect::<Result<Vec<bool>, _>>()?;
            Ok(reached.into_iter().all(|is_reached| is_reached))
        })
    }
}

impl Drop for LocalRanks {
    /// All ranks end together: one waits for the others on its device.
    fn drop(&mut self) {
        if self.finish().is_err() {
            self.abort();
        }
    }
}

fn check_devices(devices: &[Device]) -> Result<()> {
    if !devices.iter().all(native::is_there) {
        let reason = "it knows devices of CUDA and HIP, with the feature of that name";
        return Err(native::unsuited(devices, reason));
    }
    let mut ids: Vec<_> = devices.iter().map(Device::id).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() < devices.len()
        || ids.iter().any(|id| Some(id.driver()) != ids.first().map(|first| first.driver()))
    {
        return Err(native::unsuited(devices, "each rank needs a device of its own, all of one driver"));
    }
    Ok(())
}

/// Ranks of one process read and write each other's memory where it lies. Memory of a pool is open to a peer once a copy between the two
/// has opened it, and not by what NCCL does for that.
fn open_to_each_other(devices: &[Device]) -> Result<()> {
    for (from, to) in devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to))) {
        let options = CopyOptions::default().policy(CopyPolicy::IfNeeded);
        let copied =
            start_copy(Tensor::zeros(&[1], DType::I64, from)?, to, options).and_then(CopyHandle::wait);
        drop(copied.map_err(transship::Error::from)?);
    }
    Ok(())
}
