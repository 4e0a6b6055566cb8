//! Pinned memory is asked of the node that its device is plugged in at, and workers run there. No second node is needed: which ones there are
//! is read from files of the test, and the system is asked what it was told.

#![cfg(all(target_os = "linux", not(any(miri, shuttle))))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/hooked.rs"]
mod hooked;
#[path = "../../tests/support/machine.rs"]
mod machine;
mod support;

use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fs, ptr, thread};

use hooked::Hooked;
use late_backend::{LateConfig, LateHandle};
use libc::{c_int, c_ulong};
use machine::Machine;
use support::{bytes_of, no_violations};
use transship_core::fill::Filler;
use transship_core::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, Tensor, TimedWait, start_copy,
    start_copy_to_all,
};

const LONG: Duration = Duration::from_secs(30);
/// What no machine of tests has.
const ABSENT_PROCESSOR: usize = 1000;

/// A machine of two nodes: one that is there, with the first processor, and another one with the others.
struct TwoNodes {
    machine: Machine,
    /// The node that is there.
    present: u32,
    /// The node of the files alone.
    absent: u32,
    /// What threads of the test may run on.
    allowed: Vec<usize>,
}

impl TwoNodes {
    fn new() -> Self {
        let (present, allowed) = (first_node(), processors());
        let absent = if present == 0 { 1 } else { 0 };
        let others: Vec<_> = allowed[1..].iter().chain([&ABSENT_PROCESSOR]).map(usize::to_string).collect();
        let nodes = [(present, &*allowed[0].to_string()), (absent, &*others.join(","))];
        Self { machine: Machine::with_nodes(&nodes), present, absent, allowed }
    }
}

/// The first device of a simulated driver, on a machine.
fn device_on(machine: &Machine, config: LateConfig) -> (LateHandle, Arc<Hooked>, Device) {
    let late = LateHandle::new(config).unwrap();
    let (hooked, device) = open(machine, &late, 0);
    (late, hooked, device)
}

fn open(machine: &Machine, late: &LateHandle, ordinal: usize) -> (Arc<Hooked>, Device) {
    let hooked = Hooked::new(late.backend(ordinal));
    let device = Device::from_backend_below(machine.root(), hooked.clone()).unwrap();
    (hooked, device)
}

/// A simulated device at a node.
fn at(node: u32) -> LateConfig {
    LateConfig { host_nodes: if node == 0 { &[0] } else { &[1] }, ..LateConfig::new("late") }
}

/// How the system chooses new pages of this thread, and the first nodes that it was told; `None` where a thread may not ask.
fn policy() -> Option<(c_int, c_ulong)> {
    let (mut policy, mut nodes) = (0, [0 as c_ulong; 16]);
    // SAFETY: the policy and 1024 bits of nodes are written to locals.
    let status = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut policy,
            nodes.as_mut_ptr(),
            1025_usize,
            ptr::null::<u8>(),
            0_usize,
        )
    };
    (status == 0).then_some((policy, nodes[0]))
}

/// Sets that of this thread.
fn set_policy(policy: c_int, nodes: c_ulong) {
    let nodes = [nodes];
    // SAFETY: 64 bits of nodes are read.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, nodes.as_ptr(), 65_usize) };
    assert_eq!(status, 0);
}

/// What the system is told while a block at `node` is allocated: nothing where threads may not tell it, as in some containers.
fn preferring(node: u32) -> Option<(c_int, c_ulong)> {
    policy().map(|_| (libc::MPOL_PREFERRED, 1 << node))
}

/// The first node whose memory this process may use, of the two that the files of a test may name.
fn first_node() -> u32 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let first = list.unwrap_or("0").trim().split(['-', ',']).next().unwrap().parse().unwrap();
    assert!(first < 2, "this test is made for machines that give it memory of node 0 or 1");
    first
}

/// What this thread may run on.
fn processors() -> Vec<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

/// What `look` comes to where `hooked` next allocates staging memory, while `work` runs.
fn during<T: Send + 'static>(hooked: &Hooked, look: fn() -> T, work: impl FnOnce()) -> T {
    let (sender, receiver) = mpsc::channel();
    hooked.before_next_allocate_staging(move || sender.send(look()).unwrap());
    work();
    receiver.recv_timeout(LONG).unwrap()
}

/// The name of the thread that submits the next copy to `hooked`, and what it may run on.
fn next_submitter(hooked: &Hooked) -> mpsc::Receiver<(Option<String>, Vec<usize>)> {
    let (sender, receiver) = mpsc::channel();
    hooked.before_next_submit(move || {
        let name = thread::current().name().map(str::to_owned);
        sender.send((name, processors())).unwrap();
    });
    receiver
}

fn by_workers() -> CopyOptions {
    CopyOptions::default().background(BackgroundWork::Always)
}

fn done<S: transship_core::TensorTree>(copy: CopyHandle<S>) -> S {
    match copy.wait_timeout(LONG).unwrap() {
        TimedWait::Done(copied) => copied,
        TimedWait::Pending(_) => panic!("it does not come to its end"),
    }
}

/// Mutants: blocks are allocated anywhere (400), those that the program fills are (409).
#[test]
fn pinned_memory_is_asked_of_the_node_of_its_device() {
    let nodes = TwoNodes::new();
    let (late, hooked, device) = device_on(&nodes.machine, at(nodes.present));
    assert_eq!(device.staging_node(), Some(nodes.present));
    let (before, expected) = (policy(), preferring(nodes.present));

    let staging = during(&hooked, policy, || device.prepare(1 << 20).unwrap());
    let result = during(&hooked, policy, || drop(Tensor::empty_pinned(&[4 << 20], DType::U8, &device)));
    let filler = Filler::new(&device, 1 << 20).unwrap();
    let filled = during(&hooked, policy, || drop(filler.block().unwrap()));
    assert_eq!([staging, result, filled], [expected; 3]);
    assert_eq!(policy(), before, "the policy of the caller's thread is another one");
    no_violations(&late);
}

/// Mutant: the policy stays when an allocation is over (401).
#[test]
fn an_allocation_that_fails_leaves_the_policy_as_it_was() {
    let nodes = TwoNodes::new();
    let (_, hooked, device) =
        device_on(&nodes.machine, LateConfig { staging_memory: 0, ..at(nodes.present) });
    let before = policy();
    let asked = during(&hooked, policy, || {
        let refused = device.prepare(1 << 20).unwrap_err();
        assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    });
    assert_eq!(asked, preferring(nodes.present));
    assert_eq!(policy(), before);

    hooked.before_next_allocate_staging(|| panic!("on purpose"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.prepare(1 << 20)));
    assert!(panic.is_err());
    assert_eq!(policy(), before);
}

/// Mutant: the policy of the program is overruled (402).
#[test]
fn a_policy_of_the_program_stands() {
    let nodes = TwoNodes::new();
    let (_, hooked, device) = device_on(&nodes.machine, at(nodes.present));
    if policy().is_some() {
        set_policy(libc::MPOL_INTERLEAVE, 1 << nodes.present);
    }
    let before = policy();
    let during = during(&hooked, policy, || device.prepare(1 << 20).unwrap());
    assert_eq!((during, policy()), (before, before));
}

#[test]
fn a_node_that_the_system_refuses_is_left_alone() {
    let nodes = TwoNodes::new();
    let (_, hooked, device) = device_on(&nodes.machine, at(nodes.absent));
    assert_eq!(device.staging_node(), Some(nodes.absent));
    let before = policy();
    let during = during(&hooked, policy, || device.prepare(1 << 20).unwrap());
    let refused = Some((libc::MPOL_PREFERRED, 1 << nodes.absent));
    // Unless the machine has that node as well.
    assert!(during == before || during == refused, "{during:?}");
    assert_eq!((policy(), device.staging_usage().idle >= 1 << 20), (before, true));
}

/// Mutant: workers run anywhere (403).
#[test]
fn workers_run_on_processors_of_the_node_and_nobody_else_does() {
    let nodes = TwoNodes::new();
    let (late, hooked, device) = device_on(&nodes.machine, at(nodes.present));
    let submitter = next_submitter(&hooked);
    let copy = start_copy(Tensor::from(vec![7_u8; 3 << 20]), &device, by_workers()).unwrap();
    let copied = done(copy);
    let worker = submitter.recv_timeout(LONG).unwrap();
    assert_eq!(worker, (Some("transship-worker".to_owned()), vec![nodes.allowed[0]]));
    assert_eq!(processors(), nodes.allowed, "the caller's thread is bound");

    let submitter = next_submitter(&hooked);
    assert_eq!(bytes_of(&done(start_copy(copied, &Device::host(), by_workers()).unwrap())), [7; 3 << 20]);
    assert_eq!(submitter.recv_timeout(LONG).unwrap().1, [nodes.allowed[0]]);
    no_violations(&late);
}

/// Mutant: workers run at the node of the first device (405).
#[test]
fn workers_for_devices_of_two_nodes_run_anywhere() {
    let nodes = TwoNodes::new();
    let late = LateHandle::new(LateConfig { devices: 2, host_nodes: &[0, 1], ..LateConfig::new("late") });
    let late = late.unwrap();
    let ((hooked, device), (_, other)) = (open(&nodes.machine, &late, 0), open(&nodes.machine, &late, 1));
    assert_eq!((device.staging_node(), other.staging_node()), (Some(0), Some(1)));
    let submitter = next_submitter(&hooked);
    let tensor = Tensor::from(vec![7_u8; 3 << 20]);
    start_copy_to_all(tensor, &[device, other], by_workers()).unwrap().into_iter().for_each(|copy| {
        done(copy);
    });
    let worker = submitter.recv_timeout(LONG).unwrap();
    assert_eq!(worker, (Some("transship-worker".to_owned()), nodes.allowed.clone()));
    no_violations(&late);
}

/// Mutant: a machine with one node is one with several (406).
#[test]
fn a_machine_with_one_node_is_left_alone() {
    let machine = Machine::with_nodes(&[(0, "0-63")]);
    for config in [at(0), LateConfig::new("late")] {
        let (_, hooked, device) = device_on(&machine, config);
        assert_eq!(device.staging_node(), None);
        let before = policy();
        assert_eq!(during(&hooked, policy, || device.prepare(1 << 20).unwrap()), before);
        let submitter = next_submitter(&hooked);
        done(start_copy(Tensor::from(vec![7_u8; 3 << 20]), &device, by_workers()).unwrap());
        assert_eq!(submitter.recv_timeout(LONG).unwrap().1, processors());
    }
}

#[test]
fn a_device_whose_node_is_not_known_is_left_alone() {
    let nodes = TwoNodes::new();
    let nowhere = LateConfig { host_nodes: &[7], ..LateConfig::new("late") };
    for config in [LateConfig::new("late"), nowhere] {
        let (_, hooked, device) = device_on(&nodes.machine, config);
        assert_eq!(device.staging_node(), None);
        let before = policy();
        assert_eq!(during(&hooked, policy, || device.prepare(1 << 20).unwrap()), before);
    }
}
