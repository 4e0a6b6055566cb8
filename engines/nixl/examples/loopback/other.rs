//! The other process: lines to it and from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{process, thread};

use crate::Result;
use crate::way::{HINTS, LIMIT, step};

/// What lines of the child begin with: others may write to the same place.
const MARK: char = '@';

pub(crate) enum Other {
    Child(Arc<Mutex<Option<Child>>>, ChildStdin, BufReader<ChildStdout>),
    Parent,
}

/// Ends the child with this way.
pub(crate) struct Watch(Arc<Mutex<Option<Child>>>);

impl Other {
    pub(crate) fn child(way: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--child", way])
            .env("UCX_LOG_FILE", std::env::var_os("UCX_LOG_FILE").unwrap_or_else(|| "stderr".into()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err("the child has no pipes".into()) };
        Ok(Self::Child(Arc::new(Mutex::new(Some(child))), to, BufReader::new(from)))
    }

    /// Ends both processes when the time of this way is over.
    pub(crate) fn end_in_time(&self) -> Result<Watch> {
        let Self::Child(child, ..) = self else { return Err("it has no child".into()) };
        let watched = Arc::clone(child);
        thread::spawn(move || {
            thread::sleep(LIMIT);
            // The way has ended long ago, if it is gone.
            if end(&watched) {
                step(&format!("FAILED: not done within {LIMIT:?}; the steps above are the last ones"));
                println!("{HINTS}");
                process::exit(3);
            }
        });
        Ok(Watch(Arc::clone(child)))
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        match self {
            Self::Child(_, to, _) => writeln!(to, "{line}")?,
            Self::Parent => println!("{MARK}{line}"),
        }
        Ok(())
    }

    pub(crate) fn hear(&mut self) -> Result<String> {
        let Self::Child(_, _, from) = self else {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line)?;
            return Ok(line.trim_end().to_owned());
        };
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Err("the sender has ended; it has said why above".into());
            }
            match line.strip_prefix(MARK) {
                Some(line) => return Ok(line.trim_end().to_owned()),
                None => eprint!("{line}"),
            }
        }
    }

    pub(crate) fn expect(&mut self, expected: &str) -> Result<()> {
        let line = self.hear()?;
        if line == expected { Ok(()) } else { Err(format!("the other side says {line:?}").into()) }
    }

    /// How long what it is asked for has taken it.
    pub(crate) fn ask(&mut self, what: &str) -> Result<Duration> {
        self.say(what)?;
        self.hear_time()
    }

    pub(crate) fn hear_time(&mut self) -> Result<Duration> {
        Ok(Duration::from_nanos(self.hear()?.parse()?))
    }

    /// Gives the other one bytes for its own.
    pub(crate) fn swap(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.say(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())?;
        let line = self.hear()?;
        let digits = (0..line.len()).step_by(2).filter_map(|at| line.get(at..at + 2));
        Ok(digits.map(|digits| u8::from_str_radix(digits, 16)).collect::<Result<_, _>>()?)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        end(&self.0);
    }
}

/// Whether there was one: it ends by itself within a second, or is killed.
fn end(child: &Mutex<Option<Child>>) -> bool {
    let Some(mut child) = child.lock().unwrap_or_else(PoisonError::into_inner).take() else { return false };
    for _ in 0..20 {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    true
}
