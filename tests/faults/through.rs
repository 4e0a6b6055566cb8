//! The backends that the sweep goes through, all of which end up in the stand-in for libcuda.

use std::ffi::c_int;
use std::sync::Arc;

use libloading::Library;
use transship::backend::{BuiltinDriver, Driver};
use transship::{Device, Error};

use crate::stand_in::StandIn;

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Through {
    Cuda,
    /// Over a library that passes the calls of HIP on to libcuda.
    Hip,
}

/// What a thread has current: devices or contexts, and a capture mode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Current {
    place: i64,
    capture_mode: u64,
}

impl Through {
    /// Those that are compiled in.
    pub(crate) fn all() -> Vec<Self> {
        [Self::Cuda, Self::Hip].into_iter().filter(|through| through.driver().is_some()).collect()
    }

    /// The word before the colon of its devices.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
        }
    }

    /// Why it cannot be used here, if it cannot.
    pub(crate) fn unavailable(self) -> Option<String> {
        let answer = self.driver().map(|driver| driver.is_available());
        answer.and_then(Result::err).map(|error| error.to_string())
    }

    /// Opens a device anew: what others may still hold of it is of no account.
    pub(crate) fn open(self, ordinal: usize) -> Result<Device, Error> {
        Device::from_backend(self.driver().unwrap().open(ordinal)?)
    }

    /// Which calls shall fail, as the stand-in wants them: HIP's library makes a context current in front of most calls, and
    /// without it the call does not come about, which is as if that had failed.
    pub(crate) fn calls(self) -> &'static str {
        match self {
            Self::Cuda => "any",
            Self::Hip => "any-cuCtxSetCurrent",
        }
    }

    /// One call in so many meets a fault of each kind. What HIP's backend shares with CUDA's has been through all of them by then.
    pub(crate) fn one_in(self) -> usize {
        match self {
            Self::Cuda => 1,
            Self::Hip => 3,
        }
    }

    /// Whether the context of a device ends when the device is closed. HIP has no contexts to close.
    pub(crate) fn closes_contexts(self) -> bool {
        self == Self::Cuda
    }

    /// What is current for the calling thread.
    pub(crate) fn current(self, stand_in: &StandIn) -> Current {
        let place = match self {
            Self::Cuda => stand_in.ask("stack") as i64,
            Self::Hip => i64::from(hip_device()),
        };
        Current { place, capture_mode: stand_in.ask("capture-mode") }
    }

    fn driver(self) -> Option<Arc<dyn Driver>> {
        let drivers = inventory::iter::<BuiltinDriver>.into_iter().map(|make| (make.0)());
        drivers.into_iter().find(|driver| driver.name() == self.name())
    }
}

fn hip_device() -> c_int {
    let mut device = -1;
    // SAFETY: the initialisers of the library have no preconditions; the function has this prototype in every version, and
    // writes to a local.
    let code = unsafe {
        let library = Library::new("libamdhip64.so").unwrap();
        library.get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"hipGetDevice").unwrap()(&mut device)
    };
    assert_eq!(code, 0, "hipGetDevice");
    device
}
