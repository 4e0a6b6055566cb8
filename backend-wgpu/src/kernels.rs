//! The kernels of a device, and when they are used.

use wgpu::{Device, DeviceType};

use crate::gather_kernel::GatherKernel;
use crate::strided_kernel::StridedKernel;
use crate::workspace::Workspaces;

/// The kernels of one device, made when it is opened: a driver compiles for milliseconds.
pub(crate) struct Kernels {
    /// Makes many small downloads at once.
    pub(crate) ranges: Option<GatherKernel>,
    /// Leaves gaps out, and casts.
    pub(crate) strided: Option<StridedKernel>,
    pub(crate) workspaces: Workspaces,
}

impl Kernels {
    /// Those that `device` has means for; none where copies are as good.
    pub(crate) fn new(device: &Device) -> Self {
        let workspaces = Workspaces::new(device);
        let is_used = workspaces.room().is_some() && setting(pays(device));
        let ranges = if is_used { GatherKernel::new(device) } else { None };
        let strided = if is_used { StridedKernel::new(device) } else { None };
        Self { ranges, strided, workspaces }
    }
}

/// On a processor the launch of a kernel takes longer than all copies.
fn pays(device: &Device) -> bool {
    let info = device.adapter_info();
    !matches!(info.device_type, DeviceType::Cpu) && info.backend != wgpu::Backend::Gl
}

/// What the variable `TRANSSHIP_WGPU_GATHER` says, which is there for tests and measurements: `always`, `never`, or else `pays`.
fn setting(pays: bool) -> bool {
    match std::env::var("TRANSSHIP_WGPU_GATHER").as_deref() {
        Ok("always") => true,
        Ok("never") => false,
        _ => pays,
    }
}
