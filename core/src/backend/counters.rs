//! What was asked of a driver.

/// What a backend asked of its driver since the device was opened. A steady state shows as zeros in the difference of
/// two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of the driver, of every kind.
    pub driver_calls: u64,
    /// Calls of [`Backend::submit`](crate::backend::Backend::submit).
    pub submissions: u64,
    /// Copies submitted.
    pub copies: u64,
    /// Bytes submitted from the host to the device.
    pub bytes_up: u64,
    /// Bytes submitted from the device to the host.
    pub bytes_down: u64,
    /// Bytes submitted from device to device.
    pub bytes_between: u64,
    /// Device memory held from the driver, idle memory of pools included, in bytes.
    pub device_bytes: u64,
    /// Staging blocks allocated.
    pub staging_allocations: u64,
    /// Staging memory held now, in bytes.
    pub staging_bytes: u64,
    /// Most staging memory ever held at once, in bytes.
    pub staging_high_water: u64,
    /// Events created.
    pub events_created: u64,
    /// Streams created.
    pub streams_created: u64,
}
