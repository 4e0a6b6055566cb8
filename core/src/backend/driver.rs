//! Drivers: what finds and opens the devices of one kind.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;

/// A kind of device, found at run time: the plug for a backend.
///
/// Compiled-in backends announce themselves with [`inventory::submit!`](inventory) of a [`BuiltinDriver`]; a
/// program adds one of its own with [`register_driver`](crate::register_driver).
pub trait Driver: Send + Sync + 'static {
    /// The word before the colon of the names of its devices: `cuda` in `cuda:0`.
    fn name(&self) -> &'static str;

    /// Where [`Device::best`](crate::Device::best) looks first: higher comes first; the host is 0, and the first of those.
    fn preference(&self) -> u32;

    /// Whether the driver can be used, without initialising a device.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`](crate::Error::DriverUnavailable) says what is missing.
    fn is_available(&self) -> Result<()>;

    /// How many devices there are, without initialising one of them; 0 if the driver is not available.
    fn device_count(&self) -> usize;

    /// Initialises one device. May take as long as the driver needs: [`Device::open`](crate::Device::open) calls it on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`](crate::Error::DriverUnavailable), [`Error::NoSuchDevice`](crate::Error::NoSuchDevice), or what the driver says.
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>>;
}

/// A driver that a backend crate brings along; collected when the program is linked.
pub struct BuiltinDriver(
    /// Makes the driver; called once, on the first question about devices. If it asks such a question itself, or its
    /// [`name`](Driver::name) does, the answer knows the drivers before it.
    pub fn() -> Arc<dyn Driver>,
);

inventory::collect!(BuiltinDriver);
