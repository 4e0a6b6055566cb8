//! The devices that all threads share, and the look at what is left of them.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use libtest_mimic::Failed;
use transship::{Alignment, Device, DeviceId};

use crate::required::required;
use crate::strangers::Strangers;

/// Small ones, so that copies wait for blocks of each other and results go without; which of them, the seed says.
const STAGING_BUDGETS: [usize; 3] = [256 << 10, 2 << 20, 768 << 10];
const RESULT_BUDGETS: [usize; 2] = [1 << 20, 4 << 20];
/// Longer than anything takes to be given back.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Arena {
    /// Where tensors go: the host, and up to two devices.
    pub(crate) places: Vec<Device>,
    late: Option<LateHandle>,
    staging_budget: usize,
    result_budget: usize,
    /// Device memory of each place before the first copy.
    before: Vec<u64>,
    leaks: u64,
    pub(crate) strangers: Arc<Strangers>,
}

/// Why a backend cannot be soaked here, if it cannot.
pub(crate) fn reason_to_ignore(name: &str) -> Option<String> {
    if name == "host" || config(name).is_some() || required().iter().any(|device| device.id.driver() == name)
    {
        return None;
    }
    let driver = transship::drivers().into_iter().find(|driver| driver.name == name)?;
    match (driver.devices, driver.unavailable) {
        (_, Some(error)) => Some(error.to_string()),
        (0, None) => Some(format!("driver {name} has no device here")),
        _ => None,
    }
}

fn config(name: &str) -> Option<LateConfig> {
    let usual = LateConfig { devices: 2, seed: Some(7), ..LateConfig::new("late") };
    let alignment = |bytes| Alignment::new(bytes).unwrap();
    match name {
        "late" => Some(usual),
        "late-map" => Some(LateConfig {
            copy_granularity: alignment(4),
            bindable_alignment: alignment(32),
            mapped_staging: true,
            peers: false,
            waits_for_others: false,
            largest_strided: 1 << 20,
            ..usual
        }),
        "late-far" => {
            Some(LateConfig { peers: false, gather: Some(24), copy_granularity: alignment(4), ..usual })
        }
        _ => None,
    }
}

/// Lets go of the devices; nobody else may hold one any more.
pub(crate) fn close(arena: Arc<Arena>) -> Result<(), Failed> {
    let backends: Vec<_> = arena.places[1..].iter().map(|device| Arc::downgrade(device.backend())).collect();
    drop(arena);
    let are_gone = || backends.iter().all(|backend| backend.strong_count() == 0);
    if eventually(are_gone) { Ok(()) } else { Err("somebody still holds a device".into()) }
}

fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

impl Arena {
    pub(crate) fn open(name: &'static str, seed: u64) -> Result<Self, Failed> {
        let staging_budget = STAGING_BUDGETS[(seed % 3) as usize];
        let result_budget = RESULT_BUDGETS[(seed % 2) as usize];
        let late = config(name).map(LateHandle::new).transpose()?;
        let mut places = vec![Device::host()];
        match &late {
            Some(late) => {
                for ordinal in 0..2 {
                    places.push(Device::from_backend(late.backend(ordinal))?);
                }
            }
            None if name == "host" => {}
            None => {
                let there = transship::drivers().into_iter().find(|driver| driver.name == name);
                for ordinal in 0..there.map_or(1, |driver| driver.devices.clamp(1, 2)) {
                    places.push(Device::open(DeviceId::new(name, ordinal)?)?);
                }
            }
        }
        for device in &places[1..] {
            device.set_staging_budget(staging_budget)?;
            device.set_result_budget(result_budget)?;
        }
        let before = places.iter().map(|device| device.counters().device_bytes).collect();
        let (leaks, strangers) = (transship::runtime_stats().leaks, Strangers::new());
        Ok(Self { places, late, staging_budget, result_budget, before, leaks, strangers })
    }

    /// A simulated device notes each call, of which there are too many here.
    pub(crate) fn forget_calls(&self) {
        if let Some(late) = &self.late {
            late.clear_calls();
        }
    }

    /// Nothing is in flight, all memory was given back, nothing was touched too early or too late.
    pub(crate) fn finish(&self) -> Result<(), Failed> {
        // They use the devices.
        let gone = eventually(|| self.strangers.are_gone());
        match self.strangers.look() {
            (_, failures) if !failures.is_empty() => return Err(failures.join("; ").into()),
            (left, _) if !gone => return Err(format!("never dropped: {left:?}").into()),
            _ => {}
        }
        for device in &self.places[1..] {
            device.synchronize()?;
            device.drain()?;
        }
        if !eventually(|| self.is_empty()) {
            return Err(format!("not all memory was given back within {PATIENCE:?}\n{self}").into());
        }
        for device in &self.places[1..] {
            let (staging, results) = (device.staging_usage(), device.result_usage());
            let most = device.counters().staging_high_water as usize;
            if staging.high_water > self.staging_budget
                || results.high_water > self.result_budget
                || most > self.staging_budget + self.result_budget
            {
                return Err(format!(
                    "{} went above its budgets: {staging:?} {results:?} {most}",
                    device.id()
                )
                .into());
            }
        }
        let given_up = transship::runtime_stats().leaks - self.leaks;
        if given_up > 0 {
            return Err(format!("memory in flight was given up {given_up} times").into());
        }
        match self.late.as_ref().map(|late| (late.pending(), late.violations())) {
            Some((pending, found)) if pending > 0 || !found.is_empty() => {
                Err(format!("{pending} copies are pending; breaches: {found:?}").into())
            }
            _ => Ok(()),
        }
    }

    /// Whether the devices hold nothing any more. Workers let go of abandoned copies when they come to it, and that memory goes
    /// when its streams come by: simulated ones move only while somebody looks.
    fn is_empty(&self) -> bool {
        self.places.iter().zip(&self.before).skip(1).all(|(device, before)| {
            device.trim();
            let in_use = device.staging_usage().in_use + device.result_usage().in_use;
            let counters = device.counters();
            let is_still = device.backend().synchronize().is_ok();
            is_still && in_use == 0 && counters.staging_bytes == 0 && counters.device_bytes <= *before
        })
    }
}

impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.places {
            let (staging, results) = (device.staging_usage(), device.result_usage());
            writeln!(
                f,
                "{}: staging {staging:?}, results {results:?}, {:?}",
                device.id(),
                device.counters()
            )?;
        }
        if let Some(late) = &self.late {
            writeln!(f, "{} copies pending, breaches {:?}", late.pending(), late.violations())?;
        }
        writeln!(f, "owners and wakers left, and what failed: {:?}", self.strangers.look())?;
        write!(f, "{:?}", transship::runtime_stats())
    }
}
