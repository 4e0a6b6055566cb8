//! What is measured on, and with how much effort.

use std::time::Duration;

use transship::{CopyOptions, CopyPolicy, Device, DeviceId};

use crate::Result;

/// The devices and the settings of a run.
pub(crate) struct Bed {
    pub(crate) device: Device,
    pub(crate) second: Option<Device>,
    pub(crate) quick: bool,
}

/// What a row needs beside a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// A device that is not the host.
    Device,
    TwoDevices,
    /// A device whose kernels cast.
    Casts,
}

/// How long a series may take.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) warm_up: Duration,
    pub(crate) timed: Duration,
    pub(crate) most_rounds: usize,
}

/// With `--quick`, sizes are divided by this where they are large.
const QUICK_DIVISOR: usize = 64;
const LARGE: usize = 1 << 20;

impl Bed {
    pub(crate) fn new(devices: &[DeviceId], quick: bool) -> Result<Self> {
        let (device, second) = match devices {
            [] => (Device::best()?, None),
            [one] => (Device::open(*one)?, None),
            [one, two] => (Device::open(*one)?, Some(Device::open(*two)?)),
            _ => return Err("give one device, or two".into()),
        };
        Ok(Self { device, second, quick })
    }

    pub(crate) fn about(&self) -> Vec<(&'static str, String)> {
        let describe = |device: &Device| format!("{}: {}", device.id(), device.description());
        let mut about = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("device", describe(&self.device)),
            ("second device", self.second.as_ref().map_or("none".to_owned(), describe)),
            ("processors", std::thread::available_parallelism().map_or(0, usize::from).to_string()),
            ("transparent huge pages", huge_pages()),
            ("build", if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
            ("sizes", if self.quick { "quick: large ones divided by 64" } else { "full" }.to_owned()),
        ];
        let unavailable = transship::drivers().into_iter().filter_map(|driver| {
            Some(("not available", format!("{}: {}", driver.name, driver.unavailable?)))
        });
        about.extend(unavailable);
        about
    }

    /// Why a row cannot be measured here.
    pub(crate) fn misses(&self, needs: Needs) -> Option<String> {
        match needs {
            Needs::TwoDevices if self.second.is_none() => Some("no second device was named".to_owned()),
            Needs::Device | Needs::Casts if self.device.is_host() => {
                Some("the host is no other device".to_owned())
            }
            Needs::Casts if !self.device.limits().gathers() => {
                Some("the device casts nothing that lies on it".to_owned())
            }
            _ => None,
        }
    }

    /// So many bytes, or less of them in a quick run.
    pub(crate) fn bytes(&self, bytes: usize) -> usize {
        if self.quick && bytes >= LARGE { (bytes / QUICK_DIVISOR).max(1 << 16) } else { bytes }
    }

    /// So many tensors of so many bytes each, or less of them in a quick run.
    pub(crate) fn count(&self, count: usize, bytes: usize) -> usize {
        let most = (LARGE / bytes).clamp(1, 1000);
        if self.quick { count.min((count / QUICK_DIVISOR).max(most)) } else { count }
    }

    /// Measures with room for so many bytes of pinned results, and gives what is idle then back.
    pub(crate) fn with_result_budget<T>(&self, bytes: usize, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let usual = self.device.result_usage().budget;
        self.device.set_result_budget(bytes)?;
        let measured = run();
        self.device.set_result_budget(usual)?;
        self.device.trim();
        measured
    }

    /// Effort for a row that deserves so many seconds.
    pub(crate) fn effort(&self, seconds: f64) -> Effort {
        let seconds = if self.quick { seconds / 20.0 } else { seconds };
        Effort {
            warm_up: Duration::from_secs_f64(seconds / 8.0),
            timed: Duration::from_secs_f64(seconds),
            most_rounds: 2000,
        }
    }

    /// The usual options, but that a copy to the host really copies.
    pub(crate) fn options(&self, target: &Device) -> CopyOptions {
        let policy = if target.is_host() { CopyPolicy::Always } else { CopyPolicy::IfNeeded };
        CopyOptions::default().policy(policy)
    }
}

/// The setting that decides what page faults cost.
pub(crate) fn huge_pages() -> String {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .map_or_else(|_| "unknown".to_owned(), |setting| setting.trim().to_owned())
}
