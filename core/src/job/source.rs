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

/// Whether copies go from one device to the other without the host. With granules of different sizes they would read or write
/// beyond the end of one side.
pub(crate) fn is_direct(source: &Device, target: &Device) -> bool {
    source.limits().copy_granularity == target.limits().copy_granularity
        && target.backend().reaches(&**source.backend())
}

/// Whether kernels of `source` may write to memory of the target, another device.
pub(crate) fn may_push(source: &Device, target: &Device) -> bool {
    !target.is_host()
        && !source.same_as(target)
        && source.limits().gather.is_some()
        && is_direct(source, target)
        && source.backend().reaches(&**target.backend())
}

/// The device that reads what lies on `source`.
pub(crate) fn reader<'a>(source: &'a Device, target: &'a Device) -> &'a Device {
    if !target.is_host() && is_direct(source, target) { target } else { source }
}
