//! `transship devices`: what there is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde::Serialize;
use transship::{Device, DeviceId, DeviceMemory, DeviceProperties, Result};

use crate::drivers::{self, DriverState};
use crate::sizes::Size;
use crate::within;

/// What there is.
#[derive(Serialize)]
pub(crate) struct Listing {
    drivers: Vec<DriverState>,
    devices: Vec<DeviceState>,
    links: Vec<Link>,
    /// What was asked and has not answered in time: drivers, devices, and pairs of devices.
    pub(crate) unanswered: Vec<String>,
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

/// What the thread that asks a driver says.
enum Said {
    Driver(DriverState),
    Properties(DeviceId, Result<DeviceProperties>),
    Memory(DeviceId, Result<DeviceMemory>),
}

impl Listing {
    /// What drivers and devices say within `limit`.
    pub(crate) fn of_this_machine_within(limit: Duration) -> Self {
        let begin = Instant::now();
        // Those who do not answer leave some time for what is between the others.
        let mut listing = Self::of(within::each(drivers::compiled_in(), begin + limit * 9 / 10, ask));
        let answered = listing.devices.iter().filter(|device| device.error.is_none());
        let ids: Vec<DeviceId> = answered.filter_map(|device| device.id.parse().ok()).collect();
        listing.add_links(&ids, within::each([pairs(&ids)], begin + limit, ask_links));
        listing
    }

    fn of(said: Vec<Said>) -> Self {
        let (mut answered, mut properties, mut memory) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for said in said {
            match said {
                Said::Driver(driver) => answered.push(driver),
                Said::Properties(id, known) => drop(properties.insert(id, known)),
                Said::Memory(id, known) => drop(memory.insert(id, known)),
            }
        }
        let drivers = drivers::all_of(answered);
        let (mut devices, mut unanswered) = (Vec::new(), Vec::new());
        for driver in &drivers {
            let mut silent = None;
            for id in driver.ids() {
                let mut device = DeviceState::new(id, &properties, memory.get(&id));
                if !memory.contains_key(&id) {
                    // Those behind it were not asked.
                    device.error = Some(match silent.get_or_insert(id) {
                        first if *first == id => "it does not answer".to_owned(),
                        first => format!("not asked: {first} does not answer"),
                    });
                }
                devices.push(device);
            }
            unanswered.extend((!driver.answers).then(|| driver.name.to_owned()));
            unanswered.extend(silent.map(|id| id.to_string()));
        }
        Self { drivers, devices, links: Vec::new(), unanswered }
    }

    fn add_links(&mut self, ids: &[DeviceId], said: Vec<Link>) {
        let silent = pairs(ids).into_iter().nth(said.len());
        self.unanswered.extend(silent.map(|(to, from)| format!("{from} to {to}")));
        self.links = said;
    }

    /// Whether every device that is there can be used, and all have answered. A driver that is not there is no fault.
    pub(crate) fn is_healthy(&self) -> bool {
        self.unanswered.is_empty() && self.devices.iter().all(|device| device.error.is_none())
    }
}

/// Who hears it may have gone on.
fn ask(driver: &'static str, says: &Sender<Said>) {
    let driver = DriverState::asked(driver);
    let ids = driver.ids();
    drop(says.send(Said::Driver(driver)));
    for id in ids {
        drop(says.send(Said::Properties(id, Device::properties_of(id))));
        let memory = Device::open(id).and_then(|device| device.memory());
        drop(says.send(Said::Memory(id, memory)));
    }
}

impl DeviceState {
    /// What is known of it, by what was said of all.
    fn new(
        id: DeviceId,
        all: &BTreeMap<DeviceId, Result<DeviceProperties>>,
        memory: Option<&Result<DeviceMemory>>,
    ) -> Self {
        let (properties, failed) = (all.get(&id), memory.and_then(|memory| memory.as_ref().err()));
        let error = properties.and_then(|known| known.as_ref().err()).or(failed).map(ToString::to_string);
        let known = properties.and_then(|known| known.as_ref().ok());
        let memory = memory.and_then(|memory| memory.as_ref().ok().copied()).unwrap_or_default();
        let twins = all.iter().filter(|(other, others)| {
            **other != id && properties.is_some_and(|properties| are_same(properties, others))
        });
        let same_as = twins.map(|(other, _)| other.to_string()).collect();
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

/// Any two devices but the host, to and from which every copy goes straight.
fn pairs(ids: &[DeviceId]) -> Vec<(DeviceId, DeviceId)> {
    let devices = || ids.iter().copied().filter(|id| !id.is_host());
    devices().flat_map(|to| devices().filter(move |from| *from != to).map(move |from| (to, from))).collect()
}

fn ask_links(pairs: Vec<(DeviceId, DeviceId)>, says: &Sender<Link>) {
    for (to, from) in pairs {
        let direct = Device::reaches(to, from).ok();
        drop(says.send(Link { to: to.to_string(), from: from.to_string(), direct }));
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn driver(name: &'static str, devices: usize) -> Said {
        Said::Driver(DriverState { name, compiled_in: true, answers: true, devices, missing: None })
    }

    fn id(name: &str, ordinal: usize) -> DeviceId {
        DeviceId::new(name, ordinal).unwrap()
    }

    fn properties(id: DeviceId) -> Said {
        Said::Properties(id, Device::properties_of(DeviceId::HOST))
    }

    /// By hand: where only devices that were asked are listed, those that say nothing are missed.
    #[test]
    fn what_has_answered_is_listed_with_who_has_not() {
        let [first, second] = [0, 1].map(|ordinal| id("hip", ordinal));
        let memory = |id| Said::Memory(id, Device::host().memory());
        let said =
            [driver("host", 1), driver("hip", 3), properties(first), memory(first), memory(DeviceId::HOST)];
        let said = said.into_iter().chain([properties(second)]).collect();
        let mut listing = Listing::of(said);
        let listed = |id: &str| listing.devices.iter().find(|device| device.id == id).unwrap();
        assert!(listed("host").error.is_none() && listed("hip:0").error.is_none());
        assert!(listed("hip:1").name.is_some() && listed("hip:2").name.is_none());
        assert_eq!(listed("hip:1").error.as_deref(), Some("it does not answer"));
        assert_eq!(listed("hip:2").error.as_deref(), Some("not asked: hip:1 does not answer"));
        let compiled_in = |name: &str| drivers::compiled_in().any(|driver| driver == name);
        let silent = ["cuda", "wgpu"].into_iter().filter(|name| compiled_in(name));
        let mut expected: Vec<&str> = silent.chain(["hip:1"]).collect();
        let mut unanswered = listing.unanswered.clone();
        unanswered.sort_unstable();
        expected.sort_unstable();
        assert_eq!(unanswered, expected);
        assert!(!listing.is_healthy() && listing.to_string().contains("hip:2   unknown\n"), "{listing}");
        let ids = [0, 1].map(|ordinal| id("cuda", ordinal));
        let link = Link { to: "cuda:0".to_owned(), from: "cuda:1".to_owned(), direct: Some(true) };
        listing.add_links(&ids, vec![link]);
        assert_eq!(listing.unanswered.last().map(String::as_str), Some("cuda:0 to cuda:1"));
    }
}
