//! The adapters of this machine, in an order that stays.

use std::sync::OnceLock;

use transship_core::{DeviceId, DeviceProperties, Result};
use wgpu::{Adapter, AdapterInfo, Backend, Backends, DeviceType, Instance, InstanceDescriptor};

use crate::device::describe;

/// The word before the colon in `wgpu:0`.
pub(crate) const NAME: &str = "wgpu";

/// What `wgpu:N` stands for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdapterDescription {
    /// The name to open it by.
    pub id: DeviceId,
    /// The hardware in its own words.
    pub name: String,
    /// Name, API and driver.
    pub description: String,
    /// Whether it is a GPU of its own, a part of the processor, or software.
    pub kind: DeviceType,
    /// The API that it is reached through.
    pub backend: Backend,
}

/// All adapters, as `wgpu:0` and up: GPUs of their own first, then those in the processor, virtual ones, software last;
/// among equals Vulkan, Metal and DX12 before GL, then by name and place on the bus. Initialises no device.
///
/// GL is looked at only where there is no adapter of the other three: it reaches the same hardware once more. The
/// environment variables of wgpu have the last word: `WGPU_BACKEND=vulkan,gl` looks at both.
///
/// ```
/// for adapter in transship_wgpu::adapters()? {
///     println!("{}: {}", adapter.id, adapter.description);
/// }
/// # Ok::<(), transship_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::InvalidDeviceId`](transship_core::Error::InvalidDeviceId) if there were more than can be numbered.
pub fn adapters() -> Result<Vec<AdapterDescription>> {
    let describe = |(ordinal, adapter): (usize, &Adapter)| {
        let info = adapter.get_info();
        let description = describe(&info);
        let (kind, backend) = (info.device_type, info.backend);
        Ok(AdapterDescription {
            id: DeviceId::new(NAME, ordinal)?,
            name: info.name,
            description,
            kind,
            backend,
        })
    };
    all().iter().enumerate().map(describe).collect()
}

/// The first adapter with `part` in its description, in whatever case: `nvidia`, `llvmpipe`, `vulkan`.
///
/// # Errors
///
/// As [`adapters`].
pub fn find(part: &str) -> Result<Option<DeviceId>> {
    let part = part.to_lowercase();
    let found = adapters()?.into_iter().find(|adapter| adapter.description.to_lowercase().contains(&part));
    Ok(found.map(|adapter| adapter.id))
}

/// The adapters, looked for once: to load the drivers takes some 10 ms.
pub(crate) fn all() -> &'static [Adapter] {
    static ADAPTERS: OnceLock<Vec<Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| match Backends::from_env() {
        Some(named) => reached_through(named),
        // A driver that is loaded beside another one for the same hardware may get in its way: NVIDIA's GL cannot open a
        // device beside its Vulkan, and ends the process with a fault.
        None => match reached_through(Backends::PRIMARY) {
            none if none.is_empty() => reached_through(Backends::SECONDARY),
            adapters => adapters,
        },
    })
}

/// What an adapter tells of itself. It has no UUID, and not every driver says where it is plugged in.
pub(crate) fn properties(info: AdapterInfo) -> DeviceProperties {
    let driver = if info.driver_info.is_empty() { info.driver } else { info.driver_info };
    let api = format!("{:?}", info.backend);
    let mut properties = DeviceProperties::new(info.name);
    properties.driver = Some(if driver.is_empty() { api } else { format!("{api}, {driver}") });
    properties.pci = info.device_pci_bus_id.parse().ok();
    properties.host_node = properties.pci.and_then(|pci| pci.host_node());
    properties
}

fn reached_through(backends: Backends) -> Vec<Adapter> {
    let from_env = InstanceDescriptor::new_without_display_handle_from_env();
    let instance = Instance::new(InstanceDescriptor { backends, ..from_env });
    let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
    adapters.sort_by_cached_key(|adapter| rank(adapter.get_info()));
    adapters
}

/// What comes first has the lowest rank.
fn rank(info: AdapterInfo) -> (u8, u8, String, String) {
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    };
    let api = match info.backend {
        Backend::Vulkan => 0,
        Backend::Metal => 1,
        Backend::Dx12 => 2,
        _ => 3,
    };
    (kind, api, info.name, info.device_pci_bus_id)
}
