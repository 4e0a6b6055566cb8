//! Running the command.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No run takes so long, faults and time-outs included.
const LONGEST: Duration = Duration::from_secs(60);

/// What came of it.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(arguments: &[&str]) -> Self {
        Self::with(arguments, &[])
    }

    /// In an environment with these variables.
    pub(crate) fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_transship"));
        command.args(arguments).envs(environment.iter().copied());
        // An API that this system does not have: wgpu has its own tests.
        command.env("WGPU_BACKEND", "dx12").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begin.elapsed() > LONGEST {
                child.kill().unwrap();
                panic!("{arguments:?} does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }

    /// The findings of a level about a check.
    pub(crate) fn findings(&self, level: &str, check: &str) -> Vec<Value> {
        let report = self.json();
        let all = report["findings"].as_array().unwrap().clone();
        all.into_iter().filter(|found| found["level"] == level && found["check"] == check).collect()
    }
}
