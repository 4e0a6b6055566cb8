//! Memory of a device: pinned blocks, budgets, buffers.

use std::sync::Arc;

use crate::backend::{DeviceMemory, Direction};
use crate::device::block_size;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::runtime::fork;
use crate::staging::block_accounts::PoolUsage;
use crate::staging::pool::StagingPool;
use crate::timeline::recorder::Recorder;

impl Device {
    /// Allocates staging memory for copies of `bytes` bytes and warms the device's own memory up, so that the first such
    /// copy is as fast as the later ones. May block for milliseconds. Nothing is page-locked for what the device has no room
    /// for.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] and [`Error::OutOfMemory`], pinned or on the device; [`Error::OverBudget`].
    pub fn prepare(&self, bytes: usize) -> Result<()> {
        fork::check()?;
        let queue = self.up()?;
        drop(self.allocate(bytes, &queue)?);
        if !self.is_host() {
            let (staging, results) = (self.staging(), self.results());
            let block = block_size::staging_block_up(bytes, self);
            staging.prepare(bytes, block, Direction::Upload)?;
            // Where staging is mapped, results come down through it into memory of their own.
            match self.limits().mapped_staging {
                true => {
                    let block = block_size::mapped_block_down(self);
                    staging.prepare(bytes, block, Direction::Download)?;
                }
                false => results.prepare(bytes, usize::MAX, Direction::Upload)?,
            }
        }
        Ok(())
    }

    /// How much memory the device has, and how much of it this device holds and uses, at this moment. Waits for no device, but asks the
    /// driver, which may wait for other threads that allocate.
    ///
    /// ```
    /// let memory = transship_core::Device::best()?.memory()?;
    /// if let (Some(free), Some(total)) = (memory.free, memory.total) {
    ///     println!("{} of {} MiB are free", free >> 20, total >> 20);
    /// }
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] from a backend that cannot tell, and what the driver says.
    pub fn memory(&self) -> Result<DeviceMemory> {
        fork::check()?;
        let memory = self.backend().memory()?;
        if self.is_host() {
            return Ok(memory);
        }
        let (budget, tensors) = (self.budget().limit(), self.budget().used());
        Ok(DeviceMemory { tensors: Some(tensors as u64), budget: budget.map(|bytes| bytes as u64), ..memory })
    }

    /// The peaks of [`memory`](Self::memory) are from now on those since this call: what is reserved and used now is where they begin.
    /// They are the device's, whoever copies to it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] from a backend that counts no peaks, as the host, and what the driver says.
    pub fn reset_memory_peaks(&self) -> Result<()> {
        fork::check()?;
        self.backend().reset_memory_peaks()
    }

    /// Frees idle staging memory, and gives idle device memory back to the driver; returns how many bytes. May block for
    /// milliseconds.
    pub fn trim(&self) -> usize {
        if fork::is_child() {
            return 0;
        }
        self.staging().trim() + self.results().trim() + self.backend().trim()
    }

    /// The most memory of the device that tensors may have, in bytes (default: `usize::MAX`, no limit): results of copies,
    /// [`Tensor::zeros`](crate::Tensor::zeros) and [`Tensor::empty`](crate::Tensor::empty), and what a [`Filler`](crate::fill::Filler) fills.
    /// Counted in the bytes of their buffers, for every thread and stream that copies to this instance of the device.
    ///
    /// - What would exceed it is [`Error::OverBudget`], before the driver is asked. A copy gives its structure back.
    /// - Memory that was dropped while streams use it counts until they have come by, and so does what a copy in flight uses. Leaked
    ///   memory counts for ever.
    /// - A copy that does not fit waits, on no thread, for what is in flight on the device when it is started, and for no tensor that the
    ///   program holds, unless it has a [deadline](crate::CopyOptions::deadline): until then it waits for any memory that is freed. Copies
    ///   are served in the order in which they were started, whatever they need; what never waits, such as
    ///   [`Tensor::zeros`](crate::Tensor::zeros), takes what room there is, and so does a copy without a deadline where nothing but the
    ///   program could make room for those before it. While the device stands still a copy waits on, within its deadline.
    /// - Memory of others that was wrapped does not count, nor do pinned staging and results, which have budgets of their own.
    /// - What the driver holds in reserve does not count: [`memory`](Self::memory) has it as `reserved`, [`trim`](Self::trim) gives it back.
    /// - Nothing is freed if more is in use already: then nothing is allocated until less is.
    ///
    /// ```
    /// use transship_core::{CopyOptions, Device, ErrorKind, Tensor, start_copy};
    ///
    /// let device = Device::best()?;
    /// if !device.is_host() {
    ///     device.set_memory_budget(1 << 20)?;
    ///     let refused = start_copy(Tensor::from(vec![7_u8; 2 << 20]), &device, CopyOptions::default()).and_then(|copy| copy.wait());
    ///     assert_eq!(refused.unwrap_err().error().kind(), ErrorKind::OutOfMemory);
    /// }
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for the host, whose tensors have ordinary memory of the process.
    pub fn set_memory_budget(&self, bytes: usize) -> Result<()> {
        fork::check()?;
        if self.is_host() {
            let what =
                "bound the memory of tensors, which is ordinary memory of the process; limit the process";
            return Err(Error::Unsupported { device: self.id(), what });
        }
        self.budget().set(bytes);
        Ok(())
    }

    /// The most pinned memory that staging may hold, in bytes (default: 64 MiB; 128 MiB where
    /// staging is mapped, as with wgpu).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] below 64 KiB, the smallest block.
    pub fn set_staging_budget(&self, bytes: usize) -> Result<()> {
        set_budget(self.staging(), "staging_budget", bytes)
    }

    /// The most pinned memory that results on the host may hold, in bytes (default: a 32nd of the memory that the process may use when
    /// the device is opened, that of the machine or of its container; 256 MiB where that is not known). Results above it are ordinary
    /// memory, and the report says so. What dropped results have held is kept for the next ones until [`trim`](Self::trim).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] below 64 KiB, the smallest block.
    pub fn set_result_budget(&self, bytes: usize) -> Result<()> {
        set_budget(self.results(), "result_budget", bytes)
    }

    /// What staging holds.
    pub fn staging_usage(&self) -> PoolUsage {
        statistics(self.staging())
    }

    /// What pinned results on the host hold.
    pub fn result_usage(&self) -> PoolUsage {
        statistics(self.results())
    }

    /// Writes down what is in use now.
    pub(crate) fn note_memory(&self, recorder: &Recorder) {
        if self.is_host() {
            return;
        }
        recorder.sample(self.id(), "pinned staging in use", self.staging_usage().in_use as u64);
        recorder.sample(self.id(), "pinned results in use", self.result_usage().in_use as u64);
        if let Ok(DeviceMemory { used: Some(used), .. }) = self.memory() {
            recorder.sample(self.id(), "device memory in use", used);
        }
    }
}

fn statistics(pool: &StagingPool) -> PoolUsage {
    if fork::is_child() { PoolUsage::default() } else { pool.statistics() }
}

fn set_budget(pool: &Arc<StagingPool>, name: &'static str, bytes: usize) -> Result<()> {
    if bytes < crate::staging::size_class::SMALLEST_BLOCK {
        let reason = "it must be at least 65536, the smallest block";
        return Err(Error::InvalidOption { name, value: bytes.to_string(), reason });
    }
    fork::check()?;
    pool.set_budget(bytes);
    Ok(())
}
