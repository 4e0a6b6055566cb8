//! A small copy in each direction.

use std::sync::mpsc;
use std::time::Duration;

use transship::{
    BackgroundWork, Cast, CopyError, CopyHandle, CopyOptions, DType, Device, Error, Tensor, TimedWait,
    for_each_tensor, start_copy, start_copy_to_all,
};

use crate::detection;
use crate::stand_in::StandIn;
use crate::through::Through;

/// Longer than any copy takes, on any machine.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// Where a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
    Between,
    /// Columns of a matrix, which the device that has them writes to the other one.
    ColumnsBetween,
    /// To two devices at once.
    ToBoth,
    /// A device is opened, copied to and closed.
    Opened,
    /// Up, cast by the host and by a kernel.
    CastUp,
    /// Down, cast by kernels.
    CastDown,
}

/// How a copy ended.
pub(crate) enum Ended {
    Done(Vec<Tensor>),
    Failed { error: Error, back: Option<Vec<Tensor>>, started: bool },
}

/// The ends of a copy.
pub(crate) struct Trip {
    through: Through,
    options: CopyOptions,
    pub(crate) source: Vec<Tensor>,
    pub(crate) target: Target,
}

/// Where it goes, opened or not.
pub(crate) enum Target {
    Open(Device),
    Both([Device; 2]),
    Closed(usize),
}

impl Direction {
    pub(crate) const ALL: [Self; 8] = [
        Self::Up,
        Self::Down,
        Self::Between,
        Self::ColumnsBetween,
        Self::ToBoth,
        Self::Opened,
        Self::CastUp,
        Self::CastDown,
    ];

    /// Opens what the copy needs, of the devices from `first` on, and warms nothing up: the first calls are part of what
    /// may fail.
    pub(crate) fn prepare(self, through: Through, first: usize) -> Trip {
        let device = |ordinal| through.open(ordinal).unwrap();
        let open = |ordinal| Target::Open(device(ordinal));
        let (source, target) = match self {
            Self::Up | Self::CastUp => (self.sources(), open(first)),
            Self::Down | Self::CastDown => {
                (there(through, first, self.sources()), Target::Open(Device::host()))
            }
            Self::Between => (there(through, first, sources()), open(first + 1)),
            Self::ColumnsBetween => {
                (there(through, first, vec![matrix()]).iter().map(columns).collect(), open(first + 1))
            }
            Self::ToBoth => (sources(), Target::Both([device(first), device(first + 1)])),
            Self::Opened => (sources(), Target::Closed(first)),
        };
        Trip { through, options: self.options(), source, target }
    }

    /// On which threads. Casts are staged, and columns copied, by the same ones as other copies.
    pub(crate) fn backgrounds(self) -> &'static [BackgroundWork] {
        match self {
            Self::CastUp | Self::CastDown | Self::ColumnsBetween => &[BackgroundWork::Auto],
            _ => &[BackgroundWork::Auto, BackgroundWork::Always],
        }
    }

    pub(crate) fn is_from_host(self) -> bool {
        !matches!(self, Self::Down | Self::Between | Self::ColumnsBetween | Self::CastDown)
    }

    /// What is copied. Casts are of tensors that are large enough for a kernel as well.
    pub(crate) fn sources(self) -> Vec<Tensor> {
        match self {
            Self::CastUp | Self::CastDown => {
                let pixels = (0..40_000_u32).map(|pixel| pixel as u8).collect::<Vec<_>>();
                vec![Tensor::from(pixels), Tensor::from(vec![1.5_f32; 100]), Tensor::from(vec![-9_i64; 40])]
            }
            Self::ColumnsBetween => vec![columns(&matrix())],
            _ => sources(),
        }
    }

    /// The bytes that arrive.
    pub(crate) fn expected(self) -> Vec<Vec<u8>> {
        let cast = start_copy(self.sources(), &Device::host(), self.options());
        read(cast.unwrap().wait().unwrap()).unwrap()
    }

    fn options(self) -> CopyOptions {
        match self {
            Self::CastUp | Self::CastDown => CopyOptions::default()
                .cast(Cast::new(DType::U8, DType::F32).scaled(0.5, 1.0))
                .cast(Cast::new(DType::F32, DType::BF16)),
            _ => CopyOptions::default(),
        }
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

    /// Starts it: a handle for each device that it goes to.
    pub(crate) fn start(
        self,
        background: BackgroundWork,
    ) -> Result<Vec<CopyHandle<Vec<Tensor>>>, CopyError<Vec<Tensor>>> {
        let options = self.options.background(background);
        let target = match self.target {
            Target::Open(device) => device,
            Target::Both(devices) => return start_copy_to_all(self.source, &devices, options),
            Target::Closed(ordinal) => match self.through.open(ordinal) {
                Ok(device) => device,
                Err(error) => return Err(CopyError::new(error, Some(self.source))),
            },
        };
        Ok(vec![start_copy(self.source, &target, options)?])
    }

    fn copy(self, background: BackgroundWork) -> Option<Ended> {
        match self.start(background) {
            Ok(handles) => wait_for_all(handles),
            Err(failed) => Some(failure(failed, false)),
        }
    }
}

/// The tensors of all one behind the other, or the failure of one; `None` if one does not come to its end.
fn wait_for_all(handles: Vec<CopyHandle<Vec<Tensor>>>) -> Option<Ended> {
    let mut copied = Vec::new();
    let mut failed = None;
    for handle in handles {
        match handle.wait_timeout(LONGEST) {
            Ok(TimedWait::Done(value)) => copied.extend(value),
            Ok(TimedWait::Pending(_)) => return None,
            Err(error) => failed = Some(failure(error, true)),
        }
    }
    Some(failed.unwrap_or(Ended::Done(copied)))
}

fn failure(failed: CopyError<Vec<Tensor>>, started: bool) -> Ended {
    let (error, back) = failed.into_parts();
    Ended::Failed { error, back, started }
}

/// Tensors of several types on the host: three, or those of the headline where the environment asks for it.
pub(crate) fn sources() -> Vec<Tensor> {
    if std::env::var_os("TRANSSHIP_FAULTS").is_some_and(|what| what == "headline") {
        return detection::leaves(&mut detection::batch(0).unwrap()).unwrap();
    }
    vec![Tensor::from(vec![1.5_f32; 100]), Tensor::from(vec![7_u8; 3]), Tensor::from(vec![-9_i64; 40])]
}

fn matrix() -> Tensor {
    let numbers = (0..40 * 20).map(|number| number as f32).collect::<Vec<_>>();
    Tensor::from(numbers).reshape(&[40, 20]).unwrap()
}

fn columns(matrix: &Tensor) -> Tensor {
    matrix.narrow(1, 3, 5).unwrap()
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
    let there = there(through, ordinal, sources());
    assert_eq!(read(there).unwrap(), read(sources()).unwrap());
}

fn there(through: Through, ordinal: usize, sources: Vec<Tensor>) -> Vec<Tensor> {
    let device = through
        .open(ordinal)
        .unwrap_or_else(|error| panic!("{through:?} {ordinal} cannot be opened: {error}"));
    start_copy(sources, &device, CopyOptions::default()).unwrap().wait().unwrap()
}
