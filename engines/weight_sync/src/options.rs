//! What the program is asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, ValueEnum};
use transship::{Device, DeviceId};

use crate::Result;

/// How weights get to the other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    Ipc,
    Window,
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

/// A trainer sends its parameters to inference processes, again and again, in place, while those serve requests.
#[derive(Parser, Clone, Debug)]
#[command(name = "weight_sync")]
pub(crate) struct Options {
    /// How weights get to the other processes
    #[arg(long, value_enum, default_value_t = By::Ipc)]
    pub(crate) by: By,
    /// One for all processes, or the trainer's and one for each inference process: cuda:0,cuda:1,cuda:2
    #[arg(long = "device", value_delimiter = ',', default_value = "host")]
    pub(crate) devices: Vec<DeviceId>,
    /// How many there are: a multiple of 10
    #[arg(long, default_value_t = 40)]
    pub(crate) parameters: usize,
    /// Of all parameters, such as 2GB
    #[arg(long, default_value = "200KB", value_parser = bytes)]
    pub(crate) bytes: usize,
    /// How many versions are sent
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// How many processes serve requests
    #[arg(long, default_value_t = 2)]
    pub(crate) inference: usize,
    /// Between two requests of a process, in microseconds
    #[arg(long = "pause-us", default_value = "1000", value_parser = micros)]
    pub(crate) pause: Duration,
    /// For whatever one process waits for, in seconds
    #[arg(long = "limit-s", default_value = "60", value_parser = seconds)]
    pub(crate) limit: Duration,
    /// Which transports UCX may use, such as tcp
    #[arg(long)]
    pub(crate) tls: Option<String>,
    /// NIXL's memory on the host, though the weights are on GPUs
    #[arg(long)]
    pub(crate) through_host: bool,
    /// One set of weights in an inference process and not two
    #[arg(long)]
    pub(crate) in_place: bool,
    /// An inference process is killed in the middle of a round
    #[arg(long)]
    pub(crate) kill: bool,
    /// Behind each round, and as much training, the trainer copies as many bytes as one tensor, from its device to that of the first inference process
    #[arg(long)]
    pub(crate) one_copy: bool,
    /// The trainer gives one parameter the version before: the program must fail
    #[arg(long)]
    pub(crate) mix: bool,
    /// For sockets.
    #[arg(long, hide = true, default_value = ".")]
    pub(crate) folder: PathBuf,
    #[arg(long, hide = true, default_value = "coordinator", value_parser = role)]
    pub(crate) role: Role,
}

impl Options {
    /// Those of this process, or its end with what is wrong with them.
    pub(crate) fn of_process() -> Self {
        Self::of(std::env::args().collect()).unwrap_or_else(|error| error.exit())
    }

    /// Words behind the name of the program.
    fn of(words: Vec<String>) -> Result<Self, clap::Error> {
        let options = Self::try_parse_from(words)?;
        let unsuited = |error| Self::command().error(ErrorKind::ValueValidation, error);
        options.check().map_err(unsuited)?;
        Ok(options)
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

fn role(word: &str) -> Result<Role> {
    Ok(match word {
        "coordinator" => Role::Coordinator,
        "trainer" => Role::Trainer,
        number => Role::Inference(number.parse()?),
    })
}

fn micros(word: &str) -> Result<Duration> {
    Ok(Duration::from_micros(word.parse()?))
}

fn seconds(word: &str) -> Result<Duration> {
    Ok(Duration::from_secs(word.parse()?))
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

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::of(["weight_sync"].into_iter().chain(line.split_whitespace()).map(str::to_owned).collect())
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
            ("--bytes 2TB", "2TB"),
            ("--parameters 15", "multiple"),
            ("--kill --inference 1", "two"),
            ("--device host,host", "2 for 3"),
            ("--rounds", "a value is required"),
            ("--rounds 0", "1..=65535"),
            ("--by tcp", "ipc, window, nixl, nccl"),
            ("--inference 0", "one at least"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
