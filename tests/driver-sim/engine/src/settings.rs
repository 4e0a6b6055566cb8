//! What the environment says.

use std::time::Duration;

/// How the devices behave.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) peers: bool,
    pub(crate) seed: u64,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// Work runs by itself once it has waited for so long.
    pub(crate) latest: Duration,
    /// Work does not run before it has waited for so long.
    pub(crate) slow: Duration,
    /// What is left open when the process ends is no fault.
    pub(crate) leaks_allowed: bool,
    pub(crate) report: bool,
    /// Devices have memory pools.
    pub(crate) pools: bool,
    /// Other processes can import pools.
    pub(crate) shared_pools: bool,
    pub(crate) faults: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 2,
            peers: true,
            seed: 1,
            memory: 1 << 30,
            latest: Duration::from_millis(2),
            slow: Duration::ZERO,
            leaks_allowed: false,
            report: false,
            pools: true,
            shared_pools: true,
            faults: String::new(),
        }
    }
}

impl Settings {
    /// Reads `DRIVER_SIM_*` through `read`.
    pub(crate) fn read(read: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let number = |name: &str, default: u64| match read(name) {
            None => Ok(default),
            Some(text) => text.parse::<u64>().map_err(|_| format!("{name}={text} is no number")),
        };
        let usual = Self::default();
        let leaks_allowed = match read("DRIVER_SIM_LEAKS").as_deref() {
            None | Some("fail") => false,
            Some("allow") => true,
            Some(other) => return Err(format!("DRIVER_SIM_LEAKS={other} is neither fail nor allow")),
        };
        let without = read("DRIVER_SIM_WITHOUT").unwrap_or_default();
        let has = |what| !without.split(',').any(|word| word.trim() == what);
        Ok(Self {
            devices: number("DRIVER_SIM_DEVICES", usual.devices as u64)? as usize,
            peers: number("DRIVER_SIM_PEERS", 1)? != 0,
            seed: number("DRIVER_SIM_SEED", usual.seed)?,
            memory: number("DRIVER_SIM_MEMORY_MIB", usual.memory >> 20)? << 20,
            latest: Duration::from_micros(number("DRIVER_SIM_LATEST_US", usual.latest.as_micros() as u64)?),
            slow: Duration::from_micros(number("DRIVER_SIM_SLOW_US", 0)?),
            leaks_allowed,
            report: number("DRIVER_SIM_REPORT", 0)? != 0,
            pools: has("pools"),
            shared_pools: has("shared-pools"),
            faults: read("DRIVER_SIM_FAULTS").unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn what_is_not_said_is_usual_and_what_is_wrong_is_an_error() {
        let settings = Settings::read(|name| (name == "DRIVER_SIM_DEVICES").then(|| "8".to_owned())).unwrap();
        assert_eq!((settings.devices, settings.peers, settings.seed), (8, true, 1));
        let pools = |text: &str| {
            let settings = Settings::read(|name| (name == "DRIVER_SIM_WITHOUT").then(|| text.to_owned()));
            settings.unwrap().pools
        };
        assert!(pools("") && pools("cuMemcpyBatchAsync") && !pools("cuMemcpyBatchAsync, pools"));
        let wrong = Settings::read(|name| (name == "DRIVER_SIM_SEED").then(|| "x".to_owned()));
        assert_eq!(wrong.unwrap_err(), "DRIVER_SIM_SEED=x is no number");
        assert!(Settings::read(|name| (name == "DRIVER_SIM_LEAKS").then(|| "no".to_owned())).is_err());
    }
}
