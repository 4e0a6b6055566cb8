//! What a device is, and which others it reaches. No context is needed, and none is created.

use std::ffi::{CStr, c_int, c_uint};

use cudarc::driver::sys;
use transship_core::{DeviceProperties, DeviceUuid, PciAddress, Result};

use crate::calls::Calls;
use crate::driver::version_text;

/// Attributes by their numbers: not every version of the bindings has the last one.
const PCI_BUS: c_uint = 33;
const PCI_DEVICE: c_uint = 34;
const PCI_DOMAIN: c_uint = 50;
const CAPABILITY_MAJOR: c_uint = 75;
const CAPABILITY_MINOR: c_uint = 76;
/// Since CUDA 12.2.
const HOST_NODE: c_uint = 134;

/// What the driver says of a device of its own. Only a device without a name is an error.
pub(crate) fn read(calls: &Calls, device: sys::CUdevice) -> Result<DeviceProperties> {
    let pci = pci(calls, device);
    let number = |attribute| u32::try_from(calls.known_attribute(attribute, device)?).ok();
    let mut properties = DeviceProperties::new(name(calls, device)?);
    properties.driver = version(calls).ok().map(|version| format!("CUDA {version}"));
    properties.uuid = calls.device_uuid(device).map(DeviceUuid);
    properties.compute_capability = number(CAPABILITY_MAJOR).zip(number(CAPABILITY_MINOR));
    properties.host_node = host_node(calls.known_attribute(HOST_NODE, device), pci);
    properties.pci = pci;
    properties.total_memory = total_memory(calls, device).ok();
    Ok(properties)
}

/// The hardware in its own words.
pub(crate) fn name(calls: &Calls, device: sys::CUdevice) -> Result<String> {
    let mut name = [0; 256];
    // SAFETY: the name is written to a local of the length given, with a zero behind it.
    unsafe { calls.device_name(name.as_mut_ptr(), name.len() as c_int, device)? };
    // SAFETY: the driver has ended the name with a zero, and the last byte is one in any case.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// The newest version of CUDA that the driver knows.
pub(crate) fn version(calls: &Calls) -> Result<String> {
    let mut version = 0;
    // SAFETY: the version is written to a local.
    unsafe { calls.driver_version(&mut version)? };
    Ok(version_text(version))
}

/// Whether the hardware lets a device read and write memory of another one.
pub(crate) fn can_access(calls: &Calls, device: sys::CUdevice, peer: sys::CUdevice) -> Result<bool> {
    let mut answer = 0;
    // SAFETY: the answer is written to a local; the driver looks both devices up.
    unsafe { calls.can_access_peer(&mut answer, device, peer)? };
    Ok(answer != 0)
}

fn total_memory(calls: &Calls, device: sys::CUdevice) -> Result<u64> {
    let mut total = 0;
    // SAFETY: the result is written to a local.
    unsafe { calls.device_total_memory(&mut total, device)? };
    Ok(total as u64)
}

/// GPUs of NVIDIA are the first function of their slot.
fn pci(calls: &Calls, device: sys::CUdevice) -> Option<PciAddress> {
    let number = |attribute| calls.known_attribute(attribute, device);
    Some(PciAddress {
        domain: u32::try_from(number(PCI_DOMAIN)?).ok()?,
        bus: u8::try_from(number(PCI_BUS)?).ok()?,
        device: u8::try_from(number(PCI_DEVICE)?).ok()?,
        function: 0,
    })
}

/// What the driver says, if it can be asked: -1 is no node. The system knows as well.
fn host_node(said: Option<c_int>, pci: Option<PciAddress>) -> Option<u32> {
    match said {
        Some(node) => u32::try_from(node).ok(),
        None => pci.and_then(|pci| pci.host_node()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_node_is_none() {
        assert_eq!(
            (host_node(Some(-1), None), host_node(Some(1), None), host_node(None, None)),
            (None, Some(1), None)
        );
    }
}
