#![doc = include_str!("../README.md")]

mod blocks;
mod copies;
mod error;
mod gather_in_place;
mod group;
mod leaves;
mod nccl;
mod on_host;
mod reduce_op;

pub use error::{Error, Failed, Result};
pub use group::Group;
pub use nccl::communicator::{Aborter, Communicator};
pub use nccl::library::Nccl;
pub use nccl::pending::Pending;
pub use nccl::unique_id::UniqueId;
pub use reduce_op::ReduceOp;
