//! Room in the budget of a device, for those who wait if there is none.

use std::sync::Arc;

use crate::device::device::Device;
use crate::device::room_to_come::RoomToCome;
use crate::error::Result;
use crate::in_flight::carried::Carried;
use crate::in_flight::line_for_room::Standing;
use crate::in_flight::memory_budget::{InLine, Reservation};
use crate::runtime::backoff::Backoff;
use crate::runtime::sync::{Instant, Mutex};

/// What became of a question for room.
pub(crate) enum Room {
    Reserved(Reservation),
    Awaited(Arc<RoomAwaited>),
}

/// A place in line, and what was in flight when it was taken. Whoever likes goes on with it ([`is_over`](Self::is_over)); given up when it
/// is dropped.
pub(crate) struct RoomAwaited {
    device: Device,
    bytes: usize,
    place: Arc<InLine>,
    /// Waits for it.
    copy: Option<Carried>,
    /// `None` while a thread asks.
    coming: Mutex<Option<RoomToCome>>,
}

impl Device {
    /// Reserves `bytes` bytes if nobody waits for room and there is some, else takes the last place in line. If nothing in flight can make
    /// room, that is an error, unless `copy` asks and has a deadline: then it stands aside. A copy counts from now on as in flight. Never
    /// waits.
    pub(crate) fn ask_for_room(&self, bytes: usize, copy: Option<Carried>) -> Result<Room> {
        let now = self.budget().exceeded();
        if bytes > now.budget {
            return Err(self.over_budget(bytes, now));
        }
        let completion = copy.as_ref().and_then(Carried::completion);
        let deadline = completion.as_ref().and_then(|completion| completion.deadline());
        let name = completion.as_ref().map(|completion| completion.name());
        // Places in line and what each waits for are in one order, so that no two wait for each other: nor do they on several devices, since each
        // copy is noted on its target first.
        let mut background = self.background().lock();
        let place = self.budget().stand_in_line(self.id(), bytes, deadline.is_some(), name);
        let before = background.noted();
        let seen = copy.clone().map(|copy| background.note(copy));
        drop(background);
        drop(seen);
        let place = Arc::new(place);
        deadline.into_iter().for_each(|deadline| deadline.stands_at(&place));
        let coming = Mutex::new(Some(RoomToCome::of(self, before)));
        let awaited = RoomAwaited { device: self.clone(), bytes, place, copy, coming };
        match awaited.is_over() {
            true => awaited.end().map(Room::Reserved),
            false => Ok(Room::Awaited(Arc::new(awaited))),
        }
    }

    /// Counts `bytes` bytes as used by tensors. Where there is no room, waits for what is in flight now, behind those who wait already.
    pub(crate) fn reserve_patiently(&self, bytes: usize) -> Result<Reservation> {
        match self.ask_for_room(bytes, None)? {
            Room::Reserved(reserved) => Ok(reserved),
            Room::Awaited(room) => {
                room.wait(|| true);
                room.end()
            }
        }
    }
}

impl RoomAwaited {
    /// Whether there is room, or none is to come any more. Asks drivers, if it is the first in line or aside; never blocks.
    pub(crate) fn is_over(&self) -> bool {
        match self.place.standing() {
            Standing::First | Standing::Aside { is_first: true } => {}
            standing => return standing == Standing::Served,
        }
        // Without the lock: whoever is told of the end of a copy may be told here.
        let coming = self.coming.lock().take();
        let mut asking = Asking { coming, of: self };
        let Some(coming) = &mut asking.coming else { return false };
        let is_over = coming.is_over(&self.device) && !self.stands_aside();
        is_over || self.place.is_served()
    }

    /// Whether nobody has to ask before it is served, or the first.
    pub(crate) fn is_behind(&self) -> bool {
        matches!(self.place.standing(), Standing::Behind | Standing::Aside { is_first: false })
    }

    /// Has a copy with a deadline wait on for what the program frees, since nothing in flight can make room for it.
    fn stands_aside(&self) -> bool {
        let completion = self.copy.as_ref().and_then(|copy| Some((copy, copy.completion()?)));
        let Some((copy, completion)) = completion else { return false };
        if !completion.has_deadline() {
            return false;
        }
        if self.place.step_aside() {
            copy.set_aside(true);
            if !matches!(self.place.standing(), Standing::Aside { .. }) {
                // It was served meanwhile.
                copy.set_aside(false);
            }
        }
        true
    }

    /// Waits until it is over, for as long as it `is_wanted`.
    pub(crate) fn wait(&self, is_wanted: impl Fn() -> bool) {
        let begin = Instant::now();
        while is_wanted() && !self.is_over() {
            Backoff::FOR_A_STREAM.sleep(begin);
        }
    }

    /// Gives the place up; returns the room, or why there is none.
    pub(crate) fn end(&self) -> Result<Reservation> {
        let refused = || self.device.over_budget(self.bytes, self.device.budget().exceeded());
        let room = self.place.leave().ok_or_else(refused)?;
        // It is in flight again, at its old place: for all who came after it.
        self.copy.iter().for_each(|copy| copy.set_aside(false));
        Ok(room)
    }
}

/// Puts back what was taken out, though a driver may panic.
struct Asking<'a> {
    coming: Option<RoomToCome>,
    of: &'a RoomAwaited,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(coming) = self.coming.take() {
            *self.of.coming.lock() = Some(coming);
        }
    }
}
