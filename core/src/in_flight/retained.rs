//! What a submission keeps alive.

use crate::backend::KernelTable;

/// Memory that a device may touch. A queue holds it until the device is done with it.
pub(crate) trait Retained: Send + Sync + 'static {
    /// What a kernel needs that makes all of the copies.
    fn table(&self) -> Option<KernelTable<'_>> {
        None
    }

    /// Called before it is leaked. Returns how many bytes that is; pools count their part of them as leaked.
    fn give_up(&self) -> usize;
}
