//! Where registered memory lies, and what NIXL wants of threads that call it for memory of a device.

use std::ffi::c_int;

use transship::Device;
#[cfg(feature = "cuda")]
use transship::backend::stream_ordered::Current as OrderedCurrent;
#[cfg(feature = "cuda")]
use transship::cuda::{Cuda, CudaBackend};

use crate::nixl::functions::{DRAM, VRAM};

/// Where registered memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Host,
    /// On the GPU of this number in the process that has registered it.
    Gpu(u32),
}

impl Place {
    /// What the library calls it.
    pub(crate) fn kind(self) -> c_int {
        match self {
            Self::Host => DRAM,
            Self::Gpu(_) => VRAM,
        }
    }

    /// Which one of its kind.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Host => 0,
            Self::Gpu(number) => number.into(),
        }
    }
}

/// The device of an agent. UCX finds out by the context that is current on a thread which memory it reaches, and how.
pub(crate) struct Home(Device);

/// The device of the agent is current on this thread. Nothing, where that is the host.
pub(crate) struct Current<'a> {
    #[cfg(feature = "cuda")]
    _guard: Option<OrderedCurrent<'a, Cuda>>,
    #[cfg(not(feature = "cuda"))]
    _guard: std::marker::PhantomData<&'a ()>,
}

impl Home {
    pub(crate) fn new(device: &Device) -> Self {
        Self(device.clone())
    }

    /// Makes it current. Where that fails the library finds none, and says so.
    #[cfg(feature = "cuda")]
    pub(crate) fn enter(&self) -> Current<'_> {
        let backend = CudaBackend::of(&**self.0.backend());
        Current { _guard: backend.and_then(|backend| backend.context().enter().ok()) }
    }

    #[cfg(not(feature = "cuda"))]
    pub(crate) fn enter(&self) -> Current<'_> {
        let _ = &self.0;
        Current { _guard: std::marker::PhantomData }
    }
}
