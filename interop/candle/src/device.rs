//! The target of a copy, and what orders the copy with candle's work.

use candle_core::{Device, Tensor};
use transship::Stream;

use crate::error::{Error, Result};

/// What a copy goes to.
pub(crate) struct Target {
    /// As candle knows it.
    pub(crate) candle: Device,
    /// As transship does.
    pub(crate) device: transship::Device,
    /// The stream that candle works on there, if it is the same one on each thread.
    pub(crate) stream: Option<Stream>,
}

/// How a copy comes behind the work that fills its sources.
pub(crate) struct Order {
    /// The stream to copy on; one of transship's if there is none.
    pub(crate) stream: Option<Stream>,
    /// Whether this thread waits for the copy: candle's writes would not come behind it, or the sources may only be let go of here.
    pub(crate) waits_here: bool,
}

/// Closes the CUDA devices that copies have opened, with transship's pools of memory there, as far as nothing uses them.
///
/// They stay open otherwise, so that the next copy finds page-locked memory, which takes milliseconds to lock.
pub fn close_devices() {
    #[cfg(feature = "cuda")]
    crate::cuda::close();
}

/// What is said where a copy has failed: that the device is lost, if it is. It is let go of then.
pub(crate) fn failed(error: Error) -> Error {
    #[cfg(feature = "cuda")]
    if error.may_be_a_drivers()
        && let Some(device) = crate::cuda::close_lost()
    {
        return Error::DeviceLost { device, error: Box::new(error) };
    }
    error
}

impl Target {
    pub(crate) fn new(candle: &Device) -> Result<Self> {
        let device = open(candle)?;
        let stream = match candle {
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => crate::cuda::own_stream(cuda, &device)?,
            _ => None,
        };
        Ok(Self { candle: candle.clone(), device, stream })
    }

    /// Puts the copy of `sources` behind what fills them.
    pub(crate) fn behind(&self, sources: &[Tensor]) -> Result<Order> {
        #[cfg(feature = "cuda")]
        return crate::cuda::behind(sources, self);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = sources;
            Ok(Order { stream: self.stream.clone(), waits_here: false })
        }
    }
}

/// The device of transship's that is candle's.
pub(crate) fn open(candle: &Device) -> Result<transship::Device> {
    match candle {
        Device::Cpu => Ok(transship::Device::host()),
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => crate::cuda::open(cuda),
        other => {
            let device = format!("{:?}", other.location());
            Err(Error::UnsupportedDevice { path: String::new(), device })
        }
    }
}
