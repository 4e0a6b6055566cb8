//! The host: what memory it lets this process have and lock, where that lies, and in which pages.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use transship::{Device, DeviceId};

use crate::finding::{Check, Finding, Level};
use crate::sizes::Size;
use crate::system::System;
use crate::within;

/// What staging may lock by default.
const STAGING: u64 = 64 << 20;
/// With less, results hardly get locked memory: their budget is a 32nd of it.
const LITTLE_MEMORY: u64 = 2 << 30;
const LITTLE_FREE: u64 = 512 << 20;

/// Looks at all of these, and asks the devices that are `there` for `limit` at most.
pub(crate) fn check(system: &System, there: &[DeviceId], limit: Duration) -> Vec<Finding> {
    let memory = Device::host().memory().unwrap_or_default();
    let mut findings = vec![
        locked_memory(locked_limit()),
        host_memory(memory.free, memory.total, machine(system)),
        huge_pages(system.read("sys/kernel/mm/transparent_hugepage/enabled").as_deref()),
    ];
    let allowed = allowed_nodes(system);
    let node = |id, says: &Sender<_>| {
        let node = Device::properties_of(id).ok().and_then(|known| known.host_node);
        says.send((id, node)).unwrap_or_default();
    };
    // What does not answer is found when it is copied to.
    let nodes: BTreeMap<_, _> =
        within::each(there.to_vec(), Instant::now() + limit, node).into_iter().collect();
    for id in there {
        let node = nodes.get(id).copied().flatten();
        findings.extend(node.map(|node| host_node(node, &allowed).of(id)));
    }
    findings
}

/// The limit in bytes; `None` for none.
#[cfg(unix)]
fn locked_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(not(unix))]
fn locked_limit() -> Option<u64> {
    None
}

fn locked_memory(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::new(Level::Ok, Check::LockedMemory, "no limit"),
        Some(limit) if limit >= STAGING => {
            Finding::new(Level::Ok, Check::LockedMemory, format!("up to {}", Size(limit)))
        }
        Some(limit) => {
            let what = format!(
                "the limit is {}, and staging wants {}; NVIDIA's driver does not heed it",
                Size(limit),
                Size(STAGING)
            );
            let cure = "ulimit -l unlimited; for a container, docker run --ulimit memlock=-1; for a service, LimitMEMLOCK=infinity";
            Finding::new(Level::Warning, Check::LockedMemory, what).cure(cure)
        }
    }
}

fn host_memory(free: Option<u64>, total: Option<u64>, machine: Option<u64>) -> Finding {
    let (Some(free), Some(total)) = (free, total) else {
        return Finding::new(Level::Note, Check::HostMemory, "this system does not say how much there is");
    };
    let limited = machine.filter(|machine| *machine > total);
    let of = limited
        .map_or_else(String::new, |machine| format!(" that its container may use, of {}", Size(machine)));
    let what = format!("{} of {}{of} are free", Size(free), Size(total));
    match total < LITTLE_MEMORY || free < LITTLE_FREE {
        false => Finding::new(Level::Ok, Check::HostMemory, what),
        true => {
            let cure = match limited {
                Some(_) => "raise the memory limit of the container: locked memory counts",
                None => {
                    "lower the budgets (Device::set_staging_budget, set_result_budget), or end other programs"
                }
            };
            Finding::new(Level::Warning, Check::HostMemory, what).cure(cure)
        }
    }
}

/// All memory of the machine.
fn machine(system: &System) -> Option<u64> {
    let text = system.read("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(|kibibytes: u64| kibibytes << 10)
}

/// `always [madvise] never`.
fn huge_pages(setting: Option<&str>) -> Finding {
    let chosen =
        setting.and_then(|setting| setting.split_once('[')?.1.split_once(']')).map(|(chosen, _)| chosen);
    match chosen {
        None => Finding::new(Level::Note, Check::HugePages, "this system has no setting for them"),
        Some("never") => {
            let what = "transparent huge pages are never used: large locked blocks take longer to get";
            let cure = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root";
            Finding::new(Level::Warning, Check::HugePages, what).cure(cure)
        }
        Some(chosen) => Finding::new(Level::Ok, Check::HugePages, format!("transparent ones: {chosen}")),
    }
}

/// The nodes whose memory this process may have; empty where that is not known.
fn allowed_nodes(system: &System) -> Vec<u32> {
    let status = system.read("proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    list.map_or_else(Vec::new, |list| list.trim().split(',').filter_map(range).flatten().collect())
}

/// `3` or `0-3`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn host_node(node: u32, allowed: &[u32]) -> Finding {
    match allowed.is_empty() || allowed.contains(&node) {
        true => Finding::new(Level::Ok, Check::HostNode, format!("it is plugged in at node {node}")),
        false => {
            let what = format!(
                "it is plugged in at node {node}, of which this process may use no memory: copies take the longer way"
            );
            let cure =
                format!("numactl --cpunodebind={node} --membind={node}; for a container, --cpuset-mems");
            Finding::new(Level::Warning, Check::HostNode, what).cure(cure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::system;

    #[test]
    fn a_low_limit_of_locked_memory_is_a_warning() {
        let levels = [None, Some(STAGING), Some(8 << 20)].map(|limit| locked_memory(limit).level);
        assert_eq!(levels, [Level::Ok, Level::Ok, Level::Warning]);
        assert!(locked_memory(Some(8 << 20)).what.contains("8.0 MiB"));
    }

    #[test]
    fn a_container_with_little_memory_is_a_warning() {
        let found = host_memory(Some(600 << 20), Some(1 << 30), Some(64 << 30));
        assert_eq!(found.level, Level::Warning);
        assert!(
            found.what.contains("of 64.0 GiB") && found.cure.is_some_and(|cure| cure.contains("container"))
        );
        let (_root, machine_of) = system(&[("proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\n")]);
        assert_eq!(machine(&machine_of), Some(64 << 30));
        let enough = host_memory(Some(32 << 30), Some(64 << 30), Some(64 << 30));
        assert_eq!((enough.level, enough.what.contains("container")), (Level::Ok, false));
        assert_eq!(host_memory(None, None, None).level, Level::Note);
    }

    #[test]
    fn huge_pages_should_not_be_off() {
        let settings = [Some("always [madvise] never\n"), Some("always madvise [never]\n"), Some("x"), None];
        let levels = settings.map(|setting| huge_pages(setting).level);
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Note, Level::Note]);
    }

    #[test]
    fn a_device_at_a_node_that_is_not_allowed_is_a_warning() {
        let (_root, bound) =
            system(&[("proc/self/status", "Name:\tx\nMems_allowed:\t1\nMems_allowed_list:\t0,2-3\n")]);
        let allowed = allowed_nodes(&bound);
        assert_eq!(allowed, [0, 2, 3]);
        let levels = [0, 1, 3].map(|node| host_node(node, &allowed).level);
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Ok]);
        assert_eq!(host_node(1, &[]).level, Level::Ok);
    }
}
