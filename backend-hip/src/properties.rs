//! What a device is, and which others it reaches. The device need not be current, and becomes it for nobody.

use std::ffi::{CStr, c_int};

use hip_sys::hiprt::{self, hipDeviceAttribute_t as Attribute};
use transship_core::{DeviceProperties, DeviceUuid, Result};

use crate::calls::Calls;
use crate::driver::version_text;

/// What the runtime says of a device of its own. Only a device without a name is an error.
pub(crate) fn read(calls: &Calls, ordinal: c_int, device: hiprt::hipDevice_t) -> Result<DeviceProperties> {
    let number = |which| attribute(calls, which, ordinal).ok().and_then(|value| u32::try_from(value).ok());
    let major = number(Attribute::hipDeviceAttributeComputeCapabilityMajor);
    let minor = number(Attribute::hipDeviceAttributeComputeCapabilityMinor);
    let mut properties = DeviceProperties::new(name(calls, device)?);
    properties.driver = version(calls).ok().map(|version| format!("HIP {version}"));
    properties.uuid = calls.device_uuid(device).map(DeviceUuid);
    properties.pci = calls.device_place(ordinal).and_then(|place| place.parse().ok());
    properties.compute_capability = major.zip(minor);
    properties.host_node = properties.pci.and_then(|pci| pci.host_node());
    properties.total_memory = total_memory(calls, device).ok();
    Ok(properties)
}

/// The hardware in its own words.
pub(crate) fn name(calls: &Calls, device: hiprt::hipDevice_t) -> Result<String> {
    let mut name = [0; 256];
    // SAFETY: the name is written to a local of the length given, with a zero behind it.
    unsafe { calls.device_name(name.as_mut_ptr(), name.len() as c_int, device)? };
    // SAFETY: the runtime has ended the name with a zero, and the last byte is one in any case.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// The version of the runtime.
pub(crate) fn version(calls: &Calls) -> Result<String> {
    let mut version = 0;
    // SAFETY: the version is written to a local.
    unsafe { calls.runtime_version(&mut version)? };
    Ok(version_text(version))
}

/// Whether the hardware lets a device read and write memory of another one.
pub(crate) fn can_access(calls: &Calls, ordinal: c_int, peer: c_int) -> Result<bool> {
    let mut answer = 0;
    // SAFETY: the answer is written to a local; the runtime looks both devices up.
    unsafe { calls.can_access_peer(&mut answer, ordinal, peer)? };
    Ok(answer != 0)
}

fn attribute(calls: &Calls, attribute: Attribute, ordinal: c_int) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: the result is written to a local; the runtime looks the device up.
    unsafe { calls.device_attribute(&mut value, attribute, ordinal)? };
    Ok(value)
}

fn total_memory(calls: &Calls, device: hiprt::hipDevice_t) -> Result<u64> {
    let mut total = 0;
    // SAFETY: the result is written to a local.
    unsafe { calls.device_total_memory(&mut total, device)? };
    Ok(total as u64)
}
