//! A tree that a peer has offered, checked before there is room for any byte of it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use transship::Manifest;

use crate::agent::Peer;
use crate::arena::Range;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::inbox::{Inbox, Offered};
use crate::link::Link;
use crate::pack::bytes_of;
use crate::receive::Receive;
use crate::wire::Message;

/// What a receive waits for whose turn has not come.
const BEHIND: &str = "the turn behind an earlier receive, which waits for a tree of the sender, or for room in the memory of its own agent,";

/// How long a receive does not look for each one that is before it, but for the first: about as long as a small tree takes.
const NAP_FOR_EACH: Duration = Duration::from_micros(250);
/// A receive that is dropped goes within this time.
const LONGEST_NAP: Duration = Duration::from_millis(20);

/// A tree that a peer has offered. Dropped, it is refused.
pub(crate) struct Offer<'a> {
    link: &'a Arc<Link>,
    peer: &'a Peer,
    /// That of its receive.
    turn: u64,
    offered: Offered,
    /// Where the peer writes it.
    room: Option<Arc<Range>>,
    /// What the peer hears, unless all has arrived.
    refusal: Option<String>,
}

impl<'a> Offer<'a> {
    /// The next one, once it is the turn of this receive.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`], if another one has the name of the peer meanwhile.
    pub(crate) fn next(receive: &'a Receive) -> Result<Self> {
        let Receive { link, peer, turn, deadline, claim } = receive;
        let mut before = 0;
        let offered = deadline.until("a tree of the sender", || {
            // The one in front looks for the trees of all.
            thread::sleep(nap_behind(before).min(deadline.left()));
            let mut state = link.hear()?;
            let unknown = || Error::UnknownPeer { peer: peer.to_string() };
            let inbox = state.mail.inbox(peer.name()).ok_or_else(unknown)?;
            before = inbox.before(*turn).ok_or_else(unknown)?;
            if claim.is_given_up() || (inbox.may_take(*turn) && !claim.take()) {
                // The transfer was dropped: nobody hears it.
                return Err(Error::Lost);
            }
            Ok(inbox.next(*turn))
        });
        let offered = offered.map_err(|error| match error {
            Error::TimedOut { limit, .. } if before > 0 => Error::TimedOut { what: BEHIND, limit },
            error => error,
        })?;
        let refusal = Some("the receiver has stopped".to_owned());
        Ok(Self { link, peer, turn: *turn, offered, room: None, refusal })
    }

    /// Its manifest, if that has the tensors of `own`.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`ManifestMismatch`](transship::Error::ManifestMismatch).
    pub(crate) fn check_tensors(&mut self, own: &Manifest) -> Result<Manifest> {
        if self.offered.manifest == own.to_bytes() && self.offered.bytes == bytes_of(own) {
            return Ok(own.clone());
        }
        let manifest = self.check()?;
        own.check_tensors(&manifest)?;
        Ok(manifest)
    }

    /// Its manifest.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`]; [`InvalidManifest`](transship::Error::InvalidManifest).
    pub(crate) fn check(&mut self) -> Result<Manifest> {
        let manifest = Manifest::from_bytes(std::mem::take(&mut self.offered.manifest))?;
        let reason = if !matches!(manifest.chunks(), [] | [_]) {
            "a tree lies in one chunk"
        } else if bytes_of(&manifest) != self.offered.bytes {
            "the chunk of the manifest has another size than the tree"
        } else {
            return Ok(manifest);
        };
        Err(Error::Protocol { peer: self.peer.to_string(), reason: reason.to_owned() })
    }

    /// Gives the peer room for it.
    pub(crate) fn accept(&mut self, deadline: Deadline) -> Result<Arc<Range>> {
        let range = self.wait_for_room(deadline)?;
        self.room = Some(Arc::clone(&range));
        let accepted = Message::Accepted { id: self.offered.id, offset: range.offset };
        self.link.notify(self.peer.name(), &accepted)?;
        Ok(range)
    }

    /// Returns once the room is full. `arrived` hears how many bytes are there, from the first one on.
    pub(crate) fn receive(
        &self,
        deadline: Deadline,
        mut arrived: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let mut there = 0;
        while there < self.offered.bytes {
            there = deadline.until("the next bytes of the sender", || self.more_than(there))?;
            arrived(there)?;
        }
        Ok(())
    }

    /// Those that come behind it wait as well: a small tree does not take again and again what a large one waits for.
    ///
    /// # Errors
    ///
    /// [`Error::ArenaFull`]: at once, if there never is so much, else by the deadline.
    fn wait_for_room(&self, deadline: Deadline) -> Result<Arc<Range>> {
        let bytes = self.offered.bytes;
        if !self.link.arena.may_have(bytes) {
            return Err(self.link.full(bytes));
        }
        let found = deadline.until("room", || {
            // Hears what sets room free, too.
            self.more_than(0)?;
            Ok(self.link.arena.range(bytes).map(Arc::new))
        });
        let range = match found {
            Err(Error::TimedOut { .. }) => return Err(self.link.full(bytes)),
            found => found?,
        };
        if let Some(inbox) = self.link.lock().mail.inbox(self.peer.name()) {
            inbox.leave(self.turn);
        }
        Ok(range)
    }

    /// Whether the peer has given it up before it has written anything.
    pub(crate) fn never_came(&self) -> bool {
        let mut state = self.link.lock();
        let progress = state.mail.inbox(self.peer.name()).and_then(|inbox| inbox.progress(self.offered.id));
        progress.is_some_and(|progress| progress.is_withdrawn && progress.written == 0)
    }

    /// How many bytes are there, if it is more than that.
    fn more_than(&self, before: usize) -> Result<Option<usize>> {
        let mut state = self.link.hear()?;
        let progress = state.mail.inbox(self.peer.name()).and_then(|inbox| inbox.progress(self.offered.id));
        let progress = progress.unwrap_or_default();
        let written = progress.written.min(self.offered.bytes);
        if written <= before && progress.is_withdrawn {
            return Err(Error::Withdrawn { peer: self.peer.to_string() });
        }
        Ok((written > before).then_some(written))
    }

    /// Answers: all has arrived, or why not.
    pub(crate) fn end<T>(mut self, result: Result<T>) -> Result<T> {
        self.refusal = result.as_ref().err().map(ToString::to_string);
        result
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        let id = self.offered.id;
        let mut state = self.link.lock();
        let inbox = state.mail.inbox(self.peer.name());
        let progress = inbox.map(|inbox: &mut Inbox| inbox.end(id, self.room.take()));
        let message = match self.refusal.take() {
            None => Message::Done { id },
            // It waits for no answer.
            Some(_) if progress.is_some_and(|progress| progress.is_withdrawn) => return,
            Some(reason) => Message::Refused { id, reason },
        };
        // A peer that has gone needs no answer.
        let _ = state.agent.notify(self.peer.name(), &message.to_bytes());
    }
}

/// How long a receive with so many before it need not look.
fn nap_behind(before: usize) -> Duration {
    let others = u32::try_from(before.saturating_sub(1)).unwrap_or(u32::MAX);
    NAP_FOR_EACH.saturating_mul(others).min(LONGEST_NAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deliberate bugs: the next one naps, and takes its tree late; naps are as long as the queue.
    #[test]
    fn who_is_far_behind_looks_seldom_and_soon_enough() {
        let naps = [0, 1, 2, 3, 81, 82, usize::MAX].map(nap_behind);
        assert_eq!(naps.map(|nap| nap.as_micros()), [0, 0, 250, 500, 20_000, 20_000, 20_000]);
    }
}
