//! How much memory a device has, and who has it.

/// The memory of a device, in bytes, at one moment. What a backend does not know is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// What nobody holds, whatever process; on the host, what the process may still use. Idle memory of [`reserved`](Self::reserved)
    /// is not free.
    pub free: Option<u64>,
    /// All there is; on the host, what the process may use.
    pub total: Option<u64>,
    /// What this device holds from the driver for tensors, those of others excluded. Idle memory that it keeps counts:
    /// [`Device::trim`](crate::Device::trim) gives that back.
    pub reserved: Option<u64>,
    /// What of it is in use. Memory that was let go of counts until the device has come to its end; buffers may be larger than their
    /// tensors.
    pub used: Option<u64>,
    /// The most that was ever reserved at once, since the device was opened or
    /// [`Device::reset_memory_peaks`](crate::Device::reset_memory_peaks).
    pub peak_reserved: Option<u64>,
    /// The most that was ever in use at once, since then.
    pub peak_used: Option<u64>,
    /// What tensors have of it, in the bytes that [`budget`](Self::budget) counts: for drivers that round up, less than
    /// [`used`](Self::used). Not for backends to fill in.
    pub tensors: Option<u64>,
    /// The most that tensors may have ([`Device::set_memory_budget`](crate::Device::set_memory_budget)); `None` without a limit. Not for
    /// backends to fill in.
    pub budget: Option<u64>,
}
