//! Those who wait for room in the budget of a device. First come, first served: who needs more than there is holds up those behind him.

use std::collections::VecDeque;

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
    is_served: bool,
}

impl Line {
    /// Takes the last place, and returns its number.
    pub(crate) fn enter(&self, bytes: usize) -> u64 {
        let mut places = self.places.lock();
        let turn = places.entered;
        places.entered += 1;
        places.all.push_back(Place { turn, bytes, is_served: false });
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

    /// Whether this place was served.
    pub(crate) fn is_served(&self, turn: u64) -> bool {
        let places = self.places.lock();
        places.index_of(turn).is_some_and(|index| index < places.served())
    }

    /// Whether all before this place were served, or have left.
    pub(crate) fn is_first(&self, turn: u64) -> bool {
        let places = self.places.lock();
        places.all.get(places.served()).is_some_and(|first| first.turn == turn)
    }

    /// Gives the place up. Whether it was served; `None` if it was given up before.
    pub(crate) fn leave(&self, turn: u64) -> Option<bool> {
        let mut places = self.places.lock();
        let place = places.index_of(turn).and_then(|index| places.all.remove(index))?;
        self.count(&places);
        Some(place.is_served)
    }

    fn count(&self, places: &Places) {
        self.waiting.store(places.all.len() - places.served(), Ordering::SeqCst);
    }
}

impl Places {
    fn served(&self) -> usize {
        self.all.partition_point(|place| place.is_served)
    }

    fn index_of(&self, turn: u64) -> Option<usize> {
        self.all.binary_search_by_key(&turn, |place| place.turn).ok()
    }
}
