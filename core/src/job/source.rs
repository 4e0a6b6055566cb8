//! Where the tensors of a copy lie.

use crate::alignment::Alignment;
use crate::device::device::Device;

/// Where leaves lie.
#[derive(Clone)]
pub(crate) enum Source {
    /// In host memory that is staged.
    Host,
    /// In pinned host memory that devices read as it is.
    PinnedHost,
    /// On a device.
    Device(Device),
}

impl Source {
    /// What the offsets and sizes of copies out of it are multiples of.
    pub(crate) fn granularity(&self) -> Alignment {
        self.device().map_or(Alignment::ONE, |device| device.limits().copy_granularity)
    }

    pub(crate) fn device(&self) -> Option<&Device> {
        match self {
            Self::Device(device) => Some(device),
            _ => None,
        }
    }
}
