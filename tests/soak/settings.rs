//! How long, and with which choices.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Steps of each thread, unless it is told otherwise: some seconds.
const USUAL_STEPS: u64 = 150;
const USUAL_THREADS: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) bound: Bound,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
}

/// Where each thread stops.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    Steps(u64),
    Time(Duration),
}

impl Settings {
    /// Takes its own arguments out; the rest is for the test runner.
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> (Self, Vec<String>) {
        let (mut bound, mut seed, mut threads) = (Bound::Steps(USUAL_STEPS), None, USUAL_THREADS);
        let mut rest = Vec::new();
        while let Some(argument) = args.next() {
            let mut number = || -> u64 {
                let number = args.next().and_then(|number| number.parse().ok());
                number.unwrap_or_else(|| panic!("{argument} needs a number"))
            };
            match argument.as_str() {
                "--steps" => bound = Bound::Steps(number()),
                "--minutes" => bound = Bound::Time(Duration::from_secs(60 * number())),
                "--seed" => seed = Some(number()),
                "--threads" => threads = number() as usize,
                _ => rest.push(argument),
            }
        }
        let usual = || match bound {
            Bound::Steps(_) => 1,
            Bound::Time(_) => any_seed(),
        };
        (Self { bound, seed: seed.unwrap_or_else(usual), threads }, rest)
    }
}

/// Another one each time: that is what a long soak is for. It is printed.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| u64::from(now.subsec_nanos()))
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--threads {} --seed {} ", self.threads, self.seed)?;
        match self.bound {
            Bound::Steps(steps) => write!(f, "--steps {steps}"),
            Bound::Time(time) => write!(f, "--minutes {}", time.as_secs() / 60),
        }
    }
}
