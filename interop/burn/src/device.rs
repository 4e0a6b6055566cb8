//! A wgpu device that burn and transship work on.

use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::client::Client;
use burn_dispatch::DispatchDevice;
use burn_tensor::wgpu::{WgpuOptions, WgpuSetup};

use crate::error::{Error, Result};
use crate::memory::CubeMemory;

/// A wgpu device that burn and transship work on: one device, one queue, and burn's memory.
///
/// Copies of transship to [`device`](Self::device) allocate by cubecl, so that [`to_burn`](Self::to_burn) makes tensors of burn out of
/// what has arrived, without a copy. All else of transship works as on any device: `prefetch`, casts, budgets, streams.
///
/// The one queue orders all: what burn submits behind a copy sees what that has written.
pub struct SharedDevice {
    pub(crate) burn: burn_tensor::Device,
    pub(crate) cube: CubeDevice,
    pub(crate) client: Client,
    pub(crate) transship: transship::Device,
}

impl SharedDevice {
    /// Starts burn's wgpu runtime with these options, and shares its device.
    ///
    /// Once for each selection of a device: burn's runtime of it must not have been started. Blocks until it has.
    ///
    /// ```no_run
    /// use burn_tensor::Device;
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open(Device::wgpu_options())?;
    /// let zeros = burn_tensor::Tensor::<2>::zeros([2, 3], gpu.burn());
    /// # let _ = zeros;
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Init`] if there is no adapter, or the runtime was started before; what transship says.
    pub fn open(options: WgpuOptions) -> Result<Self> {
        let (device, setup) = options.init_with_setup()?;
        // SAFETY: nobody but burn and transship has the handles, and neither destroys the device.
        unsafe { Self::from_setup(device, setup) }
    }

    /// Shares a device whose runtime has been started: `device` and `setup` are what `WgpuOptions::init_with_setup` has returned, or
    /// what went into and came out of `WgpuOptions::setup`.
    ///
    /// # Safety
    ///
    /// `setup` is that of `device`, and nobody destroys the wgpu device while copies are on their way, as
    /// [`from_device`](transship::wgpu::from_device) says.
    ///
    /// # Errors
    ///
    /// [`Error::NotWgpu`] if `device` is another one of burn's; what transship says.
    pub unsafe fn from_setup(device: burn_tensor::Device, setup: WgpuSetup) -> Result<Self> {
        let cube = cube_device(&device)?;
        let client = cube.client();
        let memory = Box::new(CubeMemory::new(client.clone()));
        // SAFETY: the caller's promise.
        let transship = unsafe { transship::wgpu::from_device_with(setup.device, setup.queue, memory) }?;
        Ok(Self { burn: device, cube, client, transship })
    }

    /// The device as burn names it, for models and tensors.
    pub fn burn(&self) -> &burn_tensor::Device {
        &self.burn
    }

    /// The device as transship names it, for `start_copy` and `prefetch`.
    pub fn device(&self) -> &transship::Device {
        &self.transship
    }
}

/// The device below burn's, if it is one of wgpu's.
pub(crate) fn cube_device(device: &burn_tensor::Device) -> Result<CubeDevice> {
    let refused = || Error::NotWgpu { device: format!("{device:?}") };
    #[allow(unreachable_patterns, reason = "burn has other devices with other features")]
    match device.as_dispatch() {
        DispatchDevice::Cube(cube @ CubeDevice::Wgpu(_)) => Ok(cube.clone()),
        _ => Err(refused()),
    }
}
