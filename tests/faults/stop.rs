//! For every n: the n-th call of the driver is held up, and the copy is given up meanwhile. Nobody waits for that call, and
//! nothing is left behind.
//!
//! catches: 11-drop-waits

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;

use transship::{BackgroundWork, CopyHandle, Tensor};

use crate::left::{Left, eventually};
use crate::stand_in::StandIn;
use crate::through::Through;
use crate::trip::{self, Direction, LONGEST};

/// More calls than any of the copies makes.
const MOST_CALLS: u64 = 1000;
/// No fewer than any of them makes on another thread.
const FEWEST_CALLS: u64 = 5;

type Handle = CopyHandle<Vec<Tensor>>;

/// What is done to a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Dropped,
    Polled,
    Cancelled,
}

/// A copy, and what is done to it during each of its calls.
#[derive(Clone, Copy)]
pub(crate) struct Stop {
    pub(crate) through: Through,
    pub(crate) direction: Direction,
    pub(crate) end: End,
}

impl End {
    pub(crate) const ALL: [Self; 3] = [Self::Dropped, Self::Polled, Self::Cancelled];

    /// What comes back.
    fn meet(self, mut copy: Handle) -> Option<Vec<Tensor>> {
        match self {
            Self::Dropped => drop(copy),
            Self::Polled => drop(Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop()))),
            Self::Cancelled => return copy.cancel().value,
        }
        None
    }
}

impl Stop {
    /// The directions in which a copy makes its calls on other threads.
    pub(crate) const DIRECTIONS: [Direction; 4] =
        [Direction::Up, Direction::Down, Direction::Between, Direction::ToBoth];

    pub(crate) fn run(self, stand_in: &StandIn) -> Result<(), String> {
        for number in 0..MOST_CALLS {
            let is_held = self.during(number, stand_in).map_err(|what| format!("call {number}: {what}"))?;
            if !is_held {
                println!("{self}: {number} calls");
                return if number >= FEWEST_CALLS { Ok(()) } else { Err("that are too few".to_owned()) };
            }
        }
        Err(format!("there are more than {MOST_CALLS} calls"))
    }

    /// Ends a copy during the call behind `number` others; whether there is one.
    fn during(self, number: u64, stand_in: &StandIn) -> Result<bool, String> {
        let first = stand_in.add_devices(3);
        stand_in.tell(&format!("seed {}", number + 1));
        let violations = stand_in.ask("violations");
        let trip = self.direction.prepare(self.through, first);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let stand_in = StandIn::load().unwrap();
            stand_in.tell(&format!("hold {number}"));
            let copies = trip.start(BackgroundWork::Always).unwrap();
            let is_held = is_held_before_they_are_done(&copies, &stand_in);
            let back: Vec<_> = copies.into_iter().filter_map(|copy| self.end.meet(copy)).collect();
            sender.send((is_held, back)).unwrap();
        });
        let (is_held, back) = receiver.recv_timeout(LONGEST).map_err(|_| "it is waited for")?;
        stand_in.tell("go");
        for tree in back {
            let same = trip::read(tree).unwrap() == trip::read(trip::sources()).unwrap();
            same.then_some(()).ok_or("the structure came back changed")?;
        }
        let left = || Left::on(self.through, &(first..first + 3), stand_in);
        if !eventually(|| left().is_at_most([0; 3])) {
            stand_in.tell("list");
            return Err(format!("left behind: {:?}", left()));
        }
        trip::works(self.through, first);
        if !self.through.closes_contexts() {
            // Theirs end with the process, unless faults before have left something behind.
            stand_in.tell("excuse");
        }
        match stand_in.ask("violations") - violations {
            0 => Ok(is_held),
            count => Err(format!("{count} violations")),
        }
    }
}

fn is_held_before_they_are_done(copies: &[Handle], stand_in: &StandIn) -> bool {
    loop {
        if stand_in.ask("held") == 1 {
            return true;
        }
        if copies.iter().all(|copy| copy.is_ready().unwrap()) {
            return false;
        }
        thread::yield_now();
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { through, direction, end } = self;
        write!(f, "{}::{direction:?}::during::{end:?}", through.name())
    }
}
