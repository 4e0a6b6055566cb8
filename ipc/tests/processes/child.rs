//! What a loader process does.

use std::env;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use transship_ipc::{Feed, IpcError, Loader};

use crate::support::{batch, devices, options};

const PATH: &str = "TRANSSHIP_IPC_TEST_PATH";
const DIES: &str = "TRANSSHIP_IPC_TEST_DIES";
const POISON: &str = "TRANSSHIP_IPC_TEST_POISON";
const FEEDS: &str = "TRANSSHIP_IPC_TEST_FEEDS";
const SLOW: &str = "TRANSSHIP_IPC_TEST_SLOW";

/// Where in its work a loader kills itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Connected,
    Asked,
    HalfWritten,
    Written,
    HandedOver,
}

impl Phase {
    pub(crate) const ALL: [Self; 5] =
        [Self::Connected, Self::Asked, Self::HalfWritten, Self::Written, Self::HandedOver];
}

/// It dies in this phase of its so many-th batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dies {
    pub(crate) phase: Phase,
    pub(crate) batch: u64,
}

/// What a loader process is told.
pub(crate) fn environment(
    path: &str,
    dies: Option<Dies>,
    poison: Option<u64>,
) -> Vec<(&'static str, String)> {
    let dies = dies.map(|dies| {
        let phase = Phase::ALL.iter().position(|phase| *phase == dies.phase).unwrap();
        (DIES, format!("{phase} {}", dies.batch))
    });
    let poison = poison.map(|number| (POISON, number.to_string()));
    [(PATH, path.to_owned())].into_iter().chain(dies).chain(poison).collect()
}

/// It is no loader, but has a feed there.
pub(crate) fn feeds(path: &str) -> (&'static str, String) {
    (FEEDS, path.to_owned())
}

/// It takes so many milliseconds for each batch.
pub(crate) fn slow(milliseconds: u64) -> (&'static str, String) {
    (SLOW, milliseconds.to_string())
}

pub(crate) fn is_asked_for() -> bool {
    env::var_os(PATH).is_some() || env::var_os(FEEDS).is_some()
}

pub(crate) fn run() {
    if let Ok(path) = env::var(FEEDS) {
        return Feed::new(path, 0.., devices()[0], options()).unwrap().for_each(|there| drop(there.unwrap()));
    }
    match Loader::connect(env::var(PATH).unwrap()) {
        Ok(loader) => load(loader).unwrap(),
        // It came when all was done.
        Err(IpcError::PeerGone | IpcError::System { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

fn load(mut loader: Loader) -> Result<(), IpcError> {
    let dies = env::var(DIES).ok().map(|dies| {
        let (phase, batch) = dies.split_once(' ').unwrap();
        Dies { phase: Phase::ALL[usize::from_str(phase).unwrap()], batch: batch.parse().unwrap() }
    });
    let poison = env::var(POISON).ok().map(|number| number.parse::<u64>().unwrap());
    let slow = env::var(SLOW).map_or(Duration::ZERO, |slow| Duration::from_millis(slow.parse().unwrap()));
    die_if(dies.is_some_and(|dies| dies.phase == Phase::Connected));
    let mut count = 0;
    while let Some(job) = loader.next_job()? {
        let die = |phase| die_if(dies.is_some_and(|dies| (dies.phase, dies.batch) == (phase, count)));
        die_if(poison == Some(job.number()));
        die(Phase::Asked);
        thread::sleep(slow);
        let tree = batch(job.number());
        let mut place = job.in_place(&tree)?;
        for (index, (name, tensor)) in tree.iter().enumerate() {
            place.write(&format!("[{name:?}]"), 0, tensor.as_bytes()?)?;
            if index == 1 {
                die(Phase::HalfWritten);
            }
        }
        die(Phase::Written);
        place.finish()?;
        die(Phase::HandedOver);
        count += 1;
    }
    Ok(())
}

fn die_if(die: bool) {
    if die {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}
