//! The backends under test: one line each.

use std::fmt;

use late_backend::{LateConfig, LateHandle};
use transship::{Alignment, Device, DeviceId};

use crate::required::required;

/// A backend under test.
pub(crate) struct Backend {
    /// The name of its driver, and of its cases.
    pub(crate) name: &'static str,
    /// What it declares not to have.
    lacks: &'static [Need],
    source: Source,
}

/// Where its devices come from.
enum Source {
    /// A driver that is compiled in.
    BuiltIn,
    /// Two simulated devices for each case, so that cases do not see each other.
    Simulated(fn(LateConfig) -> LateConfig),
}

/// What a case needs of a backend beside copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Memory that is not the host's: the host reads what lies there through a copy.
    OwnMemory,
    /// Page-locked host memory for tensors, which copies read as it is.
    Pinned,
    /// A clock on the device.
    Clock,
    /// Streams that copies run on and that wait for copies.
    Streams,
    /// A second device of the same driver.
    SecondDevice,
}

/// Every backend in this program. A new one is one more line.
pub(crate) fn all() -> Vec<Backend> {
    vec![
        Backend::built_in("host", &[Need::OwnMemory, Need::Pinned, Need::Streams, Need::SecondDevice]),
        Backend::simulated("late", &[], |config| LateConfig {
            gather: Some(24),
            gather_strided: Some(176),
            ..config
        }),
        Backend::simulated("late-far", &[], |config| LateConfig {
            peers: false,
            shared_staging: false,
            seed: Some(7),
            gather: Some(24),
            copy_granularity: Alignment::new(4).expect("a power of two"),
            ..config
        }),
        Backend::simulated("late-map", &[Need::Pinned], |config| LateConfig {
            copy_granularity: Alignment::new(4).expect("a power of two"),
            bindable_alignment: Alignment::new(32).expect("a power of two"),
            mapped_staging: true,
            peers: false,
            waits_for_others: false,
            ..config
        }),
        Backend::simulated("late-open", &[Need::Pinned], |config| LateConfig {
            copy_granularity: Alignment::new(4).expect("a power of two"),
            largest_open: 1 << 16,
            largest_strided: 1 << 30,
            largest_scattered_run: usize::MAX,
            mapped_staging: true,
            ..config
        }),
        #[cfg(feature = "cuda")]
        Backend::built_in("cuda", &[]),
        #[cfg(feature = "wgpu")]
        Backend::built_in("wgpu", &[Need::Pinned, Need::Clock]),
        #[cfg(feature = "hip")]
        Backend::built_in("hip", &[]),
    ]
}

/// The devices of one case.
pub(crate) struct Devices {
    pub(crate) first: Device,
    pub(crate) second: Option<Device>,
    pub(crate) late: Option<LateHandle>,
}

impl Backend {
    fn built_in(name: &'static str, lacks: &'static [Need]) -> Self {
        Self { name, lacks, source: Source::BuiltIn }
    }

    fn simulated(
        name: &'static str,
        lacks: &'static [Need],
        configure: fn(LateConfig) -> LateConfig,
    ) -> Self {
        Self { name, lacks, source: Source::Simulated(configure) }
    }

    /// Why a case with these needs does not run here, if it does not.
    pub(crate) fn reason_to_ignore(&self, needs: &[Need]) -> Option<String> {
        if let Some(need) = needs.iter().find(|need| self.lacks.contains(need)) {
            return Some(format!("{} has no {need}", self.name));
        }
        match (self.devices_there(), needs.contains(&Need::SecondDevice)) {
            (Ok(count), true) if count < 2 && !is_required(self.name, 1) => {
                Some("needs two devices".to_owned())
            }
            (Err(reason), _) if !is_required(self.name, 0) => Some(reason),
            _ => None,
        }
    }

    /// How many devices there are, or what this machine lacks. Initialises none. A driver that should be in the program
    /// and is not is no reason to ignore anything: its cases run, and fail.
    pub(crate) fn devices_there(&self) -> Result<usize, String> {
        if matches!(self.source, Source::Simulated(_)) {
            return Ok(2);
        }
        let drivers = transship::drivers();
        let driver = drivers.iter().find(|driver| driver.name == self.name);
        match driver.map(|driver| (driver.devices, &driver.unavailable)) {
            None => Ok(1),
            Some((_, Some(error))) => Err(error.to_string()),
            Some((0, None)) => Err(format!("driver {} has no device here", self.name)),
            Some((count, None)) => Ok(count),
        }
    }

    /// Opens the devices for the case of number `case`.
    pub(crate) fn open(&self, case: usize) -> transship::Result<Devices> {
        let (name, late) = match self.source {
            Source::BuiltIn => (self.name, None),
            Source::Simulated(configure) => {
                // Drivers stay registered until the program ends, and so may their names.
                let name: &'static str = Box::leak(format!("{}-{case}", self.name).into_boxed_str());
                let config = configure(LateConfig { devices: 2, ..LateConfig::new(name) });
                (name, Some(late_backend::install(config)?))
            }
        };
        let first = Device::open(DeviceId::new(name, 0)?)?;
        let several = self.lacks.iter().all(|need| *need != Need::SecondDevice)
            && (late.is_some() || self.devices_there().is_ok_and(|count| count > 1));
        let second = several.then(|| Device::open(DeviceId::new(name, 1)?)).transpose()?;
        Ok(Devices { first, second, late })
    }
}

fn is_required(driver: &str, least_ordinal: usize) -> bool {
    required().iter().any(|device| device.id.driver() == driver && device.id.ordinal() >= least_ordinal)
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnMemory => "memory of its own",
            Self::Pinned => "pinned memory",
            Self::Clock => "clock",
            Self::Streams => "streams to wait on",
            Self::SecondDevice => "second device",
        })
    }
}
