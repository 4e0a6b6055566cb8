//! The processes that the coordinator has started: the trainer, and behind it those that serve requests.

use std::io::BufReader;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::lines::{hear, say};
use crate::options::Options;

/// The place of the trainer. The inference process `number` has the place behind it, by so many.
pub(crate) const TRAINER: usize = 0;

/// All processes, by their places. Those that are still there are killed when this is dropped.
pub(crate) struct Processes {
    children: Vec<Process>,
    events: Receiver<Event>,
    limit: Duration,
}

struct Process {
    child: Child,
    to: Option<ChildStdin>,
}

/// What a process has said.
pub(crate) struct Event {
    pub(crate) place: usize,
    /// `None`: it has ended.
    pub(crate) words: Option<Vec<String>>,
}

impl Processes {
    /// This program, once for each process, with the same arguments.
    pub(crate) fn start(options: &Options, folder: &Path) -> Result<Self> {
        let (sender, events) = channel();
        let mut processes = Self { children: Vec::new(), events, limit: options.limit };
        for place in 0..=options.inference {
            let role = if place == TRAINER { "trainer".to_owned() } else { (place - 1).to_string() };
            let mut child = Command::new(std::env::current_exe()?)
                .args(std::env::args_os().skip(1))
                .args(["--role", &role, "--folder"])
                .arg(folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (to, from) = (child.stdin.take(), child.stdout.take());
            processes.children.push(Process { child, to });
            listen(place, from.ok_or("a process has no output")?, sender.clone())?;
        }
        Ok(processes)
    }

    pub(crate) fn say(&mut self, place: usize, words: &[&str]) -> Result<()> {
        let to = self.children.get_mut(place).and_then(|process| process.to.as_mut());
        let to = to.ok_or_else(|| format!("{} has no input", name(place)))?;
        say(to, words).map_err(|error| format!("{} hears nothing any more: {error}", name(place)).into())
    }

    /// What some process says next; `None` if that is not before `until`.
    ///
    /// # Errors
    ///
    /// None says anything within the limit.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Result<Option<Event>> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A process says by itself that something took too long.
        let limit = 2 * self.limit;
        match self.events.recv_timeout(left.unwrap_or(limit)) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if until.is_some() => Ok(None),
            Err(_) => Err(format!("no process has said anything for {limit:?}").into()),
        }
    }

    /// What `place` answers, while nobody else has anything to say: the words behind `first`.
    pub(crate) fn answer(&mut self, place: usize, first: &str) -> Result<Vec<String>> {
        let event = self.next(None)?.ok_or("no answer")?;
        match event.words {
            Some(words) if event.place == place && words.first().is_some_and(|word| word == first) => {
                Ok(words.into_iter().skip(1).collect())
            }
            Some(words) => Err(format!("{} says {words:?}, and not {first}", name(event.place)).into()),
            None => Err(self.ended(event.place).into()),
        }
    }

    /// By a signal that no process can do anything about.
    pub(crate) fn kill(&mut self, place: usize) -> Result<()> {
        self.children.get_mut(place).map_or(Ok(()), |process| Ok(process.child.kill()?))
    }

    /// That a process has ended, and how.
    pub(crate) fn ended(&mut self, place: usize) -> String {
        let status = self.children.get_mut(place).map(|process| process.child.wait());
        let status =
            status.and_then(std::result::Result::ok).map_or(String::new(), |status| format!(": {status}"));
        format!("{} has ended{status}", name(place))
    }

    /// Lets all of them but those of `gone` end, and fails unless they do so well.
    pub(crate) fn finish(mut self, gone: &[usize]) -> Result<()> {
        let places: Vec<usize> =
            (0..self.children.len()).rev().filter(|place| !gone.contains(place)).collect();
        // An inference process does not lose its trainer before it has heard of the end. None waits for the end of another one: ranks of NCCL leave together.
        for place in &places {
            if let Some(process) = self.children.get_mut(*place) {
                process.to = None;
            }
        }
        for place in places {
            if let Some(process) = self.children.get_mut(place) {
                let status = process.child.wait()?;
                if !status.success() {
                    return Err(format!("{} has ended with {status}", name(place)).into());
                }
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.children {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

pub(crate) fn name(place: usize) -> String {
    if place == TRAINER { "the trainer".to_owned() } else { format!("inference process {}", place - 1) }
}

fn listen(place: usize, from: ChildStdout, to: Sender<Event>) -> Result<()> {
    thread::Builder::new().name(format!("listens to {}", name(place))).spawn(move || {
        let mut from = BufReader::new(from);
        while let Ok(Some(words)) = hear(&mut from) {
            if to.send(Event { place, words: Some(words) }).is_err() {
                return;
            }
        }
        // Nobody listens where all is over.
        let _ = to.send(Event { place, words: None });
    })?;
    Ok(())
}
