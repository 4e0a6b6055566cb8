//! The rules of the simulated devices: what keeps them passes, and each way to break one fails the process.
//!
//! There is one set of devices for each process, and the verdict is its exit status: every case runs in a child.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bench;
mod faults;
mod order;
mod violations;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Failed, Trial};

const CASE: &str = "DRIVER_SIM_CASE";
/// The exit status of a process that has broken a rule.
const FAILED: i32 = 86;

/// Something that a program does.
struct Case {
    name: &'static str,
    body: fn(),
    ends: Ends,
    environment: &'static [(&'static str, &'static str)],
}

/// What becomes of the process.
enum Ends {
    Well,
    /// A rule is broken; the report has these words.
    Broken(&'static str),
    /// It is ended by a signal.
    Killed(i32),
}

/// A [`Case`] out of a function, with the settings of the stand-in.
macro_rules! case {
    ($body:ident, $ends:expr $(, $name:literal = $value:literal)*) => {
        $crate::Case { name: stringify!($body), body: $body, ends: $ends, environment: &[$(($name, $value)),*] }
    };
}
use case;

fn main() -> ExitCode {
    let cases: Vec<Case> =
        [order::cases(), violations::cases(), faults::cases()].into_iter().flatten().collect();
    if let Ok(name) = std::env::var(CASE) {
        let case = cases.iter().find(|case| case.name == name).expect("a case of this name");
        (case.body)();
        return ExitCode::SUCCESS;
    }
    let trials = cases.into_iter().map(|case| Trial::test(case.name, move || run(&case))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(case: &Case) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?);
    let output = child.env(CASE, case.name).envs(case.environment.iter().copied()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match is_as_expected(&case.ends, &output, &said) {
        true => Ok(()),
        false => Err(format!("{}: {said}", output.status).into()),
    }
}

fn is_as_expected(ends: &Ends, output: &Output, said: &str) -> bool {
    match ends {
        Ends::Well => output.status.success() && !said.contains("VIOLATION"),
        Ends::Broken(words) => output.status.code() == Some(FAILED) && said.contains(words),
        Ends::Killed(signal) => output.status.signal() == Some(*signal),
    }
}
