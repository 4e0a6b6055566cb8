//! A small copy in each direction.

use std::sync::mpsc;
use std::time::Duration;

use futures::executor::block_on;
use transship::backend::Driver;
use transship::{BackgroundWork, CopyOptions, Device, Error, Tensor, TimedWait, for_each_tensor, start_copy};

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
    pub(crate) fn prepare(self, first: usize) -> Trip {
        match self {
            Self::Up => Trip { source: sources(), target: Target::Open(open(first).unwrap()) },
            Self::Down => Trip { source: there(first), target: Target::Open(Device::host()) },
            Self::Between => Trip { source: there(first), target: Target::Open(open(first + 1).unwrap()) },
            Self::Opened => Trip { source: sources(), target: Target::Closed(first) },
        }
    }
}

impl Trip {
    /// Copies, on a thread of its own; `None` if that does not come to an end.
    pub(crate) fn run(self, background: BackgroundWork) -> Option<Ended> {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(self.copy(background)));
        receiver.recv_timeout(LONGEST).ok().flatten()
    }

    fn copy(self, background: BackgroundWork) -> Option<Ended> {
        let target = match self.target {
            Target::Open(device) => device,
            Target::Closed(ordinal) => match open(ordinal) {
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

/// Opens a device anew: what others may still hold of it is of no account.
pub(crate) fn open(ordinal: usize) -> Result<Device, Error> {
    Device::from_backend(block_on(transship::cuda::CudaDriver.open(ordinal))?)
}

/// Tensors of several types on the host.
pub(crate) fn sources() -> Vec<Tensor> {
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
pub(crate) fn works(ordinal: usize) {
    let device = open(ordinal).unwrap_or_else(|error| panic!("cuda:{ordinal} cannot be opened: {error}"));
    let there = start_copy(sources(), &device, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(read(there).unwrap(), read(sources()).unwrap());
}

fn there(ordinal: usize) -> Vec<Tensor> {
    let device = open(ordinal).unwrap();
    start_copy(sources(), &device, CopyOptions::default()).unwrap().wait().unwrap()
}
