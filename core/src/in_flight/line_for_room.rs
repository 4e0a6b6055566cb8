//! Those who wait for room in the budget of a device. First come, first served: who needs more than there is holds up those behind him, but
//! for those who stand aside.
//!
//! No room is kept for those who stand aside, so others may take for ever what comes back. Kept room would have to be refused to a copy that
//! it is enough for, or that copy would have to wait; and its thread may be the one that gives back what the first one waits for, once it has
//! its next result. Nothing tells such a thread from others.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicUsize, Ordering};

/// Whoever gives memory back hands it to the first in the line.
#[derive(Default)]
pub(crate) struct Line {
    /// How many are not served yet, so that nobody takes the lock while nobody waits. Written before the one who enters looks for room
    /// himself, and read after room has come back: one of the two sees the other.
    waiting: AtomicUsize,
    places: Mutex<Places>,
}

/// By their turns. Nobody who looks for one of them goes through the others: thousands may wait.
#[derive(Default)]
struct Places {
    /// Those who are not served yet.
    waiting: BTreeMap<u64, Place>,
    /// Those of them who do not stand aside.
    in_line: BTreeSet<u64>,
    /// How many of those who wait will stand aside where others are refused.
    until_deadline: usize,
    served: BTreeSet<u64>,
    entered: u64,
    /// The first of all who wait, and of those in line, when that was told last.
    told: [Option<u64>; 2],
}

struct Place {
    bytes: usize,
    /// It will stand aside where others are refused.
    until_deadline: bool,
    /// Of the copy that waits, if it is one.
    name: Option<usize>,
}

/// Names of copies that are to look how it stands with them.
pub(crate) type Told = SmallVec<[usize; 4]>;

/// How it stands with a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Served,
    /// All before it were served, have left, or stand aside.
    First,
    /// It stands aside: nothing but the program can make room. Whether it is the first of all that are not served.
    Aside {
        is_first: bool,
    },
    Behind,
    /// It was given up.
    Left,
}

impl Line {
    /// Takes the last place, and returns its number. The copy of this `name` will be told when it is served, or the first.
    pub(crate) fn enter(&self, bytes: usize, until_deadline: bool, name: Option<usize>) -> u64 {
        let mut places = self.places.lock();
        let turn = places.entered;
        places.entered += 1;
        places.until_deadline += usize::from(until_deadline);
        places.waiting.insert(turn, Place { bytes, until_deadline, name });
        places.in_line.insert(turn);
        // It will look itself.
        places.told = places.firsts();
        self.count(&places);
        turn
    }

    /// Whether somebody waits who is not served yet.
    pub(crate) fn is_waited_in(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Gives those who wait what they wait for, in their order, up to the first that `take` finds no room for. Returns who is to be told.
    #[must_use]
    pub(crate) fn serve(&self, take: impl Fn(usize) -> bool) -> Told {
        let mut told = Told::new();
        if !self.is_waited_in() {
            return told;
        }
        let mut places = self.places.lock();
        while let Some((turn, place)) = places.waiting.first_key_value() {
            let turn = *turn;
            if !take(place.bytes) {
                break;
            }
            told.extend(places.end(turn).and_then(|place| place.name));
            places.served.insert(turn);
        }
        places.tell_firsts(&mut told);
        self.count(&places);
        told
    }

    /// Whether somebody waits who neither is served yet nor stands aside.
    pub(crate) fn has_who_stands_in_it(&self) -> bool {
        self.is_waited_in() && !self.places.lock().in_line.is_empty()
    }

    /// Whether somebody stands aside, or will where nothing in flight makes room.
    pub(crate) fn has_who_waits_for_the_program(&self) -> bool {
        self.is_waited_in() && self.places.lock().until_deadline > 0
    }

    pub(crate) fn standing(&self, turn: u64) -> Standing {
        let places = self.places.lock();
        let [first, first_in_line] = places.firsts();
        match turn {
            _ if places.served.contains(&turn) => Standing::Served,
            _ if !places.waiting.contains_key(&turn) => Standing::Left,
            _ if !places.in_line.contains(&turn) => Standing::Aside { is_first: first == Some(turn) },
            _ if first_in_line == Some(turn) => Standing::First,
            _ => Standing::Behind,
        }
    }

    /// The place keeps its turn: it is still served before those behind it. But where nothing in flight can make room, those without a deadline
    /// take what there is ([`leave`](Self::leave)). Returns who is to be told; `None` if it stood aside already.
    pub(crate) fn step_aside(&self, turn: u64) -> Option<Told> {
        let mut places = self.places.lock();
        let mut told = Told::new();
        let stood_in_line = places.in_line.remove(&turn);
        places.tell_firsts(&mut told);
        stood_in_line.then_some(told)
    }

    /// Gives the place up; returns who is to be told. Whether it was served, or takes what there is, for which only those before it wait who
    /// stand aside; `None` if it was given up before.
    pub(crate) fn leave(&self, turn: u64, take: impl Fn(usize) -> bool) -> Option<(bool, Told)> {
        let mut places = self.places.lock();
        if places.served.remove(&turn) {
            return Some((true, Told::new()));
        }
        let stand_aside = places.in_line.first().is_none_or(|first| *first >= turn);
        let Place { bytes, name, .. } = places.end(turn)?;
        // Whoever looks after the copy need not any more.
        let mut told: Told = name.into_iter().collect();
        places.tell_firsts(&mut told);
        self.count(&places);
        Some((stand_aside && take(bytes), told))
    }

    fn count(&self, places: &Places) {
        self.waiting.store(places.waiting.len(), Ordering::SeqCst);
    }
}

impl Places {
    /// The first of all who wait, and of those in line.
    fn firsts(&self) -> [Option<u64>; 2] {
        [self.waiting.keys().next().copied(), self.in_line.first().copied()]
    }

    /// Takes one out of those who wait.
    fn end(&mut self, turn: u64) -> Option<Place> {
        let place = self.waiting.remove(&turn)?;
        self.in_line.remove(&turn);
        self.until_deadline -= usize::from(place.until_deadline);
        Some(place)
    }

    /// Who has become the first looks at devices from now on.
    fn tell_firsts(&mut self, told: &mut Told) {
        let firsts = self.firsts();
        for (first, before) in firsts.iter().zip(self.told) {
            if *first != before {
                let place = first.and_then(|turn| self.waiting.get(&turn));
                told.extend(place.and_then(|place| place.name));
            }
        }
        self.told = firsts;
    }
}
