//! Two processes that know each other: this one, and a child that it talks to by lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use transship_nixl::{Agent, AgentOptions, Error, Nixl, Peer};

/// Longer than any transfer here takes.
pub(crate) const AMPLE: Duration = Duration::from_secs(30);

/// What tells a child what to do.
pub(crate) struct Child {
    pub(crate) case: String,
    pub(crate) transport: String,
}

/// One of two processes.
pub(crate) struct Pair {
    pub(crate) agent: Agent,
    pub(crate) peer: Peer,
    pub(crate) other: Other,
    pub(crate) transport: String,
    case: String,
}

/// The other process: lines to it and from it.
pub(crate) enum Other {
    Child { process: process::Child, to: ChildStdin, from: BufReader<ChildStdout> },
    Parent,
}

impl Child {
    pub(crate) fn of_arguments() -> Option<Self> {
        let words: Vec<String> = std::env::args().collect();
        let at = words.iter().position(|word| word == "--child")?;
        Some(Self { case: words.get(at + 1)?.clone(), transport: words.get(at + 2)?.clone() })
    }
}

impl Pair {
    pub(crate) fn with_child(case: &str, transport: &str) -> Self {
        let other = Other::child(case, transport);
        Self::meet(agent("parent", transport, 64 << 20), other, case, transport)
    }

    pub(crate) fn in_child(child: &Child) -> Self {
        Self::meet(agent("child", &child.transport, 64 << 20), Other::Parent, &child.case, &child.transport)
    }

    fn meet(agent: Agent, mut other: Other, case: &str, transport: &str) -> Self {
        other.say(&hex(&agent.metadata().unwrap()));
        let peer = agent.add_peer(&bytes(&other.hear())).unwrap();
        Self { agent, peer, other, transport: transport.to_owned(), case: case.to_owned() }
    }

    /// Ends the child, and meets another one.
    pub(crate) fn meet_another(&mut self) {
        self.other = Other::child(&self.case, &self.transport);
        self.other.say(&hex(&self.agent.metadata().unwrap()));
        let metadata = bytes(&self.other.hear());
        // What the library does not understand is an error, and in nobody's way.
        self.agent.add_peer(&metadata[..metadata.len() / 2]).unwrap_err();
        self.peer = add_anew(&self.agent, &metadata);
    }
}

/// Adds a peer that has begun anew, once nothing is written to the old one any more.
pub(crate) fn add_anew(agent: &Agent, metadata: &[u8]) -> Peer {
    let begun = Instant::now();
    loop {
        match agent.add_peer(metadata) {
            Err(Error::NotAdded { reason, .. }) if reason.contains("later") => {
                assert!(begun.elapsed() < AMPLE, "writes to the old one do not end");
                thread::sleep(Duration::from_millis(5));
            }
            added => return added.unwrap(),
        }
    }
}

/// An agent whose bytes go by this transport.
pub(crate) fn agent(name: &str, transport: &str, arena_bytes: usize) -> Agent {
    let mut options = AgentOptions::default().arena_bytes(arena_bytes);
    for (key, value) in parameters(transport) {
        options = options.parameter(*key, *value);
    }
    Agent::new(&Nixl::load().unwrap(), name, options).unwrap()
}

/// What has UCX use this transport. Left alone it takes the fastest one that there is: within a machine, shared memory and copies between processes.
pub(crate) fn parameters(transport: &str) -> &'static [(&'static str, &'static str)] {
    if transport == "tcp" { &[("engine_config", "TLS=tcp")] } else { &[] }
}

impl Other {
    pub(crate) fn child(case: &str, transport: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--child", case, transport])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self::Child { process, to, from }
    }

    pub(crate) fn say(&mut self, line: &str) {
        match self {
            Self::Child { to, .. } => writeln!(to, "{line}").unwrap(),
            Self::Parent => println!("{line}"),
        }
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        match self {
            Self::Child { from, .. } => from.read_line(&mut line).unwrap(),
            Self::Parent => std::io::stdin().read_line(&mut line).unwrap(),
        };
        assert!(line.ends_with('\n'), "the other process has ended: {line:?}");
        line.trim_end().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        let Self::Child { process, .. } = self else { unreachable!() };
        process.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// It ends by the signal that ends at once.
    pub(crate) fn has_been_killed(&mut self) {
        let Self::Child { process, .. } = self else { unreachable!() };
        assert_eq!(process.wait().unwrap().signal(), Some(9));
    }
}

pub(crate) fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

impl Drop for Other {
    /// The child has ended well, or was killed by its case: one that crashes has not.
    fn drop(&mut self) {
        let Self::Child { process, to, .. } = self else { return };
        if thread::panicking() {
            // It may wait for ever for what does not come any more, or be stopped.
            let _ = process.kill();
            return;
        }
        let _ = writeln!(to, "end");
        let status = process.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "child: {status}");
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
