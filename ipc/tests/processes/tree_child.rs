//! What a process does that trees are handed to, or that hands them over.

use std::env;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use transship_core::{CopyOptions, Device, Error, start_copy};
use transship_ipc::{Exporter, Imported, Importer, IpcError};

use crate::exported::pair;
use crate::support::{LONG, batch, compare, devices, like};

const PATH: &str = "TRANSSHIP_IPC_TEST_TREES";
const ROLE: &str = "TRANSSHIP_IPC_TEST_TREES_ROLE";
const DEVICE: &str = "TRANSSHIP_IPC_TEST_TREES_DEVICE";
const DIES: &str = "TRANSSHIP_IPC_TEST_TREES_DIES";
const STEP: &str = "TRANSSHIP_IPC_TEST_TREES_STEP";

/// The exit code of an exporter whose device shares no memory.
pub(crate) const UNSUPPORTED: i32 = 7;
/// That of a process whose tree came back.
pub(crate) const RELEASED: i32 = 8;

/// How many trees a child hands over.
pub(crate) const TREES: u64 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Exporter,
    Importer,
    /// Writes one tree after the other into windows.
    Writer,
    /// Writes one tree into a window until a stream is lost, and then into another one.
    Loser,
    /// Hands one tree to itself, and says by its exit code whether that comes back.
    Both,
}

/// Where in its work the process kills itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Connected,
    /// It has the tree, or has handed it over.
    There,
    /// A copy of it runs.
    Copying,
    Copied,
    /// It has let go of the tree, or the other process has.
    Released,
    /// It hands over the next tree, or waits for that, at any time meanwhile.
    Between,
}

impl Phase {
    pub(crate) const ALL: [Self; 6] =
        [Self::Connected, Self::There, Self::Copying, Self::Copied, Self::Released, Self::Between];
}

/// Where the process of this seed dies, if it dies in a phase. First in trees that come in memory of others, if such come.
pub(crate) fn phase(seed: u64) -> (Phase, u64) {
    (Phase::ALL[(seed % 6) as usize], (seed / 12 + 2) % TREES)
}

/// What is between the numbers of its trees: those of one process look alike, and come in memory that lasts, and those of another one do not.
pub(crate) fn step(seed: u64) -> u64 {
    if (seed / 6).is_multiple_of(2) { 9 } else { 1 }
}

/// This program as such a process, which dies in this phase of its so many-th tree.
pub(crate) fn spawn(path: &Path, role: Role, dies: Option<(Phase, u64)>) -> Process {
    Process(command(path, role, dies).spawn().unwrap())
}

/// The same with so much between the numbers of trees.
pub(crate) fn spawn_by(path: &Path, role: Role, dies: Option<(Phase, u64)>, step: u64) -> Process {
    Process(command(path, role, dies).env(STEP, step.to_string()).spawn().unwrap())
}

/// That, as an environment has it.
pub(crate) fn by(step: u64) -> (&'static str, String) {
    (STEP, step.to_string())
}

/// The same with trees on a device of CUDA, and what else its environment has.
pub(crate) fn spawn_on_device(
    path: &Path,
    role: Role,
    dies: Option<(Phase, u64)>,
    environment: &[(&str, String)],
) -> Process {
    let mut command = command(path, role, dies);
    if environment.iter().any(|(name, _)| *name != STEP) {
        // It says what fails there on demand.
        command.stderr(Stdio::null());
    }
    command.env(DEVICE, "cuda:0").envs(environment.iter().map(|(name, value)| (name, value)));
    Process(command.spawn().unwrap())
}

fn command(path: &Path, role: Role, dies: Option<(Phase, u64)>) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PATH, path).env(ROLE, format!("{role:?}")).stdin(Stdio::null());
    if let Some((phase, tree)) = dies {
        let phase = Phase::ALL.iter().position(|known| *known == phase).unwrap();
        command.env(DIES, format!("{phase} {tree}"));
    }
    command
}

/// Killed when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    pub(crate) fn join(self) {
        assert!(self.end().success());
    }

    /// The same for one that may fail.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn is_asked_for() -> bool {
    env::var_os(PATH).is_some()
}

pub(crate) fn run() {
    let path = env::var(PATH).unwrap();
    let device = match env::var(DEVICE) {
        Ok(device) => Device::open(device.parse().unwrap()).unwrap(),
        Err(_) => devices()[1].clone(),
    };
    let done = match env::var(ROLE).unwrap().as_str() {
        "Exporter" => export(&path, &device),
        "Importer" => import(&path, &device),
        "Writer" => write(&path, &device),
        "Loser" => lose_a_stream(&path, &device),
        _ => hand_to_itself(&path, &device),
    };
    match done {
        Ok(()) | Err(IpcError::PeerGone) => {}
        Err(IpcError::Tensors(Error::Unsupported { .. })) => exit(UNSUPPORTED),
        Err(error) => panic!("{error}"),
    }
}

fn export(path: &str, device: &Device) -> Result<(), IpcError> {
    let exporter = Exporter::bind(path)?;
    let mut connection = exporter.accept_within(LONG)?;
    die_in(Phase::Connected, 0);
    for number in 0..TREES {
        let tree = exported(own_step() * number, device);
        die_during(Phase::Between, number);
        let offer = connection.export(&tree)?;
        die_in(Phase::There, number);
        if number % 2 == 1 {
            offer.wait_released(LONG)?;
            die_in(Phase::Released, number);
        }
    }
    Ok(())
}

fn import(path: &str, device: &Device) -> Result<(), IpcError> {
    let mut importer = connect(Path::new(path), device);
    die_in(Phase::Connected, 0);
    let mut tree = 0;
    loop {
        die_during(Phase::Between, tree);
        let Some(there) = importer.next_within(LONG)? else { return Ok(()) };
        die_in(Phase::There, tree);
        let number = own_step() * tree;
        let copy = start_copy(tree_of(&there, number), device, CopyOptions::default()).unwrap();
        drop(there);
        die_in(Phase::Copying, tree);
        compare(copy.wait().unwrap(), number);
        die_in(Phase::Copied, tree);
        thread::sleep(Duration::from_micros(200));
        die_in(Phase::Released, tree);
        tree += 1;
    }
}

fn write(path: &str, device: &Device) -> Result<(), IpcError> {
    let mut importer = connect(Path::new(path), device);
    die_in(Phase::Connected, 0);
    for number in 0..TREES {
        let Some(mut turn) = importer.next_turn_within(LONG)? else { return Ok(()) };
        die_in(Phase::There, number);
        turn.put(&exported(number, device))?;
        die_in(Phase::Copied, number);
        turn.finish()?;
        die_in(Phase::Released, number);
    }
    // They are there until they were read.
    while let Some(turn) = importer.next_turn_within(LONG)? {
        turn.finish()?;
    }
    Ok(())
}

/// Where nothing fails on demand, both windows are written.
fn lose_a_stream(path: &str, device: &Device) -> Result<(), IpcError> {
    let mut importer = connect(Path::new(path), device);
    let mut turn = importer.next_turn_within(LONG)?.unwrap();
    let lost = (0..100).find_map(|_| turn.put(&batch(0)).err());
    match lost {
        None => turn.finish()?,
        Some(lost) => {
            let again = turn.put(&batch(0)).unwrap_err();
            assert!(
                matches!([&lost, &again], [Error::StreamLost { .. }, Error::StreamLost { .. }]),
                "{lost}; then {again}"
            );
            assert!(matches!(turn.finish(), Err(IpcError::WindowLost)));
        }
    }
    let mut turn = importer.next_turn_within(LONG)?.unwrap();
    turn.put(&batch(0))?;
    turn.finish()?;
    while importer.next_turn_within(LONG)?.is_some() {}
    Ok(())
}

fn hand_to_itself(path: &str, device: &Device) -> Result<(), IpcError> {
    let (mut connection, mut importer) = pair(Path::new(path), device);
    let offer = connection.export(&on(1, device))?;
    drop(importer.next_within(LONG)?);
    match offer.wait_released(Duration::from_millis(200)) {
        Ok(()) => exit(RELEASED),
        Err(_) => exit(0),
    }
}

/// Trees of CUDA lie on the device, all others on the host.
pub(crate) fn exported(number: u64, device: &Device) -> crate::support::Tree {
    match env::var_os(DEVICE) {
        Some(_) => on(number, device),
        None => batch(number),
    }
}

/// A batch on a device.
pub(crate) fn on(number: u64, device: &Device) -> crate::support::Tree {
    start_copy(batch(number), device, CopyOptions::default()).unwrap().wait().unwrap()
}

/// Connects once the exporter is there.
pub(crate) fn connect(path: &Path, device: &Device) -> Importer {
    let begin = std::time::Instant::now();
    loop {
        match Importer::connect(path, device) {
            Ok(importer) => return importer,
            Err(error) => assert!(begin.elapsed() < LONG, "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn tree_of(there: &Imported, number: u64) -> crate::support::Tree {
    let mut tree = like(number);
    there.put_into(&mut tree).unwrap();
    tree
}

/// What is between the numbers of the trees of this process.
fn own_step() -> u64 {
    env::var(STEP).map_or(1, |step| step.parse().unwrap())
}

fn die_in(phase: Phase, tree: u64) {
    if dies_in(phase, tree) {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

/// The same while what comes next is done.
fn die_during(phase: Phase, tree: u64) {
    if dies_in(phase, tree) {
        thread::spawn(|| {
            thread::sleep(Duration::from_micros(100));
            kill_process(getpid(), Signal::KILL).unwrap();
        });
    }
}

fn dies_in(phase: Phase, tree: u64) -> bool {
    let Ok(dies) = env::var(DIES) else { return false };
    let (in_phase, of_tree) = dies.split_once(' ').unwrap();
    Phase::ALL[usize::from_str(in_phase).unwrap()] == phase && of_tree.parse() == Ok(tree)
}
