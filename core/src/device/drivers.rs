//! The drivers of this program and the devices that are open.

use std::cell::Cell;
use std::sync::Arc;

use crate::backend::host::HostDriver;
use crate::backend::{BuiltinDriver, Driver};
use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard, OnceLock, statics, thread_local};
use crate::runtime::{foreign, fork};

/// A driver that says it has more is mistaken: a negative number, taken for one without a sign, is as large as that.
const MOST_DEVICES: usize = 1 << 16;

/// What is known of a driver without initialising a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The word before the colon of the names of its devices.
    pub name: &'static str,
    /// How many devices it has here; 0 if it cannot be used.
    pub devices: usize,
    /// What is missing, where it cannot be used.
    pub unavailable: Option<Error>,
}

/// Adds a driver to this program: from now on [`Device::open`](crate::Device::open) knows its devices.
///
/// # Errors
///
/// [`Error::DriverExists`], and [`Error::InvalidDeviceId`] if the name cannot be part of a device's name.
pub fn register_driver(driver: Arc<dyn Driver>) -> Result<()> {
    let driver = NamedDriver::new(driver);
    let name = driver.name;
    // The other name of the host is taken as well.
    if DeviceId::new(name, 0)?.is_host() {
        return Err(Error::DriverExists { name });
    }
    fork::check()?;
    let mut drivers = registry().drivers();
    if drivers.known.iter().any(|known| known.name == name) {
        return Err(Error::DriverExists { name });
    }
    drivers.known.push(driver);
    Ok(())
}

/// The drivers of this program, compiled in or registered, the preferred ones first. A backend crate that the program depends on
/// without naming it is not linked, and not among them: `use transship_cuda as _;`.
pub fn drivers() -> Vec<DriverInfo> {
    let describe = |driver: &NamedDriver| {
        let devices = driver.devices();
        DriverInfo { name: driver.name, devices: *devices.as_ref().unwrap_or(&0), unavailable: devices.err() }
    };
    by_preference().iter().map(describe).collect()
}

pub(crate) fn list() -> Vec<DeviceId> {
    let devices = |driver: &NamedDriver| {
        let name = driver.name;
        (0..driver.devices().unwrap_or(0)).filter_map(move |ordinal| DeviceId::new(name, ordinal).ok())
    };
    by_preference().iter().flat_map(devices).collect()
}

pub(crate) fn best() -> DeviceId {
    list().first().copied().unwrap_or(DeviceId::HOST)
}

/// A driver, whose name was asked for once: what it answers is its own code, which no lock is held for.
#[derive(Clone)]
struct NamedDriver {
    name: &'static str,
    driver: Arc<dyn Driver>,
}

impl NamedDriver {
    fn new(driver: Arc<dyn Driver>) -> Self {
        Self { name: foreign::call(|| driver.name()), driver }
    }

    /// How many devices it has, or why none can be used. One that panics takes no device from the others.
    fn devices(&self) -> Result<usize> {
        foreign::checked(|| {
            self.driver.is_available()?;
            match self.driver.device_count() {
                count if count <= MOST_DEVICES => Ok(count),
                count => Err(Error::DriverUnavailable {
                    driver: self.name,
                    reason: format!("it says that it has {count} devices; this is for its author"),
                }),
            }
        })
    }

    fn preference(&self) -> u32 {
        foreign::checked(|| Ok(self.driver.preference())).unwrap_or(0)
    }
}

struct Registry {
    drivers: Mutex<Drivers>,
    /// Told when those that are a part of the program are there.
    taken_up: Condvar,
}

struct Drivers {
    /// Among equals the host comes first.
    known: Vec<NamedDriver>,
    builtin: Builtin,
}

/// How far the drivers are taken up that are a part of the program. Their own code runs meanwhile, and may come back here: under no
/// lock, but whoever else comes waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Builtin {
    Waiting,
    Coming,
    There,
}

thread_local! {
    /// Whether this thread takes them up.
    static TAKES_UP: Cell<bool> = const { Cell::new(false) };
}

fn registry() -> &'static Registry {
    statics! {
        static REGISTRY: OnceLock<Registry> = OnceLock::new();
    }
    REGISTRY.get_or_init(|| {
        let host = NamedDriver { name: "host", driver: Arc::new(HostDriver) };
        let drivers = Drivers { known: vec![host], builtin: Builtin::Waiting };
        Registry { drivers: Mutex::new(drivers), taken_up: Condvar::new() }
    })
}

impl Registry {
    /// The drivers: all that there are, or, for one of them that asks while it is taken up, those before it.
    fn drivers(&self) -> MutexGuard<'_, Drivers> {
        let mut drivers = self.drivers.lock();
        loop {
            match drivers.builtin {
                Builtin::There => return drivers,
                Builtin::Coming if takes_up() => return drivers,
                Builtin::Coming => self.taken_up.wait(&mut drivers),
                Builtin::Waiting => {
                    drivers.builtin = Builtin::Coming;
                    drop(drivers);
                    self.take_up();
                    drivers = self.drivers.lock();
                }
            }
        }
    }

    fn take_up(&self) {
        let coming = Coming::begin(self);
        for BuiltinDriver(make) in inventory::iter::<BuiltinDriver> {
            let driver = NamedDriver::new(foreign::call(make));
            self.drivers.lock().known.push(driver);
        }
        coming.end();
    }
}

fn takes_up() -> bool {
    TAKES_UP.try_with(Cell::get).unwrap_or(false)
}

/// The taking up; begun anew by the next one who asks if it panics.
struct Coming<'a> {
    registry: &'a Registry,
    /// How many drivers there were before.
    before: usize,
    ends_as: Builtin,
}

impl<'a> Coming<'a> {
    fn begin(registry: &'a Registry) -> Self {
        let _ = TAKES_UP.try_with(|takes_up| takes_up.set(true));
        let before = registry.drivers.lock().known.len();
        Self { registry, before, ends_as: Builtin::Waiting }
    }

    fn end(mut self) {
        self.ends_as = Builtin::There;
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let _ = TAKES_UP.try_with(|takes_up| takes_up.set(false));
        let mut drivers = self.registry.drivers.lock();
        drivers.builtin = self.ends_as;
        let all = drivers.known.len();
        let kept = if self.ends_as == Builtin::There { all } else { self.before };
        let unfinished = drivers.known.split_off(kept.min(all));
        drop(drivers);
        self.registry.taken_up.notify_all();
        // Their own code.
        drop(unfinished);
    }
}

fn known_drivers() -> Vec<NamedDriver> {
    if fork::is_child() {
        return Vec::new();
    }
    registry().drivers().known.clone()
}

/// A driver may have to look at its devices to say how good it is: only those who ask for an order pay for that.
fn by_preference() -> Vec<NamedDriver> {
    let mut drivers = known_drivers();
    drivers.sort_by_cached_key(|known| std::cmp::Reverse(known.preference()));
    drivers
}

/// The driver of a device that is there.
pub(crate) fn find_device(id: DeviceId) -> Result<Arc<dyn Driver>> {
    let known = find_driver(id.driver())?;
    match known.devices()? {
        count if id.ordinal() >= count => Err(Error::NoSuchDevice { device: id, count }),
        _ => Ok(known.driver),
    }
}

fn find_driver(name: &str) -> Result<NamedDriver> {
    let drivers = known_drivers();
    let known = drivers.iter().find(|known| known.name == name);
    known.cloned().ok_or_else(|| Error::UnknownDriver {
        name: name.to_owned(),
        known: drivers.iter().map(|driver| driver.name).collect::<Vec<_>>().join(", "),
    })
}
