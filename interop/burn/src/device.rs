//! A device that burn and transship work on.

use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::client::Client;
use burn_dispatch::DispatchDevice;
#[cfg(feature = "wgpu")]
use burn_tensor::wgpu::{WgpuOptions, WgpuSetup};
use transship::CopyOptions;

#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::Result;
use crate::runtime::Runtime;
#[cfg(feature = "wgpu")]
use crate::wgpu::Wgpu;

/// A device that burn and transship work on, and burn's memory.
///
/// Copies of transship to [`device`](Self::device) with [`copy_options`](Self::copy_options) allocate by cubecl, so that
/// [`to_burn`](Self::to_burn) makes tensors of burn out of what has arrived, without a copy. All else of transship works as on any
/// device: `prefetch`, casts, streams.
///
/// What burn submits behind a copy sees what that has written: on wgpu by the one queue of the device, on CUDA because burn's streams
/// are made to wait for it, on the device.
pub struct SharedDevice {
    pub(crate) burn: burn_tensor::Device,
    pub(crate) cube: CubeDevice,
    pub(crate) client: Client,
    pub(crate) transship: transship::Device,
    pub(crate) runtime: Runtime,
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
    /// [`Error::Init`](crate::Error::Init) if there is no adapter, or the runtime was started before; what transship says.
    #[cfg(feature = "wgpu")]
    pub fn open(options: WgpuOptions) -> Result<Self> {
        let (device, setup) = options.init_with_setup()?;
        // SAFETY: nobody but burn and transship has the handles, and neither destroys the device.
        unsafe { Self::from_setup(device, setup) }
    }

    /// Shares a wgpu device whose runtime has been started: `device` and `setup` are what `WgpuOptions::init_with_setup` has returned, or
    /// what went into and came out of `WgpuOptions::setup`.
    ///
    /// # Safety
    ///
    /// `setup` is that of `device`, and nobody destroys the wgpu device while copies are on their way, as
    /// [`from_device`](transship::wgpu::from_device) says.
    ///
    /// # Errors
    ///
    /// [`Error::NotWgpu`](crate::Error::NotWgpu) if `device` is another one of burn's; what transship says.
    #[cfg(feature = "wgpu")]
    pub unsafe fn from_setup(device: burn_tensor::Device, setup: WgpuSetup) -> Result<Self> {
        let cube = cube_device(&device).filter(|cube| matches!(cube, CubeDevice::Wgpu(_)));
        let cube = cube.ok_or_else(|| crate::Error::NotWgpu { device: format!("{device:?}") })?;
        let client = cube.client();
        let wgpu = Wgpu::new(&client);
        let memory = Box::new(wgpu.memory());
        // SAFETY: the caller's promise.
        let transship = unsafe { transship::wgpu::from_device_with(setup.device, setup.queue, memory) }?;
        Ok(Self { burn: device, cube, client, transship, runtime: Runtime::Wgpu(wgpu) })
    }

    /// Shares a CUDA device, the `ordinal`-th that the driver shows. burn's runtime of it may have been started.
    ///
    /// ```no_run
    /// use transship_burn::SharedDevice;
    ///
    /// let gpu = SharedDevice::open_cuda(0)?;
    /// let zeros = burn_tensor::Tensor::<2>::zeros([2, 3], gpu.burn());
    /// # let _ = zeros;
    /// # Ok::<(), transship_burn::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What transship says: there is no driver, or no such device.
    #[cfg(feature = "cuda")]
    pub fn open_cuda(ordinal: usize) -> Result<Self> {
        let id = transship::DeviceId::new("cuda", ordinal).map_err(transship::Error::from)?;
        // cubecl would panic without a driver.
        let transship = transship::Device::open(id)?;
        let burn = burn_tensor::Device::cuda(ordinal);
        let cube = cube_device(&burn);
        let cube = cube.ok_or(transship::Error::Unsupported { device: id, what: "work for burn" })?;
        let client = cube.client();
        let runtime = Runtime::Cuda(Box::new(Cuda::new(&client, &transship)?));
        Ok(Self { burn, cube, client, transship, runtime })
    }

    /// The device as burn names it, for models and tensors.
    pub fn burn(&self) -> &burn_tensor::Device {
        &self.burn
    }

    /// The device as transship names it, for `start_copy` and `prefetch`.
    pub fn device(&self) -> &transship::Device {
        &self.transship
    }

    /// Options of copies whose results are to become tensors of burn: they lie in memory of cubecl's, aligned as its kernels demand.
    ///
    /// On wgpu these are the default: the device allocates by cubecl whatever the options are.
    pub fn copy_options(&self) -> CopyOptions {
        self.runtime.copy_options()
    }
}

/// The device below burn's, if it is one of cubecl's.
pub(crate) fn cube_device(device: &burn_tensor::Device) -> Option<CubeDevice> {
    #[allow(unreachable_patterns, reason = "burn has other devices with other features")]
    match device.as_dispatch() {
        DispatchDevice::Cube(cube) => Some(cube.clone()),
        _ => None,
    }
}
