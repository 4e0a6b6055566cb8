//! Where a device is plugged in.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::Error;

/// The place of a device on the PCI bus: `0000:65:00.0`. It is the same whichever driver tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Which of several buses of the machine.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The slot on the bus.
    pub device: u8,
    /// The part of the card.
    pub function: u8,
}

impl PciAddress {
    /// The NUMA node of the host that the device is plugged in at, as Linux knows it; `None` where there is one node only, and on
    /// other systems.
    pub fn host_node(&self) -> Option<u32> {
        self.host_node_below(Path::new("/"))
    }

    /// The same, of the machine whose files lie below `root`.
    fn host_node_below(&self, root: &Path) -> Option<u32> {
        if cfg!(any(not(target_os = "linux"), miri)) {
            return None;
        }
        let file = root.join(format!("sys/bus/pci/devices/{self}/numa_node"));
        let node = std::fs::read_to_string(file).ok()?;
        // -1 means none.
        node.trim().parse().ok()
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Reads `0000:65:00.0`, in whatever case, with any number of zeros in front of the domain, or without the domain.
///
/// ```
/// use transship_core::PciAddress;
///
/// let address: PciAddress = "00000000:C1:00.0".parse()?;
/// assert_eq!(address.to_string(), "0000:c1:00.0");
/// # Ok::<(), transship_core::Error>(())
/// ```
impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| Error::InvalidOption {
            name: "PCI address",
            value: text.to_owned(),
            reason: "it looks like 0000:65:00.0: domain, bus, device and function as hexadecimal numbers",
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (place, function) = text.trim().rsplit_once('.')?;
    let mut fields = place.rsplit(':');
    let (device, bus, domain) = (fields.next()?, fields.next()?, fields.next().unwrap_or("0"));
    let byte = |digits: &str| u8::try_from(number(digits)?).ok();
    let address = PciAddress {
        domain: number(domain)?,
        bus: byte(bus)?,
        device: byte(device)?,
        function: byte(function)?,
    };
    fields.next().is_none().then_some(address)
}

/// Digits only: the standard library would take a sign as well.
fn number(digits: &str) -> Option<u32> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn addresses_are_read_as_drivers_write_them() {
        let expected = PciAddress { domain: 0, bus: 0x65, device: 0x1f, function: 7 };
        for text in ["0000:65:1f.7", "00000000:65:1F.7", "65:1f.7", " 0:65:1f.7\n"] {
            assert_eq!(text.parse::<PciAddress>().unwrap(), expected, "{text}");
        }
        assert_eq!(expected.to_string(), "0000:65:1f.7");
        let far = PciAddress { domain: 0x10000, ..expected };
        assert_eq!(far.to_string().parse::<PciAddress>().unwrap(), far);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in [
            "",
            "0000:65:1f",
            "65.0",
            "0:0:65:1f.7",
            "0000:165:00.0",
            "+0:65:1f.7",
            "x:65:1f.7",
            "::.",
            "llvmpipe",
        ] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert!(matches!(&error, Error::InvalidOption { value, .. } if value == text), "{error}");
        }
    }

    #[test]
    fn a_place_with_nothing_in_it_has_no_node() {
        let nowhere = PciAddress { domain: 0xffff_ffff, bus: 255, device: 31, function: 7 };
        assert_eq!(nowhere.host_node(), None);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_node_is_the_one_that_the_system_writes_down() {
        let root = std::env::temp_dir().join(format!("transship-pci-{}", std::process::id()));
        let place: PciAddress = "0000:c1:00.0".parse().unwrap();
        let folder = root.join("sys/bus/pci/devices/0000:c1:00.0");
        std::fs::create_dir_all(&folder).unwrap();
        let node = |text: &str| {
            std::fs::write(folder.join("numa_node"), text).unwrap();
            place.host_node_below(&root)
        };
        assert_eq!([node("1\n"), node("0\n"), node("-1\n"), node("")], [Some(1), Some(0), None, None]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
