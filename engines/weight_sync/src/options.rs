//! What the program is asked for.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use transship::{Device, DeviceId};

use crate::Result;

pub(crate) const USAGE: &str = "weight_sync [--by ipc|nixl|nccl] [--device host | cuda:0 | cuda:0,cuda:1,cuda:2 (the trainer's first)]
    [--parameters 40] [--bytes 200KB] [--rounds 3] [--inference 2] [--pause-us 1000] [--limit-s 60] [--tls tcp]
    [--in-place] [--kill] [--mix]";

/// How weights get to the other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Ipc,
    Nixl,
    Nccl,
}

/// What this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Starts the others, tells them when, and takes the times.
    Coordinator,
    Trainer,
    Inference(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) by: By,
    /// One for all processes, or the trainer's and one for each inference process.
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) parameters: usize,
    pub(crate) bytes: usize,
    pub(crate) rounds: u16,
    pub(crate) inference: usize,
    /// Between two requests.
    pub(crate) pause: Duration,
    /// For whatever one process waits for.
    pub(crate) limit: Duration,
    /// Which transports UCX may use.
    pub(crate) tls: Option<String>,
    /// One set of weights in an inference process and not two.
    pub(crate) in_place: bool,
    /// An inference process is killed in the middle of a round.
    pub(crate) kill: bool,
    /// The trainer gives one parameter the version before: the program must fail.
    pub(crate) mix: bool,
    /// For sockets.
    pub(crate) folder: PathBuf,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            role: Role::Coordinator,
            by: By::Ipc,
            devices: vec![Device::host().id()],
            parameters: 40,
            bytes: 200_000,
            rounds: 3,
            inference: 2,
            pause: Duration::from_millis(1),
            limit: Duration::from_secs(60),
            tls: None,
            in_place: false,
            kill: false,
            mix: false,
            folder: PathBuf::new(),
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            options.take(word, &mut words)?;
        }
        options.check()?;
        Ok(options)
    }

    fn take<'a>(&mut self, word: &str, words: &mut impl Iterator<Item = &'a String>) -> Result<()> {
        match word {
            "--in-place" => self.in_place = true,
            "--kill" => self.kill = true,
            "--mix" => self.mix = true,
            "--help" => return Err(USAGE.into()),
            _ => {
                let value =
                    words.next().ok_or_else(|| format!("{word} needs a value, or is none of\n{USAGE}"))?;
                self.set(word, value).map_err(|error| format!("{word} {value}: {error}"))?;
            }
        }
        Ok(())
    }

    fn set(&mut self, word: &str, value: &str) -> Result<()> {
        match word {
            "--by" => self.by = by(value)?,
            "--device" => {
                self.devices = value.split(',').map(DeviceId::from_str).collect::<Result<_, _>>()?
            }
            "--parameters" => self.parameters = value.parse()?,
            "--bytes" => self.bytes = bytes(value)?,
            "--rounds" => self.rounds = value.parse()?,
            "--inference" => self.inference = value.parse()?,
            "--pause-us" => self.pause = Duration::from_micros(value.parse()?),
            "--limit-s" => self.limit = Duration::from_secs(value.parse()?),
            "--tls" => self.tls = Some(value.to_owned()),
            "--folder" => self.folder = value.into(),
            "--role" => self.role = role(value)?,
            _ => return Err(format!("no such option; there are\n{USAGE}").into()),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.parameters == 0 || !self.parameters.is_multiple_of(10) {
            return Err(format!("--parameters {}: a layer has 10; take a multiple", self.parameters).into());
        }
        if self.bytes / self.parameters < 16 {
            return Err(format!("--bytes {}: fewer than 16 for each parameter", self.bytes).into());
        }
        if self.inference == 0 || (self.kill && self.inference < 2) {
            return Err("--inference: one at least, and two where one is killed".into());
        }
        if self.devices.len() != 1 && self.devices.len() != 1 + self.inference {
            let given = self.devices.len();
            return Err(format!(
                "--device: {given} for {} processes; give one, or one for each",
                1 + self.inference
            )
            .into());
        }
        if self.kill && self.rounds < 3 {
            return Err(
                "--rounds: three at least where a process is killed, one before and one after it".into()
            );
        }
        Ok(())
    }

    /// The device of a process, by its place: the trainer is the first.
    fn device(&self, place: usize) -> Result<Device> {
        let id = self.devices.get(place).or(self.devices.first()).ok_or("no device")?;
        Ok(Device::open(*id)?)
    }

    pub(crate) fn device_of_trainer(&self) -> Result<Device> {
        self.device(0)
    }

    pub(crate) fn device_of_inference(&self, number: usize) -> Result<Device> {
        self.device(1 + number)
    }
}

fn by(word: &str) -> Result<By> {
    match word {
        "ipc" => Ok(By::Ipc),
        "nixl" => Ok(By::Nixl),
        "nccl" => Ok(By::Nccl),
        _ => Err("no such way; there are ipc, nixl, nccl".into()),
    }
}

fn role(word: &str) -> Result<Role> {
    Ok(if word == "trainer" { Role::Trainer } else { Role::Inference(word.parse()?) })
}

/// `2GB`, `64KB`, `1000`.
fn bytes(word: &str) -> Result<usize> {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000), ("", 1)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((word.strip_suffix(name)?, *unit)))
        .ok_or("no number of bytes")?;
    number.parse::<usize>()?.checked_mul(unit).ok_or_else(|| "more than there are".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_have_units() {
        let options = parse("--by nixl --bytes 2GB --parameters 2000 --in-place").unwrap();
        assert_eq!((options.by, options.bytes, options.parameters), (By::Nixl, 2_000_000_000, 2000));
        assert!(options.in_place && !options.kill);
    }

    #[test]
    fn what_cannot_be_is_an_error_that_names_it() {
        for (line, part) in [
            ("--bytes 2TB", "--bytes 2TB"),
            ("--parameters 15", "multiple"),
            ("--kill --inference 1", "two"),
            ("--device host,host", "2 for 3"),
            ("--rounds", "needs a value"),
            ("--by tcp", "ipc, nixl, nccl"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
