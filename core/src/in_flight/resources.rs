//! What a submission keeps alive.

use crate::backend::Staging;

/// Memory that a device may touch, and a queue holds until it is done with it.
pub(crate) trait Retained: Send + Sync + 'static {
    /// Room for the table of a kernel that makes all of the copies.
    fn table(&self) -> Option<&dyn Staging> {
        None
    }

    /// How many bytes are leaked when it is forgotten; pools count on them no more.
    fn give_up(&self) -> usize;
}
