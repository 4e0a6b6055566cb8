//! Starting a copy, carrying it out, and handing the structure out again.

mod completion;
mod crew;
mod fan_out;
mod figures;
mod flow;
mod group;
mod handle;
mod held;
mod into;
mod job;
mod landing;
mod leaves;
mod muster;
mod pairing;
mod retired;
mod run;
mod runs;
mod start;
mod survey;
mod transfer;
mod unit;

pub use fan_out::start_copy_to_all;
pub use figures::CopyReport;
pub use handle::{Cancelled, CopyHandle, InFlight, PendingCopy, TimedWait};
pub use into::start_copy_into;
pub use start::start_copy;

pub(crate) use completion::Completion;
pub(crate) use flow::staging_block_up;
pub(crate) use landing::Landings;
pub(crate) use leaves::{Leaf, Leaves};
pub(crate) use runs::FEWEST_GATHERED;
