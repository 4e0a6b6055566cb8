//! `transship devices`: what there is.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fmt, panic, thread};

use serde::Serialize;
use transship::{Device, DeviceId, DeviceProperties, Result};

use crate::drivers::{self, DriverState};
use crate::sizes::Size;

/// What there is.
#[derive(Serialize)]
pub(crate) struct Listing {
    drivers: Vec<DriverState>,
    devices: Vec<DeviceState>,
    links: Vec<Link>,
}

#[derive(Serialize)]
struct DeviceState {
    id: String,
    name: Option<String>,
    driver: Option<String>,
    uuid: Option<String>,
    pci: Option<String>,
    compute_capability: Option<String>,
    host_node: Option<u32>,
    /// Of the device, whoever uses it, in bytes.
    free_memory: Option<u64>,
    total_memory: Option<u64>,
    /// The same hardware under other names.
    same_as: Vec<String>,
    /// Why it cannot be used.
    error: Option<String>,
}

/// How copies get from one device to another one.
#[derive(Serialize)]
struct Link {
    to: String,
    from: String,
    /// And not over the host; `None` where the driver cannot tell.
    direct: Option<bool>,
}

impl Listing {
    /// `None` if that takes more than so many seconds: on a thread of its own, since drivers may never answer.
    pub(crate) fn of_this_machine_within(seconds: u32) -> Option<Self> {
        let (says, said) = channel();
        let lists = thread::spawn(move || drop(says.send(Self::of_this_machine())));
        match said.recv_timeout(Duration::from_secs(seconds.into())) {
            Err(RecvTimeoutError::Disconnected) => {
                lists.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
                None
            }
            listed => listed.ok(),
        }
    }

    fn of_this_machine() -> Self {
        let ids = Device::list();
        let properties: Vec<_> = ids.iter().map(|id| Device::properties_of(*id)).collect();
        let same = |this: usize| {
            let twins = (0..ids.len()).filter(move |other| *other != this);
            twins
                .filter(|other| are_same(&properties[this], &properties[*other]))
                .map(|other| ids[other].to_string())
                .collect()
        };
        let devices =
            (0..ids.len()).map(|this| DeviceState::new(ids[this], &properties[this], same(this))).collect();
        Self { drivers: drivers::all(), devices, links: links(&ids) }
    }

    /// Whether every device that is there can be used. A driver that is not there is no fault.
    pub(crate) fn is_healthy(&self) -> bool {
        self.devices.iter().all(|device| device.error.is_none())
    }
}

impl DeviceState {
    fn new(id: DeviceId, properties: &Result<DeviceProperties>, same_as: Vec<String>) -> Self {
        let memory = Device::open(id).and_then(|device| device.memory());
        let error = properties.as_ref().err().or(memory.as_ref().err()).map(ToString::to_string);
        let (known, memory) = (properties.as_ref().ok(), memory.unwrap_or_default());
        Self {
            id: id.to_string(),
            name: known.map(|known| known.name.clone()),
            driver: known.and_then(|known| known.driver.clone()),
            uuid: known.and_then(|known| known.uuid).map(|uuid| uuid.to_string()),
            pci: known.and_then(|known| known.pci).map(|pci| pci.to_string()),
            compute_capability: known
                .and_then(|known| known.compute_capability)
                .map(|(major, minor)| format!("{major}.{minor}")),
            host_node: known.and_then(|known| known.host_node),
            free_memory: memory.free,
            total_memory: memory.total.or(known.and_then(|known| known.total_memory)),
            same_as,
            error,
        }
    }

    /// What is known, in a few words each.
    fn facts(&self) -> Vec<String> {
        let fact = |name: &str, known: &Option<String>| known.as_ref().map(|known| format!("{name}{known}"));
        let node = self.host_node.map(|node| node.to_string());
        let same = (!self.same_as.is_empty()).then(|| self.same_as.join(" and "));
        let facts = [
            fact("", &self.driver),
            fact("capability ", &self.compute_capability),
            fact("PCI ", &self.pci),
            fact("on host node ", &node),
            fact("UUID ", &self.uuid),
            fact("the same hardware as ", &same),
        ];
        facts.into_iter().flatten().collect()
    }
}

fn are_same(one: &Result<DeviceProperties>, other: &Result<DeviceProperties>) -> bool {
    let both = one.as_ref().ok().zip(other.as_ref().ok());
    both.and_then(|(one, other)| one.is_same_hardware(other)) == Some(true)
}

/// Between any two devices but the host, to and from which every copy goes straight.
fn links(ids: &[DeviceId]) -> Vec<Link> {
    let devices = || ids.iter().copied().filter(|id| !id.is_host());
    let pairs =
        devices().flat_map(|to| devices().filter(move |from| *from != to).map(move |from| (to, from)));
    let link = |(to, from): (DeviceId, DeviceId)| Link {
        to: to.to_string(),
        from: from.to_string(),
        direct: Device::reaches(to, from).ok(),
    };
    pairs.map(link).collect()
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "drivers")?;
        for DriverState { name, devices, missing, .. } in &self.drivers {
            match missing {
                None => writeln!(f, "  {name:<8}{devices} device{}", if *devices == 1 { "" } else { "s" })?,
                Some(missing) => writeln!(f, "  {name:<8}{missing}")?,
            }
        }
        writeln!(f, "devices")?;
        self.devices.iter().try_for_each(|device| writeln!(f, "{device}"))?;
        if !self.links.is_empty() {
            writeln!(f, "copies between devices")?;
        }
        for Link { to, from, direct } in &self.links {
            let way = match direct {
                Some(true) => "directly",
                Some(false) => "over the host",
                None => "unknown",
            };
            writeln!(f, "  {from} to {to}: {way}")?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<8}{}", self.id, self.name.as_deref().unwrap_or("unknown"))?;
        for fact in self.facts() {
            write!(f, "\n          {fact}")?;
        }
        match (self.free_memory, self.total_memory) {
            (Some(free), Some(total)) => write!(f, "\n          {} of {} free", Size(free), Size(total))?,
            (None, Some(total)) => write!(f, "\n          {}", Size(total))?,
            _ => {}
        }
        match &self.error {
            Some(error) => write!(f, "\n          cannot be used: {error}"),
            None => Ok(()),
        }
    }
}
