//! burn's runtimes whose memory is shared.

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::tensor::CubeTensor;
use transship::{CopyOptions, DType, Tensor};

#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::Result;
use crate::part::Part;

pub(crate) enum Runtime {
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl Runtime {
    /// Copies with these allocate by cubecl.
    pub(crate) fn copy_options(&self) -> CopyOptions {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.copy_options(),
            // The device itself does.
            #[cfg(feature = "wgpu")]
            Self::Wgpu => CopyOptions::default(),
        }
    }

    /// Where a tensor of the device lies, if that is memory of cubecl's. It has elements. All that burn does with the part comes
    /// behind the copy that fills the tensor.
    pub(crate) fn part_of(&self, tensor: &Tensor) -> Result<Option<Part>> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.part_of(tensor),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => crate::wgpu::part_of(tensor),
        }
    }

    /// So many elements from where `cube` begins on, behind the work on them.
    pub(crate) fn lend(
        &self,
        cube: CubeTensor,
        elements: usize,
        dtype: DType,
        on: (&transship::Device, &Client),
    ) -> Result<Tensor> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => cuda.lend(cube, elements, dtype, on.0),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => crate::wgpu::lend(cube, elements, dtype, on),
        }
    }
}
