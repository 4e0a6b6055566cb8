//! Those who wait for room in the budget of a device, in the order in which they have come.

use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicUsize, Ordering};

/// Whoever gives memory back hands it to the first who has room then. Who needs more than there is holds up nobody behind him.
#[derive(Default)]
pub(crate) struct Line {
    /// How many wait, so that nobody takes the lock while nobody does.
    length: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
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
        places.all.push(Place { turn, bytes, is_served: false });
        self.length.store(places.all.len(), Ordering::Relaxed);
        turn
    }

    /// Gives each who waits what it waits for, if `take` finds room for that.
    pub(crate) fn serve(&self, take: impl Fn(usize) -> bool) {
        // Who has just entered and is not seen here asks himself.
        if self.length.load(Ordering::Relaxed) == 0 {
            return;
        }
        for place in self.places.lock().all.iter_mut().filter(|place| !place.is_served) {
            place.is_served = take(place.bytes);
        }
    }

    /// Gives the place up if it was served.
    pub(crate) fn leave_if_served(&self, turn: u64) -> bool {
        let is_served = self.places.lock().all.iter().any(|place| place.turn == turn && place.is_served);
        is_served && self.leave(turn)
    }

    /// Gives the place up. Whether it was served, and nobody has taken that yet.
    pub(crate) fn leave(&self, turn: u64) -> bool {
        let mut places = self.places.lock();
        let Some(index) = places.all.iter().position(|place| place.turn == turn) else { return false };
        let place = places.all.remove(index);
        self.length.store(places.all.len(), Ordering::Relaxed);
        place.is_served
    }
}
