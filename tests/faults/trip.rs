//! A small copy in each direction.

use std::sync::mpsc;
use std::time::Duration;

use transship::{BackgroundWork, CopyOptions, Device, Error, Tensor, TimedWait, for_each_tensor, start_copy};

use crate::detection;
use crate::stand_in::StandIn;
use crate::through::Through;

/// Longer than any copy takes, on any machine.
const LONGEST: Duration = Duration::from_secs(20);

/// Where a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Between,
    /// A device is opened, copied to and closed.
    Opened,
}

/// How a copy ended.
pub(crate) enum Ended {
    Done(Vec<Tensor>),
    Failed { error: Error, back: Option<Vec<Tensor>>, started: bool },
}

/// The ends of a copy.
pub(crate) struct Trip {
    through: Through,
    pub(crate) source: Vec<Tensor>,
    pub(crate) target: Target,
}

/// Where it goes, opened or not.
pub(crate) enum Target {
    Open(Device),
    Closed(usize),
}

impl Direction {
    pub(crate) const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Between, Self::Opened];

    /// Opens what the copy needs, of the devices from `first` on, and warms nothing up: the first calls are part of what
    /// may fail.
    pub(crate) fn prepare(self, through: Through, first: usize) -> Trip {
        let open = |ordinal| Target::Open(through.open(ordinal).unwrap());
        let (source, target) = match self {
            Self::Up => (sources(), open(first)),
            Self::Down => (there(through, first), Target::Open(Device::host())),
            Self::Between => (there(through, first), open(first + 1)),
            Self::Opened => (sources(), Target::Closed(first)),
        };
        Trip { through, source, target }
    }
}

impl Trip {
    /// Copies, on a thread of its own, for which the same must be current afterwards as before.
    pub(crate) fn run(self, background: BackgroundWork) -> Result<Ended, String> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let (through, stand_in) = (self.through, StandIn::load().unwrap());
            let before = through.current(&stand_in);
            let ended = self.copy(background);
            let _ = sender.send((ended, before, through.current(&stand_in)));
        });
        match receiver.recv_timeout(LONGEST) {
            Ok((Some(_), before, after)) if before != after => {
                Err(format!("{before:?} was current, and {after:?} is now"))
            }
            Ok((Some(ended), ..)) => Ok(ended),
            _ => Err("it does not come to an end".to_owned()),
        }
    }

    fn copy(self, background: BackgroundWork) -> Option<Ended> {
        let target = match self.target {
            Target::Open(device) => device,
            Target::Closed(ordinal) => match self.through.open(ordinal) {
                Ok(device) => device,
                Err(error) => return Some(Ended::Failed { error, back: Some(self.source), started: false }),
            },
        };
        let options = CopyOptions::default().background(background);
        let started = start_copy(self.source, &target, options).map_err(|failed| (failed, false));
        let waited = started.and_then(|handle| handle.wait_timeout(LONGEST).map_err(|failed| (failed, true)));
        match waited {
            Ok(TimedWait::Done(value)) => Some(Ended::Done(value)),
            Ok(TimedWait::Pending(_)) => None,
            Err((failed, started)) => {
                let (error, back) = failed.into_parts();
                Some(Ended::Failed { error, back, started })
            }
        }
    }
}

/// Tensors of several types on the host: three, or those of the headline where the environment asks for it.
pub(crate) fn sources() -> Vec<Tensor> {
    if std::env::var_os("TRANSSHIP_FAULTS").is_some_and(|what| what == "headline") {
        return detection::leaves(&mut detection::batch(0).unwrap()).unwrap();
    }
    vec![Tensor::from(vec![1.5_f32; 100]), Tensor::from(vec![7_u8; 3]), Tensor::from(vec![-9_i64; 40])]
}

/// The bytes of [`sources`], wherever they lie.
pub(crate) fn read(value: Vec<Tensor>) -> Result<Vec<Vec<u8>>, Error> {
    let mut value = start_copy(value, &Device::host(), CopyOptions::default())?.wait()?;
    let mut bytes = Vec::new();
    for_each_tensor(&mut value, |tensor| {
        bytes.push(tensor.to_bytes()?);
        Ok(())
    })?;
    Ok(bytes)
}

/// A round trip over a device that nothing was done to.
pub(crate) fn works(through: Through, ordinal: usize) {
    let there = there(through, ordinal);
    assert_eq!(read(there).unwrap(), read(sources()).unwrap());
}

fn there(through: Through, ordinal: usize) -> Vec<Tensor> {
    let device = through
        .open(ordinal)
        .unwrap_or_else(|error| panic!("{through:?} {ordinal} cannot be opened: {error}"));
    start_copy(sources(), &device, CopyOptions::default()).unwrap().wait().unwrap()
}
