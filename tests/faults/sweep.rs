//! For every n: the n-th call fails, the copy ends, nothing is left behind that was not counted, and others go on.

use std::fmt;
use std::time::{Duration, Instant};

use transship::{BackgroundWork, Error};

use crate::stand_in::StandIn;
use crate::trip::{self, Direction, Ended};

/// More calls than any of the copies makes.
const MOST_CALLS: u64 = 1000;

/// What the n-th call comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Unknown,
    OutOfMemory,
    LaunchFailed,
    LateLaunchFailed,
    DeviceLost,
}

/// A copy, and the fault that meets each of its calls in turn.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    pub(crate) direction: Direction,
    pub(crate) background: BackgroundWork,
    pub(crate) fault: Fault,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Unknown, Self::OutOfMemory, Self::LaunchFailed, Self::LateLaunchFailed, Self::DeviceLost];

    /// The word that the stand-in has for it.
    fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::OutOfMemory => "oom",
            Self::LaunchFailed => "launch-failed",
            Self::LateLaunchFailed => "late-launch-failed",
            Self::DeviceLost => "device-lost",
        }
    }

    /// Nothing of the device works afterwards.
    fn lasts(self) -> bool {
        !matches!(self, Self::Unknown | Self::OutOfMemory)
    }
}

impl Sweep {
    pub(crate) fn run(self, stand_in: &StandIn) -> Result<(), String> {
        let (mut failed, mut gave_back) = (0, 0);
        for number in 1..=MOST_CALLS {
            let complain = |what: String| format!("call {number} came to {}: {what}", self.fault.word());
            let ended = self.fail(number, stand_in).map_err(complain)?;
            match ended {
                None => {
                    println!("{self}: {} calls, {failed} made it fail, {gave_back} gave it back", number - 1);
                    return if failed > 0 { Ok(()) } else { Err("no copy has failed".to_owned()) };
                }
                Some(Ended::Done(_)) => {}
                Some(Ended::Failed { back, .. }) => {
                    failed += 1;
                    gave_back += u64::from(back.is_some());
                }
            }
        }
        Err(format!("there are more than {MOST_CALLS} calls"))
    }

    /// Lets the call of this number fail, from the start of the copy until everything is closed; `None` if there is none.
    /// It has devices of its own: those of others may be lost.
    fn fail(self, number: u64, stand_in: &StandIn) -> Result<Option<Ended>, String> {
        let first = stand_in.add_devices(3);
        stand_in.tell(&format!("seed {number}"));
        let (violations, leaks) = (stand_in.ask("violations"), transship::statistics().leaks);
        let trip = self.direction.prepare(first);
        stand_in.tell(&format!("faults any@{number}={}", self.fault.word()));
        let ended = trip.run(self.background).ok_or("it does not come to an end")?;
        let ended = self.check_end(ended)?;
        let fired = stand_in.ask("fired") > 0;
        let sum = |figure: &str| {
            (first..first + 3).map(|device| stand_in.ask(&format!("{figure}:{device}"))).sum::<u64>()
        };
        let counted = || transship::statistics().leaks > leaks;
        let is_closed = || if fired { sum("contexts") == 0 } else { sum("open") == 0 };
        if !eventually(|| is_closed() || counted()) {
            stand_in.tell("list");
            return Err("something is left open and was not counted".to_owned());
        }
        if sum("blocks-left") > 0 && !counted() {
            return Err(format!("{} allocations are left behind and were not counted", sum("blocks-left")));
        }
        // What was given up stays open; every n has devices of its own.
        stand_in.tell("excuse");
        stand_in.tell("faults");
        trip::works(first + 2);
        if !self.fault.lasts() {
            trip::works(first);
        }
        match stand_in.ask("violations") - violations {
            0 => Ok(fired.then_some(ended)),
            count => Err(format!("{count} violations")),
        }
    }

    /// What is done is right, and what has failed says so; tensors on devices go, the faults still in force.
    fn check_end(self, ended: Ended) -> Result<Ended, String> {
        match ended {
            Ended::Done(value) => match trip::read(value) {
                Ok(bytes) if bytes == trip::read(trip::sources()).unwrap() => Ok(Ended::Done(Vec::new())),
                Ok(_) => Err("the bytes are wrong".to_owned()),
                // The fault may as well meet the way back.
                Err(error) => check_error(&error).map(|()| Ended::Done(Vec::new())),
            },
            Ended::Failed { error, back, started } => {
                check_error(&error)?;
                if back.is_none() && !started {
                    return Err(format!("the structure is gone: {error}"));
                }
                let on_host = matches!(self.direction, Direction::Up | Direction::Opened);
                let kept = back.is_some();
                if let Some(back) = back.filter(|_| on_host) {
                    let same = trip::read(back).unwrap() == trip::read(trip::sources()).unwrap();
                    same.then_some(()).ok_or("the structure came back changed")?;
                }
                Ok(Ended::Failed { error, back: kept.then(Vec::new), started })
            }
        }
    }
}

/// An error names the call, or what there is too little of.
fn check_error(error: &Error) -> Result<(), String> {
    match error {
        Error::Driver { .. }
        | Error::OutOfMemory { .. }
        | Error::DriverUnavailable { .. }
        | Error::CopyFailed { .. } => Ok(()),
        other => Err(format!("an error of another kind: {other:?}")),
    }
}

fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, background, fault } = self;
        write!(f, "{direction:?}::{background:?}::{}", fault.word())
    }
}
