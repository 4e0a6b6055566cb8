//! What a device is.

use std::fmt;

use crate::backend::PciAddress;

/// What a driver says of a device, opened or not. What it does not say is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The hardware in its own words, without the driver.
    pub name: String,
    /// The API and its version, or that of the driver.
    pub driver: Option<String>,
    /// What tells it from every other device of its vendor, parts of a divided GPU included.
    pub uuid: Option<DeviceUuid>,
    /// Where it is plugged in. Parts of a divided GPU have the same place.
    pub pci: Option<PciAddress>,
    /// What its kernels may use, major and minor: CUDA's compute capability, and what HIP calls so.
    pub compute_capability: Option<(u32, u32)>,
    /// The NUMA node of the host that it is plugged in at; `None` also where the host has one node only.
    pub host_node: Option<u32>,
    /// Its memory in bytes; for the host, what the process may use.
    pub total_memory: Option<u64>,
}

impl DeviceProperties {
    /// A device of this name, of which nothing else is known.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            driver: None,
            uuid: None,
            pci: None,
            compute_capability: None,
            host_node: None,
            total_memory: None,
        }
    }

    /// Whether two devices, maybe of two drivers, are the same hardware; `None` where that is not known. wgpu tells no UUID, so it
    /// is the same as each part of a divided GPU.
    pub fn is_same_hardware(&self, other: &Self) -> Option<bool> {
        let places = self.pci.zip(other.pci).map(|(one, other)| one == other);
        let uuids = self.uuid.zip(other.uuid).map(|(one, other)| one == other);
        match (places, uuids) {
            (Some(false), _) => Some(false),
            (places, uuids) => uuids.or(places),
        }
    }
}

/// The number of a device, of 16 bytes. It prints as `8-4-4-4-12` hexadecimal digits, as NVIDIA's tools do behind `GPU-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn device(pci: Option<&str>, uuid: Option<u8>) -> DeviceProperties {
        let mut device = DeviceProperties::new("x");
        device.pci = pci.map(|pci| pci.parse().unwrap());
        device.uuid = uuid.map(|byte| DeviceUuid([byte; 16]));
        device
    }

    #[test]
    fn the_same_hardware_is_known_by_its_place_and_its_number() {
        let same = |one: &DeviceProperties, other: &DeviceProperties| {
            assert_eq!(one.is_same_hardware(other), other.is_same_hardware(one));
            one.is_same_hardware(other)
        };
        let (first, second) = (Some("0000:01:00.0"), Some("0000:02:00.0"));
        assert_eq!(same(&device(first, Some(1)), &device(first, None)), Some(true));
        assert_eq!(same(&device(first, Some(1)), &device(second, None)), Some(false));
        assert_eq!(same(&device(first, Some(1)), &device(second, Some(1))), Some(false));
        // Two parts of one GPU.
        assert_eq!(same(&device(first, Some(1)), &device(first, Some(2))), Some(false));
        assert_eq!(same(&device(first, Some(1)), &device(None, Some(1))), Some(true));
        assert_eq!(same(&device(first, None), &device(None, Some(1))), None);
        assert_eq!(same(&device(None, None), &device(None, None)), None);
    }

    #[test]
    fn numbers_print_as_tools_print_them() {
        let bytes: Vec<u8> = (0x10..0x20).collect();
        let number = DeviceUuid(bytes.try_into().unwrap());
        assert_eq!(number.to_string(), "10111213-1415-1617-1819-1a1b1c1d1e1f");
    }
}
