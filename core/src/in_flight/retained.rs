//! What a submission keeps alive.

use crate::backend::Staging;

/// Memory that a device may touch. A queue holds it until the device is done with it.
pub(crate) trait Retained: Send + Sync + 'static {
    /// A block for the table of a kernel that makes all of the copies.
    fn table(&self) -> Option<&dyn Staging> {
        None
    }

    /// Called before it is leaked. Returns how many bytes that is; pools count their part of them as leaked.
    fn give_up(&self) -> usize;
}
