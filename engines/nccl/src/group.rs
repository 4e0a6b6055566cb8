//! The ranks of one process.

use std::fmt;

use transship::{Device, TensorTree};

use crate::copies;
use crate::copies::Ranks;
use crate::error::{Error, Failed, Result};
use crate::leaves::Leaves;
use crate::nccl::library::Nccl;
use crate::nccl::local_ranks::LocalRanks;
use crate::nccl::native;
use crate::reduce_op::ReduceOp;

/// The ranks of one process: devices, in an order. One call is made for all ranks, by any thread; trees go in and come out in the
/// order of the ranks.
///
/// Trees of all ranks have the same tensors, by their paths: types and shapes as well, but for what is said at
/// [`gather`](Self::gather). If they have not, that is an error which names the first one that differs, and nothing is moved. Every error gives
/// back what was given.
///
/// Results on a device are there in the order of its streams: whatever is done with them through transship comes behind. Results on the
/// host are there.
///
/// Between GPUs of one driver NCCL combines, where it is there ([`new`](Self::new)); everything else is done by copies, on all backends. A
/// group with NCCL waits at its end for what is still to be combined, for 60 s at most.
///
/// A device that hangs or is lost holds up the others where NCCL combines. Who uses a result finds out by a deadline
/// ([`CopyOptions::deadline`](transship::CopyOptions::deadline)), and [`abort`](Self::abort) ends that.
pub struct Group {
    ranks: Ranks,
    /// Or why not.
    nccl: Result<LocalRanks>,
}

impl Group {
    /// A group that combines by NCCL if it can, else by copies; [`nccl`](Self::nccl) tells.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`] without a device; what drivers say.
    pub fn new(devices: &[Device]) -> Result<Self> {
        Ok(Self { ranks: Ranks::new(devices)?, nccl: LocalRanks::new(devices) })
    }

    /// A group that combines by this library.
    ///
    /// # Errors
    ///
    /// [`Error::UnsuitedDevices`] unless each rank has a device of its own, of CUDA or HIP; [`Error::Nccl`]; as [`new`](Self::new).
    pub fn with_nccl(nccl: &Nccl, devices: &[Device]) -> Result<Self> {
        Ok(Self { ranks: Ranks::new(devices)?, nccl: Ok(LocalRanks::with(*nccl, devices)?) })
    }

    /// A group that does everything by copies, and adds on the host: over any devices, the host and others that are named twice included.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRank`] without a device; what drivers say.
    pub fn of_copies(devices: &[Device]) -> Result<Self> {
        let reason = "this group was made to copy";
        Ok(Self { ranks: Ranks::new(devices)?, nccl: Err(native::unsuited(devices, reason)) })
    }

    /// The library that combines, or why there is none.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`], [`Error::UnsuitedDevices`], or what the library said when it was to begin; [`Error::Aborted`] once a call of it has failed: then make another group.
    pub fn nccl(&self) -> Result<&Nccl, &Error> {
        self.nccl.as_ref().and_then(|ranks| ranks.nccl().ok_or(&Error::Aborted))
    }

    /// The devices, in the order of the ranks.
    pub fn devices(&self) -> &[Device] {
        &self.ranks.devices
    }

    /// Ends what NCCL still does, on the devices too. What that was to fill is undefined, and [`nccl`](Self::nccl) is [`Error::Aborted`] from now on, as are calls that
    /// combine. From any thread; does nothing in a group of copies.
    pub fn abort(&self) {
        self.nccl.iter().for_each(LocalRanks::abort);
    }

    /// Gives each rank the tensors of `tree`, which may lie anywhere. Planned, packed and staged once
    /// ([`start_copy_to_all`](transship::start_copy_to_all)). What lies on the device of a rank already is shared with it, unless two ranks are on
    /// one device.
    ///
    /// ```
    /// use transship::{Device, Tensor};
    /// use transship_nccl::Group;
    ///
    /// let group = Group::of_copies(&[Device::host(), Device::best()?])?;
    /// let trees = group.broadcast(vec![Tensor::from(vec![1.0_f32, 2.0])])?;
    /// assert_eq!(trees[1][0].device_id()?, Device::best()?.id());
    /// # Ok::<(), transship_nccl::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What transship says.
    pub fn broadcast<S: TensorTree + Clone>(&self, tree: S) -> Result<Vec<S>, Failed<S>> {
        self.ranks.broadcast(tree.clone()).map_err(|error| Failed::new(error, tree))
    }

    /// Gives each rank its part of each tensor of `tree`: `sizes` of them along dimension `dim`, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// [`Error::WrongCount`] unless there is a size for each rank; [`Error::NotScattered`] for the first tensor to whose dimension they do not add
    /// up; what transship says.
    pub fn scatter<S: TensorTree + Clone>(
        &self,
        tree: S,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Vec<S>, Failed<S>> {
        let scattered =
            self.check_count("sizes", sizes.len()).and_then(|()| self.ranks.scatter(&tree, dim, sizes));
        scattered.map_err(|error| Failed::new(error, tree))
    }

    /// The tensors of all ranks, one behind the other along dimension `dim`, on `to`. Those of one path may differ in that dimension. Along the
    /// first dimension each is copied to its place; along others all come together on the host.
    ///
    /// # Errors
    ///
    /// [`Error::WrongCount`] unless there is a tree for each rank; [`Error::RanksDiffer`] where paths do, [`Error::NoSuchDimension`], [`Error::NotGathered`] where other
    /// dimensions or types do; what transship says.
    pub fn gather<S: TensorTree>(&self, trees: Vec<S>, dim: usize, to: &Device) -> Result<S, Failed<Vec<S>>> {
        self.make_one(trees, Leaves::with_same_paths, |leaves| self.ranks.gather(leaves, dim, to))
    }

    /// What `op` makes of the tensors of all ranks, on `to`: for [`ReduceOp::Sum`] what PyTorch calls `reduce_add`.
    ///
    /// By copies, elements are combined in the order of the ranks, each time rounded to their type: without a kernel for it they come down, are combined
    /// on the host, and go up. NCCL combines in an order of its own.
    ///
    /// # Errors
    ///
    /// [`Error::WrongCount`] unless there is a tree for each rank; [`Error::RanksDiffer`]; [`Error::NotReducible`]; what transship says.
    pub fn reduce<S: TensorTree>(
        &self,
        trees: Vec<S>,
        op: ReduceOp,
        to: &Device,
    ) -> Result<S, Failed<Vec<S>>> {
        let reduce = |leaves: &[Leaves]| match &self.nccl {
            Ok(nccl) => {
                let root = self.devices().iter().position(|device| device.id() == to.id());
                copies::to_device(nccl.reduce(leaves, op, root.unwrap_or(0))?, to)
            }
            Err(_) => copies::to_device(Ranks::reduce(leaves, op)?, to),
        };
        self.make_one(trees, Leaves::of_ranks, reduce)
    }

    /// What `op` makes of the tensors of all ranks, for each rank. As [`reduce`](Self::reduce) otherwise.
    ///
    /// ```
    /// use transship::{Device, Tensor};
    /// use transship_nccl::{Group, ReduceOp};
    ///
    /// let group = Group::of_copies(&[Device::host(), Device::host()])?;
    /// let trees = vec![vec![Tensor::from(vec![1_i32, 2])], vec![Tensor::from(vec![10_i32, 20])]];
    /// let trees = group.all_reduce(trees, ReduceOp::Sum)?;
    /// assert_eq!(trees[1][0].as_slice::<i32>()?, [11, 22]);
    /// # Ok::<(), transship_nccl::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`reduce`](Self::reduce).
    pub fn all_reduce<S: TensorTree>(
        &self,
        mut trees: Vec<S>,
        op: ReduceOp,
    ) -> Result<Vec<S>, Failed<Vec<S>>> {
        let reduced = self.leaves(&mut trees, Leaves::of_ranks).and_then(|leaves| {
            let results = match &self.nccl {
                Ok(nccl) => nccl.all_reduce(&leaves, op)?,
                Err(_) => self.ranks.broadcast(Ranks::reduce(&leaves, op)?)?,
            };
            Ok((leaves, results))
        });
        let put = reduced.and_then(|(leaves, results)| Leaves::put_all(&leaves, &mut trees, results));
        match put {
            Ok(()) => Ok(trees),
            Err(error) => Err(Failed::new(error, trees)),
        }
    }

    /// The trees of all ranks, for each rank.
    ///
    /// # Errors
    ///
    /// [`Error::WrongCount`] unless there is a tree for each rank; [`Error::RanksDiffer`]; what transship says.
    pub fn all_gather<S: TensorTree + Clone>(
        &self,
        mut trees: Vec<S>,
    ) -> Result<Vec<Vec<S>>, Failed<Vec<S>>> {
        let gathered = self.leaves(&mut trees, Leaves::of_ranks).and_then(|_| {
            let mut ranks: Vec<Vec<S>> = self.devices().iter().map(|_| Vec::new()).collect();
            for tree in &trees {
                let copies = self.ranks.broadcast(tree.clone())?;
                ranks.iter_mut().zip(copies).for_each(|(rank, copy)| rank.push(copy));
            }
            Ok(ranks)
        });
        gathered.map_err(|error| Failed::new(error, trees))
    }

    fn make_one<S: TensorTree>(
        &self,
        mut trees: Vec<S>,
        find: impl Fn(&mut [S]) -> Result<Vec<Leaves>>,
        make: impl Fn(&[Leaves]) -> Result<Vec<transship::Tensor>>,
    ) -> Result<S, Failed<Vec<S>>> {
        let made = self.leaves(&mut trees, find).and_then(|leaves| Ok((make(&leaves)?, leaves)));
        let put = made.and_then(|(results, leaves)| match (leaves.first(), trees.first_mut()) {
            (Some(leaves), Some(tree)) => leaves.put(tree, results),
            _ => Ok(()),
        });
        match put {
            Ok(()) => Ok(trees.swap_remove(0)),
            Err(error) => Err(Failed::new(error, trees)),
        }
    }

    fn leaves<S>(
        &self,
        trees: &mut [S],
        find: impl Fn(&mut [S]) -> Result<Vec<Leaves>>,
    ) -> Result<Vec<Leaves>> {
        self.check_count("trees", trees.len())?;
        find(trees)
    }

    fn check_count(&self, what: &'static str, actual: usize) -> Result<()> {
        let ranks = self.ranks.len();
        if actual == ranks { Ok(()) } else { Err(Error::WrongCount { what, actual, ranks }) }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("devices", &self.ranks.devices).field("nccl", &self.nccl()).finish()
    }
}
