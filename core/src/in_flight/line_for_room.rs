//! Those who wait for room in the budget of a device. First come, first served: who needs more than there is holds up those behind him, but
//! for those who stand aside.
//!
//! No room is kept for those who stand aside, so others may take for ever what comes back. Kept room would have to be refused to a copy that
//! it is enough for, or that copy would have to wait; and its thread may be the one that gives back what the first one waits for, once it has
//! its next result. Nothing tells such a thread from others.

use std::collections::VecDeque;
use std::mem;

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

#[derive(Default)]
struct Places {
    /// Those who are served come first, in their order.
    all: VecDeque<Place>,
    entered: u64,
}

struct Place {
    turn: u64,
    bytes: usize,
    /// It will stand aside where others are refused.
    until_deadline: bool,
    is_served: bool,
    is_aside: bool,
}

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
    /// Takes the last place, and returns its number.
    pub(crate) fn enter(&self, bytes: usize, until_deadline: bool) -> u64 {
        let mut places = self.places.lock();
        let turn = places.entered;
        places.entered += 1;
        places.all.push_back(Place { turn, bytes, until_deadline, is_served: false, is_aside: false });
        self.count(&places);
        turn
    }

    /// Whether somebody waits who is not served yet.
    pub(crate) fn is_waited_in(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Gives those who wait what they wait for, in their order, up to the first that `take` finds no room for. Whether somebody was served.
    pub(crate) fn serve(&self, take: impl Fn(usize) -> bool) -> bool {
        if !self.is_waited_in() {
            return false;
        }
        let mut places = self.places.lock();
        let served = places.served();
        for place in places.all.iter_mut().skip(served) {
            if !take(place.bytes) {
                break;
            }
            place.is_served = true;
        }
        self.count(&places);
        places.served() > served
    }

    /// Whether somebody waits who neither is served yet nor stands aside.
    pub(crate) fn has_who_stands_in_it(&self) -> bool {
        self.is_waited_in() && self.places.lock().waiting().any(|place| !place.is_aside)
    }

    /// Whether somebody stands aside, or will where nothing in flight makes room.
    pub(crate) fn has_who_waits_for_the_program(&self) -> bool {
        self.is_waited_in() && self.places.lock().waiting().any(|place| place.until_deadline)
    }

    pub(crate) fn standing(&self, turn: u64) -> Standing {
        let places = self.places.lock();
        let Some(place) = places.index_of(turn).and_then(|index| places.all.get(index)) else {
            return Standing::Left;
        };
        let is_first = |place: Option<&Place>| place.is_some_and(|first| first.turn == turn);
        match place {
            Place { is_served: true, .. } => Standing::Served,
            Place { is_aside: true, .. } => Standing::Aside { is_first: is_first(places.waiting().next()) },
            _ if is_first(places.waiting().find(|place| !place.is_aside)) => Standing::First,
            _ => Standing::Behind,
        }
    }

    /// The place keeps its turn, and holds up nobody behind it any more. `false` if it stood aside already.
    pub(crate) fn step_aside(&self, turn: u64) -> bool {
        let mut places = self.places.lock();
        let place = places.index_of(turn).and_then(|index| places.all.get_mut(index));
        place.is_some_and(|place| !mem::replace(&mut place.is_aside, true))
    }

    /// Gives the place up. Whether it was served, or takes what there is, for which only those before it wait who stand aside; `None` if it
    /// was given up before.
    pub(crate) fn leave(&self, turn: u64, take: impl Fn(usize) -> bool) -> Option<bool> {
        let mut places = self.places.lock();
        let index = places.index_of(turn)?;
        let stand_aside = places.waiting().take_while(|place| place.turn < turn).all(|place| place.is_aside);
        let place = places.all.remove(index)?;
        self.count(&places);
        Some(place.is_served || (stand_aside && take(place.bytes)))
    }

    fn count(&self, places: &Places) {
        self.waiting.store(places.all.len() - places.served(), Ordering::SeqCst);
    }
}

impl Places {
    fn served(&self) -> usize {
        self.all.partition_point(|place| place.is_served)
    }

    /// Those who are not served yet.
    fn waiting(&self) -> impl Iterator<Item = &Place> {
        self.all.iter().skip(self.served())
    }

    fn index_of(&self, turn: u64) -> Option<usize> {
        self.all.binary_search_by_key(&turn, |place| place.turn).ok()
    }
}
