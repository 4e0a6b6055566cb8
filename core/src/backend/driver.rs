//! Drivers: what finds and opens the devices of one kind.

use std::sync::Arc;

use crate::backend::{Backend, DeviceProperties};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};

/// A kind of device, found at run time: the plug for a backend.
///
/// Compiled-in backends announce themselves with [`inventory::submit!`](inventory) of a [`BuiltinDriver`]; a
/// program adds one of its own with [`register_driver`](crate::register_driver).
pub trait Driver: Send + Sync + 'static {
    /// The word before the colon of the names of its devices: `cuda` in `cuda:0`.
    fn name(&self) -> &'static str;

    /// Where [`Device::best`](crate::Device::best) looks first: higher comes first. The host is 0 and comes before others of 0, so that a
    /// device of such a driver is never the best.
    fn preference(&self) -> u32;

    /// Whether the driver can be used, without initialising a device.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`] says what is missing.
    fn is_available(&self) -> Result<()>;

    /// How many devices there are, without initialising one of them; 0 if the driver is not available.
    fn device_count(&self) -> usize;

    /// What a device is, without initialising it. Called with an ordinal that [`device_count`](Driver::device_count) counts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], which is what a driver says that does not implement this, and what the driver says. One property that
    /// is not known is no error.
    fn properties(&self, ordinal: usize) -> Result<DeviceProperties> {
        let device = DeviceId::new(self.name(), ordinal)?;
        Err(Error::Unsupported { device, what: "tell its properties before it is opened" })
    }

    /// Whether the device could run [`CopyOp::Between`](crate::backend::CopyOp::Between) from memory of another one of this driver,
    /// without initialising either of them, and without opening anything to the other. Called with two different ordinals.
    ///
    /// # Errors
    ///
    /// As [`properties`](Driver::properties).
    fn reaches(&self, ordinal: usize, other: usize) -> Result<bool> {
        let _ = other;
        let device = DeviceId::new(self.name(), ordinal)?;
        Err(Error::Unsupported { device, what: "tell which devices it reaches before it is opened" })
    }

    /// Initialises one device. May take as long as the driver needs: [`Device::open`](crate::Device::open) calls it on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::DriverUnavailable`], [`Error::NoSuchDevice`], or what the driver says.
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>>;
}

/// A driver that a backend crate brings along; collected when the program is linked.
pub struct BuiltinDriver(
    /// Makes the driver; called once, on the first question about devices. If it asks such a question itself, or its
    /// [`name`](Driver::name) does, the answer knows the drivers before it.
    pub fn() -> Arc<dyn Driver>,
);

inventory::collect!(BuiltinDriver);
