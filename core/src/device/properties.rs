//! What devices are, opened or not.

use crate::backend::DeviceProperties;
use crate::device::device::Device;
use crate::device::drivers::find_device;
use crate::device_id::DeviceId;
use crate::error::Result;
use crate::runtime::fork;

impl Device {
    /// What the device is: name, UUID, place on the bus, and what else its driver says.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) from a backend that cannot tell, and what the driver says.
    pub fn properties(&self) -> Result<DeviceProperties> {
        fork::check()?;
        self.backend().properties()
    }

    /// As [`properties`](Self::properties), of a device that need not be open: nothing is initialised. Drivers are asked on this thread,
    /// and the first question loads them.
    ///
    /// ```
    /// use transship_core::Device;
    ///
    /// for id in Device::list() {
    ///     println!("{id}: {}", Device::properties_of(id)?.name);
    /// }
    /// # Ok::<(), transship_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDriver`](crate::Error::UnknownDriver), [`Error::DriverUnavailable`](crate::Error::DriverUnavailable),
    /// [`Error::NoSuchDevice`](crate::Error::NoSuchDevice), [`Error::Unsupported`](crate::Error::Unsupported) from a driver that cannot
    /// tell, and what the driver says.
    pub fn properties_of(id: DeviceId) -> Result<DeviceProperties> {
        fork::check()?;
        find_device(id)?.properties(id.ordinal())
    }

    /// The NUMA node of the host where the device has its pinned memory, that of staging and that of results: the one that it is
    /// plugged in at ([`host_node`](DeviceProperties::host_node)). `None` if that is left to the system: where there is one node only,
    /// where nobody knows that of the device, where the variable `TRANSSHIP_DISABLE_NUMA` is neither empty nor 0, and on systems
    /// other than Linux. It is what the system is asked for, and known since the device was opened: memory comes from elsewhere where that
    /// node has none left, the process may not ask, or has a memory policy of its own.
    pub fn staging_node(&self) -> Option<u32> {
        self.node().and_then(|node| u32::try_from(node.number()).ok())
    }

    /// Whether copies to `id` from `other` go straight from memory to memory, and not over the host: within a device, and between two of
    /// one driver whose hardware has a way. Neither need be open: nothing is initialised, and no memory is opened to the other device,
    /// which is left to the first copy. If that fails then, the copy goes over the host.
    ///
    /// # Errors
    ///
    /// As [`properties_of`](Self::properties_of).
    pub fn reaches(id: DeviceId, other: DeviceId) -> Result<bool> {
        fork::check()?;
        let driver = find_device(id)?;
        find_device(other)?;
        match id.driver() == other.driver() {
            true if id == other => Ok(true),
            true => driver.reaches(id.ordinal(), other.ordinal()),
            false => Ok(false),
        }
    }
}
