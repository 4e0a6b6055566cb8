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
    /// Which runs of elements `strided` writes to where tensors have gaps.
    pub(crate) scattered: ScatteredRuns,
    pub(crate) workspaces: Workspaces,
}

/// Runs of elements that a kernel writes; all others are a copy each.
#[derive(Clone, Copy)]
pub(crate) struct ScatteredRuns {
    /// A tensor has so many at the least.
    pub(crate) fewest: usize,
    /// And each at most so many bytes.
    pub(crate) largest: usize,
}

impl ScatteredRuns {
    /// On a GPU a copy of a run takes 2 us of the host, and the kernel, with all that is around it, 50: 64 runs of 4 KiB take it 78 us, and copies
    /// 171; 16,384 runs of 16 bytes 68 us, and copies 33 ms; of 16 runs both are as good (H100, Vulkan, `benches/scattered_runs.rs`). Larger runs
    /// than 4 KiB were not tried.
    const OF_A_GPU: Self = Self { fewest: 64, largest: 4096 };
    /// What the kernel makes faster even on a processor, where copies cost least and threads most: on llvmpipe with two busy cores, 256 runs of 16
    /// bytes take it 0.26 ms, and copies 0.7; 64 of them, and 256 of 64 bytes, take both about as long.
    const OF_A_PROCESSOR: Self = Self { fewest: 256, largest: 16 };
    const ALL: Self = Self { fewest: 0, largest: usize::MAX };
}

impl Kernels {
    /// Those that `device` has means for; none where copies are as good.
    pub(crate) fn new(device: &Device) -> Self {
        let workspaces = Workspaces::new(device);
        let setting = Setting::of_environment();
        let is_used = workspaces.room().is_some() && setting.uses_kernels(device);
        let ranges = if is_used { GatherKernel::new(device) } else { None };
        let strided = if is_used { StridedKernel::new(device) } else { None };
        let scattered = match setting {
            Setting::Always => ScatteredRuns::ALL,
            Setting::Never | Setting::WherePays if pays(device) => ScatteredRuns::OF_A_GPU,
            Setting::Never | Setting::WherePays => ScatteredRuns::OF_A_PROCESSOR,
        };
        Self { ranges, strided, scattered, workspaces }
    }
}

/// On a processor the launch of a kernel takes longer than all copies.
fn pays(device: &Device) -> bool {
    let info = device.adapter_info();
    !matches!(info.device_type, DeviceType::Cpu) && info.backend != wgpu::Backend::Gl
}

/// What the variable `TRANSSHIP_WGPU_GATHER` says, which is there for tests and measurements: `always` or `never`.
#[derive(Clone, Copy)]
enum Setting {
    Always,
    Never,
    WherePays,
}

impl Setting {
    fn of_environment() -> Self {
        match std::env::var("TRANSSHIP_WGPU_GATHER").as_deref() {
            Ok("always") => Self::Always,
            Ok("never") => Self::Never,
            _ => Self::WherePays,
        }
    }

    fn uses_kernels(self, device: &Device) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::WherePays => pays(device),
        }
    }
}
