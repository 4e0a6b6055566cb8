//! What no way of sending weights to one process can be faster than: all bytes as one tensor, from device to device within the trainer.

use std::time::{Duration, Instant};

use transship::{CopyOptions, DType, Tensor, start_copy_into};

use crate::Result;
use crate::options::Options;

/// From the trainer's device to that of the first inference process.
pub(crate) struct OneCopy {
    from: Tensor,
    /// It is away if the copy has failed.
    into: Option<Tensor>,
}

impl OneCopy {
    pub(crate) fn new(options: &Options, bytes: usize) -> Result<Self> {
        let zeros = |device| Tensor::zeros(&[bytes], DType::U8, device);
        let (from, into) = (options.device_of_trainer()?, options.device_of_inference(0)?);
        let (from, into) = (zeros(&from)?, zeros(&into)?);
        let mut copy = Self { from, into: Some(into) };
        // The first one waits for the zeros as well.
        copy.time()?;
        Ok(copy)
    }

    /// From the call until all bytes are there.
    pub(crate) fn time(&mut self) -> Result<Duration> {
        let into = self.into.take().ok_or("the copy before has failed")?;
        let begun = Instant::now();
        let into = start_copy_into(self.from.clone(), into, CopyOptions::default())?.wait()?;
        let time = begun.elapsed();
        self.into = Some(into);
        Ok(time)
    }
}
