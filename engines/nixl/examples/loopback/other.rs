//! The other process: lines to it and from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;

pub(crate) enum Other {
    Child(ChildStdin, BufReader<ChildStdout>),
    Parent,
}

impl Other {
    pub(crate) fn child(transport: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--child", transport])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err("the child has no pipes".into()) };
        Ok(Self::Child(to, BufReader::new(from)))
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        match self {
            Self::Child(to, _) => writeln!(to, "{line}")?,
            Self::Parent => println!("{line}"),
        }
        Ok(())
    }

    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        match self {
            Self::Child(_, from) => from.read_line(&mut line)?,
            Self::Parent => std::io::stdin().read_line(&mut line)?,
        };
        Ok(line.trim_end().to_owned())
    }

    /// Gives the other one bytes for its own.
    pub(crate) fn swap(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.say(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())?;
        let line = self.hear()?;
        let digits = (0..line.len()).step_by(2).filter_map(|at| line.get(at..at + 2));
        Ok(digits.map(|digits| u8::from_str_radix(digits, 16)).collect::<Result<_, _>>()?)
    }
}
