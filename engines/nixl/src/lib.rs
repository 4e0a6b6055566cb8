#![doc = include_str!("../README.md")]

mod agent;
mod arena;
mod copies;
mod deadline;
mod early;
mod error;
mod held;
mod inbox;
mod last_packings;
mod link;
mod mail;
mod memory;
mod metadata;
mod nixl;
mod offer;
mod options;
mod pack;
mod pieces;
mod receive;
mod received;
mod requests;
mod send;
mod transfer;
mod tree;
mod unpack;
mod wire;
mod writes;

pub use agent::{Agent, Peer};
pub use error::{Error, Failed, Result};
pub use link::Usage;
pub use nixl::library::Nixl;
pub use options::AgentOptions;
pub use received::Received;
pub use transfer::Transfer;
pub use tree::TransferInto;
