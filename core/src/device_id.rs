//! The name of a device.

use std::fmt;
use std::str::FromStr;

const LONGEST_NAME: usize = 14;

/// Names a device: a driver and a number, `cuda:0`, or the host. A name is not a device:
/// [`Device::open`](crate::Device::open) makes it one.
///
/// ```
/// use transship_core::DeviceId;
///
/// let id: DeviceId = "cuda:1".parse()?;
/// assert_eq!((id.driver(), id.ordinal()), ("cuda", 1));
/// assert_eq!("cpu".parse::<DeviceId>()?, DeviceId::HOST);
/// assert_eq!(DeviceId::HOST.to_string(), "host");
/// # Ok::<(), transship_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    name: [u8; LONGEST_NAME],
    length: u8,
    ordinal: u32,
}

impl DeviceId {
    /// The host.
    pub const HOST: Self = match Self::of("host", 0) {
        Some(id) => id,
        None => unreachable!(),
    };

    /// Names the device `ordinal` of `driver`; `cpu` is the host.
    ///
    /// # Errors
    ///
    /// [`ParseDeviceIdError`] unless `driver` is 1 to 14 lower-case letters, digits, `-` or `_`, and `ordinal` fits
    /// into 32 bits. There is one host.
    pub fn new(driver: &str, ordinal: usize) -> Result<Self, ParseDeviceIdError> {
        u32::try_from(ordinal)
            .ok()
            .and_then(|ordinal| Self::named(driver, ordinal))
            .ok_or_else(|| ParseDeviceIdError { text: format!("{driver}:{ordinal}") })
    }

    /// The one way from a name to a device: what is printed names the same one.
    fn named(driver: &str, ordinal: u32) -> Option<Self> {
        match driver {
            "host" | "cpu" => (ordinal == 0).then_some(Self::HOST),
            driver => Self::of(driver, ordinal),
        }
    }

    const fn of(driver: &str, ordinal: u32) -> Option<Self> {
        let bytes = driver.as_bytes();
        if bytes.is_empty() || bytes.len() > LONGEST_NAME {
            return None;
        }
        let mut name = [0; LONGEST_NAME];
        let mut index = 0;
        while index < bytes.len() {
            if !matches!(bytes[index], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
                return None;
            }
            name[index] = bytes[index];
            index += 1;
        }
        Some(Self { name, length: bytes.len() as u8, ordinal })
    }

    /// The word before the colon.
    pub fn driver(&self) -> &str {
        std::str::from_utf8(&self.name[..usize::from(self.length)]).unwrap_or_default()
    }

    /// The number behind the colon.
    pub fn ordinal(&self) -> usize {
        self.ordinal as usize
    }

    /// Whether it is the host.
    pub fn is_host(&self) -> bool {
        *self == Self::HOST
    }
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name a device; write a driver and a number such as cuda:0, or host")]
#[non_exhaustive]
pub struct ParseDeviceIdError {
    /// The text.
    pub text: String,
}

impl FromStr for DeviceId {
    type Err = ParseDeviceIdError;

    /// Reads `driver:number`; the number may be left out if it is 0, and `cpu` means the host.
    fn from_str(text: &str) -> Result<Self, ParseDeviceIdError> {
        let (driver, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        ordinal
            .bytes()
            .all(|digit| digit.is_ascii_digit())
            .then(|| ordinal.parse().ok())
            .flatten()
            .and_then(|ordinal| Self::named(driver, ordinal))
            .ok_or_else(|| ParseDeviceIdError { text: text.to_owned() })
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() { f.write_str("host") } else { write!(f, "{}:{}", self.driver(), self.ordinal) }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::collection;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Names that drivers may have, those of the host among them.
    fn driver() -> impl Strategy<Value = String> {
        prop_oneof![Just("cpu".to_owned()), Just("host".to_owned()), text("az09-_", 1..15)]
    }

    /// Out of few characters.
    fn text(characters: &'static str, length: Range<usize>) -> impl Strategy<Value = String> {
        let one = select(characters.chars().collect::<Vec<_>>());
        collection::vec(one, length).prop_map(String::from_iter)
    }

    fn ordinal() -> impl Strategy<Value = usize> {
        prop_oneof![Just(0), 0_usize..20, Just(u32::MAX as usize), any::<usize>()]
    }

    proptest! {
        /// Deliberate bug: `cpu` becomes the host only where a text is read.
        #[test]
        #[cfg_attr(miri, ignore = "names have no unsafe code")]
        fn what_is_printed_names_the_same_device(driver in driver(), ordinal in ordinal()) {
            let is_host = driver == "cpu" || driver == "host";
            match DeviceId::new(&driver, ordinal) {
                Ok(id) => {
                    prop_assert_eq!(id.to_string().parse::<DeviceId>().ok(), Some(id));
                    prop_assert_eq!(id.is_host(), is_host);
                    prop_assert_eq!(DeviceId::new(id.driver(), id.ordinal()).ok(), Some(id));
                }
                Err(_) => prop_assert!(ordinal > u32::MAX as usize || (is_host && ordinal > 0)),
            }
        }

        #[test]
        #[cfg_attr(miri, ignore = "names have no unsafe code")]
        fn what_can_be_read_is_printed_in_one_way(text in prop_oneof![
            driver(),
            (driver(), text("0149", 0..12)).prop_map(|(driver, ordinal)| format!("{driver}:{ordinal}")),
            text("chopust:01-_ \u{fc}", 0..18),
        ]) {
            if let Ok(id) = text.parse::<DeviceId>() {
                let printed = id.to_string();
                prop_assert_eq!(printed.parse::<DeviceId>().ok(), Some(id));
                prop_assert_eq!(DeviceId::new(id.driver(), id.ordinal()).ok(), Some(id));
                prop_assert_eq!(id == DeviceId::HOST, printed == "host");
            }
        }
    }

    #[test]
    fn the_host_has_two_names_and_one_number() {
        for text in ["cpu", "host", "cpu:0", "host:0", "cpu:00"] {
            assert_eq!(text.parse::<DeviceId>().ok(), Some(DeviceId::HOST), "{text}");
        }
        assert_eq!(DeviceId::new("cpu", 0).ok(), Some(DeviceId::HOST));
        assert!(DeviceId::new("cpu", 1).is_err() && DeviceId::new("host", 1).is_err());
        assert!("cpu:1".parse::<DeviceId>().is_err());
    }

    #[test]
    fn names_round_trip() {
        for text in ["host", "cuda:0", "cuda:17", "my-npu_2:3"] {
            assert_eq!(text.parse::<DeviceId>().map(|id| id.to_string()).ok().as_deref(), Some(text));
        }
        assert_eq!("cuda".parse::<DeviceId>().ok(), DeviceId::new("cuda", 0).ok());
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_error() {
        for text in [
            "",
            ":",
            ":0",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "CUDA:0",
            "cuda:0:0",
            "cuda:4294967296",
            "host:1",
            "averyveryverylongname:0",
            "cüda:0",
        ] {
            match text.parse::<DeviceId>() {
                Err(error) => assert!(error.to_string().contains(&format!("{text:?}")), "{error}"),
                Ok(id) => assert_eq!(format!("accepted {id}"), format!("refused {text}")),
            }
        }
    }
}
