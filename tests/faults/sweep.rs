//! For every n: the n-th call fails, the copy ends, nothing is left behind that was not counted, and others go on.

use std::fmt;

use transship::{BackgroundWork, Error};

use crate::left::{Left, eventually};
use crate::stand_in::StandIn;
use crate::through::Through;
use crate::trip::{self, Direction, Ended};

/// More calls than any of the copies makes.
const MOST_CALLS: u64 = 1000;

/// Calls without which a handle is not given back, whatever the library does: one of these that fails may leave one.
pub(crate) const GIVES_BACK: [&str; 7] = [
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuMemPoolDestroy",
    "cuModuleUnload",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuThreadExchangeStreamCaptureMode",
];

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
    pub(crate) through: Through,
    pub(crate) direction: Direction,
    pub(crate) background: BackgroundWork,
    pub(crate) fault: Fault,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Unknown, Self::OutOfMemory, Self::LaunchFailed, Self::LateLaunchFailed, Self::DeviceLost];

    /// The word that the stand-in has for it.
    pub(crate) fn word(self) -> &'static str {
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
        // Each kind of fault begins with another call, so that none is left out. Few calls can fail late, and all of them do.
        let one_in = if self.fault == Fault::LateLaunchFailed { 1 } else { self.through.one_in() };
        for number in (1 + self.fault as u64 % one_in as u64..=MOST_CALLS).step_by(one_in) {
            let complain = |what: String| format!("call {number} came to {}: {what}", self.fault.word());
            let ended = self.fail(number, stand_in).map_err(complain)?;
            match ended {
                None => {
                    println!(
                        "{self}: fewer than {number} calls, {failed} made it fail, {gave_back} gave it back"
                    );
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
        let (violations, leaks) = (stand_in.ask("violations"), transship::runtime_stats().leaks);
        let trip = self.direction.prepare(self.through, first);
        stand_in.tell(&format!("faults {}@{number}={}", self.through.calls(), self.fault.word()));
        let ended = self.check_end(trip.run(self.background)?)?;
        let left_on_them = || Left::on(self.through, &(first..first + 3), stand_in);
        let refused = || GIVES_BACK.iter().map(|call| stand_in.ask(&format!("fired:{call}"))).sum::<u64>();
        let counted = || transship::runtime_stats().leaks > leaks;
        if !eventually(|| left_on_them().is_at_most([0, refused(), 0]) || counted()) {
            stand_in.tell("list");
            let left = left_on_them();
            return Err(format!(
                "left behind and not counted: {left:?}, {} handles of which may be",
                refused()
            ));
        }
        let fired = stand_in.ask("fired") > 0;
        // What was given up stays open; every n has devices of its own.
        stand_in.tell("excuse");
        stand_in.tell("faults");
        let left = left_on_them();
        trip::works(self.through, if self.fault.lasts() { first + 2 } else { first });
        // No call of this n may be counted as one of the next.
        if !eventually(|| left_on_them().is_at_most(left.0)) {
            return Err(format!("another copy leaves something behind: {:?}", left_on_them()));
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
                Ok(bytes) if self.is_expected(&bytes) => Ok(Ended::Done(Vec::new())),
                Ok(_) => Err("the bytes are wrong".to_owned()),
                // The fault may as well meet the way back.
                Err(error) => check_error(&error).map(|()| Ended::Done(Vec::new())),
            },
            Ended::Failed { error, back, started } => {
                check_error(&error)?;
                if back.is_none() && !started {
                    return Err(format!("the structure is gone: {error}"));
                }
                let kept = back.is_some();
                if let Some(back) = back.filter(|_| self.direction.is_from_host()) {
                    let same = trip::read(back).unwrap() == trip::read(self.direction.sources()).unwrap();
                    same.then_some(()).ok_or("the structure came back changed")?;
                }
                Ok(Ended::Failed { error, back: kept.then(Vec::new), started })
            }
        }
    }

    /// Whether it is what should arrive, once or more often.
    fn is_expected(self, bytes: &[Vec<u8>]) -> bool {
        let expected = self.direction.expected();
        !bytes.is_empty() && bytes.chunks(expected.len()).all(|copy| copy == expected)
    }
}

/// An error names the call, or what there is too little of.
pub(crate) fn check_error(error: &Error) -> Result<(), String> {
    match error {
        Error::Driver { .. }
        | Error::OutOfMemory { .. }
        | Error::DriverUnavailable { .. }
        | Error::StreamLost { .. }
        | Error::CopyFailed { .. } => Ok(()),
        other => Err(format!("an error of another kind: {other:?}")),
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { through, direction, background, fault } = self;
        write!(f, "{}::{direction:?}::{background:?}::{}", through.name(), fault.word())
    }
}
