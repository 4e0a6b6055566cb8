//! burn's runtimes whose memory is shared.

use transship::{CopyOptions, Tensor};

#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::Result;
use crate::loan::{Loan, Refused};
use crate::part::Part;
#[cfg(feature = "wgpu")]
use crate::wgpu::Wgpu;

pub(crate) enum Runtime {
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
    #[cfg(feature = "wgpu")]
    Wgpu(Wgpu),
}

impl Runtime {
    /// Copies with these allocate by cubecl.
    pub(crate) fn copy_options(&self) -> CopyOptions {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.copy_options(),
            // The device itself does.
            #[cfg(feature = "wgpu")]
            Self::Wgpu(_) => CopyOptions::default(),
        }
    }

    /// Where a tensor of the device lies, if that is memory of cubecl's. It has elements. All that burn does with the part comes
    /// behind the copy that fills the tensor.
    pub(crate) fn part_of(&self, tensor: &Tensor) -> Result<Option<Part>> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.part_of(tensor),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(wgpu) => wgpu.part_of(tensor),
        }
    }

    /// Tensors over these, in their order, behind the work on them. There is one at least.
    pub(crate) fn lend(&self, loans: Vec<Loan>, device: &transship::Device) -> Result<Vec<Tensor>, Refused> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.lend(loans, device),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(wgpu) => wgpu.lend(loans, device),
        }
    }
}
