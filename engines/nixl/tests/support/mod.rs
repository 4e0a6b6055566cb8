//! Agents of this process, by a library that stands for NIXL (`fake`).

#![allow(dead_code, reason = "each program of tests uses some of it")]

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use transship::TensorTree;
use transship_nixl::{Agent, AgentOptions, Nixl, Peer};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libfake_nixl.so")
}

pub(crate) fn nixl() -> Nixl {
    // SAFETY: it behaves as NIXL.
    unsafe { Nixl::open(library()) }.unwrap()
}

/// Two agents that know each other.
pub(crate) struct Pair {
    pub(crate) sender: Agent,
    pub(crate) receiver: Agent,
    pub(crate) to: Peer,
    pub(crate) from: Peer,
}

impl Pair {
    /// With these options of the sender and of the receiver.
    pub(crate) fn new(name: &str, [sending, receiving]: [AgentOptions; 2]) -> Self {
        // Agents of one name are one to the library: tests would get each other's trees.
        static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        assert!(NAMES.lock().unwrap().insert(name.to_owned()), "another pair is called {name}");
        let agent = |role: &str, options| Agent::new(&nixl(), &format!("{role} of {name}"), options).unwrap();
        let (sender, receiver) = (agent("sender", sending), agent("receiver", receiving));
        let to = sender.add_peer(&receiver.metadata().unwrap()).unwrap();
        let from = receiver.add_peer(&sender.metadata().unwrap()).unwrap();
        Self { sender, receiver, to, from }
    }

    pub(crate) fn pass<S: TensorTree, T: TensorTree>(&self, tree: &S, into: T) -> T {
        let sent = self.sender.start_send(tree, &self.to, LIMIT).unwrap();
        let received = self.receiver.start_receive_into(into, &self.from, LIMIT).unwrap().wait().unwrap();
        sent.wait().unwrap();
        received
    }
}
