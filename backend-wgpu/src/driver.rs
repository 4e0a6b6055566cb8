//! The wgpu driver: every adapter that Vulkan, Metal, DX12 and GL find on this machine.

use std::sync::Arc;

use transship_core::backend::{Backend, BuiltinDriver, Driver};
use transship_core::{DeviceId, DeviceProperties, Error, Result};
use wgpu::{Adapter, DeviceDescriptor, DeviceType, ExperimentalFeatures, Features, MemoryHints, Trace};

use crate::adapters::{self, NAME};
use crate::device::WgpuBackend;
use crate::gather_kernel::ARRAYS;

/// What kernels over tensors may need, where the adapter has it, what lets the host write tensors where they lie, and what lets a
/// kernel of ours read many.
const FEATURES: Features = Features::MAPPABLE_PRIMARY_BUFFERS
    .union(Features::SHADER_F16)
    .union(Features::SHADER_F64)
    .union(Features::SHADER_INT64)
    .union(Features::SUBGROUP)
    .union(Features::IMMEDIATES)
    .union(Features::TIMESTAMP_QUERY)
    .union(ARRAYS);

/// The driver of whatever wgpu reaches.
pub struct WgpuDriver;

inventory::submit! {
    BuiltinDriver(|| Arc::new(WgpuDriver))
}

impl Driver for WgpuDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Behind drivers made for one kind of hardware. An adapter in software is no better than the host, which it runs on.
    fn preference(&self) -> u32 {
        let best = adapters::all().first().map(|adapter| adapter.get_info().device_type);
        if best.is_some_and(|kind| kind != DeviceType::Cpu) { 50 } else { 0 }
    }

    fn is_available(&self) -> Result<()> {
        let reason = "no adapter found; install a driver for Vulkan, Metal, DX12 or GL";
        match adapters::all() {
            [] => Err(Error::DriverUnavailable { driver: NAME, reason: reason.to_owned() }),
            _ => Ok(()),
        }
    }

    fn device_count(&self) -> usize {
        adapters::all().len()
    }

    fn properties(&self, ordinal: usize) -> Result<DeviceProperties> {
        Ok(adapters::properties(adapter(ordinal)?.get_info()))
    }

    /// wgpu has no copies between devices.
    fn reaches(&self, ordinal: usize, other: usize) -> Result<bool> {
        adapter(ordinal).and(adapter(other)).map(|_| ordinal == other)
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Backend>> {
        open(ordinal)
    }
}

fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    let (device, adapter) = (DeviceId::new(NAME, ordinal)?, adapter(ordinal)?);
    let requested = pollster::block_on(adapter.request_device(&request(adapter)));
    let (gpu, queue) = requested.map_err(|error| Error::Driver {
        device,
        call: "Adapter::request_device",
        code: 0,
        message: error.to_string(),
    })?;
    Ok(Arc::new(WgpuBackend::new(device, gpu, queue, false)))
}

fn adapter(ordinal: usize) -> Result<&'static Adapter> {
    WgpuDriver.is_available()?;
    let (device, adapters) = (DeviceId::new(NAME, ordinal)?, adapters::all());
    adapters.get(ordinal).ok_or(Error::NoSuchDevice { device, count: adapters.len() })
}

/// The default limits are those of the weakest hardware: 256 MiB a buffer, 128 MiB a binding.
fn request(adapter: &Adapter) -> DeviceDescriptor<'static> {
    DeviceDescriptor {
        label: Some("transship"),
        required_features: adapter.features() & FEATURES,
        required_limits: adapter.limits(),
        experimental_features: ExperimentalFeatures::disabled(),
        memory_hints: MemoryHints::Performance,
        trace: Trace::Off,
    }
}
