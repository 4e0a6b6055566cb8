//! What can go wrong, in words that say what to do next.

use std::fmt;
use std::time::Duration;

use transship::DType;

use crate::reduce_op::ReduceOp;

/// `Result` with the [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Copies: what transship says.
    #[error(transparent)]
    Transship(#[from] transship::Error),
    /// Ranks have other tensors. Nothing was moved.
    #[error("rank {rank} does not have the tensors of rank 0: {error}")]
    RanksDiffer {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The first tensor in which it does: `own` is that of the rank.
        #[source]
        error: transship::Error,
    },
    /// Ranks have called other operations, or the same with other arguments. Nothing was moved.
    #[error("rank {rank} has called {actual}, and rank 0 {expected}; let all ranks call the same")]
    CallsDiffer {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// What it has called.
        actual: String,
        /// What rank 0 has called.
        expected: String,
    },
    /// Elements of this type cannot be combined. Nothing was moved.
    #[error("{}: {op:?} of {dtype} is not there{}; copy it to another type first, or leave it out", place(path), by(*by_nccl))]
    NotReducible {
        /// Where the tensor is, as in `.layers["attn.q"][3]`; empty where it is all of the tree.
        path: String,
        /// Its type.
        dtype: DType,
        /// What was asked for.
        op: ReduceOp,
        /// Whether it is NCCL that cannot do it: a group of copies can.
        by_nccl: bool,
    },
    /// A tensor cannot be cut like that. Nothing was moved.
    #[error(
        "{}: dimension {dim} of shape {shape:?} cannot be cut into {sizes:?}; let the sizes add up to it",
        place(path)
    )]
    NotScattered {
        /// Where the tensor is; empty where it is all of the tree.
        path: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The dimension asked for.
        dim: usize,
        /// The sizes asked for, one for each rank.
        sizes: Vec<usize>,
    },
    /// The tensors of the ranks cannot be put together. Nothing was moved.
    #[error(
        "{}: {dtype} {shape:?} of rank {rank} cannot be put behind {first_dtype} {first_shape:?} of rank 0 along dimension {dim}; \
         {} must be the same",
        place(path), if dtype == first_dtype { "all but that dimension" } else { "types" }
    )]
    NotGathered {
        /// Where the tensor is; empty where it is all of the tree.
        path: String,
        /// The rank whose tensor does not suit.
        rank: usize,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// The type of that of rank 0.
        first_dtype: DType,
        /// The shape of that of rank 0.
        first_shape: Vec<usize>,
        /// The dimension asked for.
        dim: usize,
    },
    /// A tensor does not have the dimension that tensors are to be cut or put together along. Nothing was moved.
    #[error(
        "{}: shape {shape:?}{} has no dimension {dim}; dimensions are counted from 0",
        place(path), of_rank(*rank)
    )]
    NoSuchDimension {
        /// Where the tensor is; empty where it is all of the tree.
        path: String,
        /// The rank whose tensor it is; `None` where it is to be scattered.
        rank: Option<usize>,
        /// Its shape.
        shape: Vec<usize>,
        /// The dimension asked for.
        dim: usize,
    },
    /// There must be one for each rank.
    #[error("{ranks} ranks need as many {what}, and not {actual}; give one for each rank")]
    WrongCount {
        /// What was given: `trees`, `sizes`.
        what: &'static str,
        /// How many.
        actual: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// There is no such rank, or there are no ranks.
    #[error("there is no rank {rank} of {ranks}; ranks are counted from 0")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The library cannot be loaded.
    #[error("NCCL cannot be loaded: {}; install it, or put its folder on the loader's path", tried.join("; "))]
    NotLoaded {
        /// Each name that was tried, with what the loader said.
        tried: Vec<String>,
    },
    /// The devices are none that the library works between.
    #[error("NCCL does not work between {devices}: {reason}")]
    UnsuitedDevices {
        /// Their names.
        devices: String,
        /// What is in the way.
        reason: &'static str,
    },
    /// A call of the library failed.
    #[error("{call} of NCCL failed with {code} ({words}); NCCL_DEBUG=WARN prints more")]
    Nccl {
        /// The function.
        call: &'static str,
        /// The number that it returned.
        code: i32,
        /// What the library says to that number.
        words: String,
    },
    /// Ranks did not come within the time given. The communicator was aborted.
    #[error(
        "{what} was not done within {limit:?}: a rank is late, or dead; the communicator is aborted: join another one"
    )]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The time.
        limit: Duration,
    },
    /// The communicator was aborted earlier.
    #[error(
        "the communicator was aborted, by an error or a deadline before; join another one, or make another group"
    )]
    Aborted,
}

/// A collective that failed, with what it was given.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Failed<V> {
    /// Why.
    #[source]
    pub error: Box<Error>,
    /// What was given, as it was.
    pub value: V,
}

impl<V> Failed<V> {
    pub(crate) fn new(error: impl Into<Error>, value: V) -> Self {
        Self { error: Box::new(error.into()), value }
    }
}

impl<V> fmt::Debug for Failed<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V> From<Failed<V>> for Error {
    fn from(failed: Failed<V>) -> Self {
        *failed.error
    }
}

fn of_rank(rank: Option<usize>) -> String {
    rank.map_or(String::new(), |rank| format!(" of rank {rank}"))
}

fn place(path: &str) -> &str {
    if path.is_empty() { "the tensor" } else { path }
}

fn by(by_nccl: bool) -> &'static str {
    if by_nccl { " in NCCL" } else { "" }
}
