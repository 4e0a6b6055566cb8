//! Sending a tree: packed into the arena, part after part, and written from there to where the peer has room.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use transship::RepeatedPacking;

use crate::agent::Peer;
use crate::arena::Range;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::inbox::MOST_MANIFEST_BYTES;
use crate::link::Link;
use crate::mail::{End, Reply};
use crate::pack::{Part, bytes_of, pack};
use crate::pieces::Pieces;
use crate::wire::Message;
use crate::writes::{MOST_UNDER_WAY, Writes};

/// How long writes are looked after whose transfer has ended before them, so that the peer hears of their end.
const LINGERS: Duration = Duration::from_secs(1);

/// A tree that goes to a peer. Dropped before the peer has all of it, it is withdrawn.
pub(crate) struct Sending {
    link: Arc<Link>,
    peer: Peer,
    id: u64,
    packing: Arc<RepeatedPacking>,
    range: Arc<Range>,
    pieces: Pieces,
    phase: Phase,
    /// How many bytes the peer knows that it has.
    told: usize,
}

/// What the peer has heard of it.
enum Phase {
    Begun,
    Offered,
    /// It has room for it.
    Writing(Writes),
    /// It has all, or wants nothing.
    Ended,
}

/// Writes of a transfer that has ended. Dropped, it looks after them for a while.
pub(crate) struct Late(Arc<Link>);

impl Sending {
    /// Gets memory for it, and its place behind those that were begun before.
    pub(crate) fn new(link: Arc<Link>, peer: Peer, packing: Arc<RepeatedPacking>) -> Result<Self> {
        let range = link.range(bytes_of(packing.manifest()))?;
        let pieces = Pieces::new(range.bytes, &link.device);
        let id = link.next_id();
        link.lock().mail.begin_send(id, peer.name(), peer.added())?;
        Ok(Self { link, peer, id, packing, range, pieces, phase: Phase::Begun, told: 0 })
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Returns once the peer has all of it.
    pub(crate) fn run(&mut self, parts: &[Part], deadline: Deadline) -> Result<()> {
        self.offer(deadline)?;
        let range = Arc::clone(&self.range);
        let (device, pieces) = (self.link.device.clone(), self.pieces.clone());
        let packing = Arc::clone(&self.packing);
        pack(parts, packing.manifest(), &pieces, &range, &device, deadline, |packed| {
            self.go_on(packed).map(drop)
        })?;
        deadline.until("room at the receiver", || self.go_on(range.bytes))?;
        let is_told = |told: Option<usize>| told.filter(|told| *told == range.bytes);
        deadline
            .until("the end of what is written to the receiver", || self.go_on(range.bytes).map(is_told))?;
        self.phase = Phase::Ended;
        match deadline.until("word of the receiver that it has unpacked all", || Ok(self.reply()?.end))? {
            End::Done => Ok(()),
            End::Refused(reason) => Err(self.refused(reason)),
        }
    }

    /// Withdraws it, if it has not ended well. What is still being written is in there.
    pub(crate) fn end(self) -> Option<Late> {
        match &self.phase {
            Phase::Writing(writes) if writes.is_under_way() => Some(Late(Arc::clone(&self.link))),
            _ => None,
        }
    }

    fn offer(&mut self, deadline: Deadline) -> Result<()> {
        let is_next = || Ok(self.link.lock().mail.may_offer(self.id, self.peer.name()).then_some(()));
        deadline.until("the turn behind an earlier tree to the same peer", is_next)?;
        let manifest = self.packing.manifest().to_bytes();
        if manifest.len() > MOST_MANIFEST_BYTES {
            return Err(Error::ManifestTooLong { bytes: manifest.len(), limit: MOST_MANIFEST_BYTES });
        }
        let offer = Message::Offer { id: self.id, bytes: self.range.bytes, manifest };
        let told = self.link.notify(self.peer.name(), &offer);
        self.phase = Phase::Offered;
        self.link.lock().mail.is_offered(self.id, self.peer.name());
        told
    }

    /// Does what can be done at once, with so many bytes that are packed. How many the peer knows that it has, once it has room.
    fn go_on(&mut self, packed: usize) -> Result<Option<usize>> {
        let Reply { room, end } = self.reply()?;
        if let (Phase::Offered, Some(offset)) = (&self.phase, room) {
            let (link, peer, range) = (Arc::clone(&self.link), self.peer.clone(), Arc::clone(&self.range));
            let (pieces, to) = (self.pieces.clone(), self.address(offset)?);
            self.phase = Phase::Writing(Writes::new(link, peer, self.id, range, pieces, to));
        }
        match end {
            None => {}
            Some(End::Done) if self.told == self.range.bytes => {}
            Some(End::Done) => return Err(self.protocol("it has all of a tree that was not written yet")),
            Some(End::Refused(reason)) => {
                if room.is_none() {
                    self.phase = Phase::Ended;
                }
                return Err(self.refused(reason));
            }
        }
        let mut told = self.tell()?;
        // No more at a time: the library may write each before it returns, and the deadline is looked at behind them.
        for _ in 0..MOST_UNDER_WAY {
            let Phase::Writing(writes) = &mut self.phase else { break };
            if !writes.post_next(packed)? {
                break;
            }
            // What is written already is unpacked while the next piece is.
            told = self.tell()?;
        }
        Ok(told)
    }

    /// Tells the peer what it has. How many bytes that is, once it has room.
    fn tell(&mut self) -> Result<Option<usize>> {
        let Phase::Writing(writes) = &mut self.phase else { return Ok(None) };
        let bytes = writes.written()?;
        if bytes > self.told {
            self.link.notify(self.peer.name(), &Message::Written { id: self.id, bytes })?;
            self.told = bytes;
        }
        Ok(Some(bytes))
    }

    fn reply(&self) -> Result<Reply> {
        Ok(self.link.hear()?.mail.reply_to(self.id))
    }

    /// Where the room begins, all of which has to lie in the arena of the peer.
    fn address(&self, offset: usize) -> Result<usize> {
        match offset.checked_add(self.range.bytes) {
            Some(end) if end <= self.peer.arena_bytes() => Ok(self.peer.arena_start() + offset),
            _ => Err(self.protocol("the room does not lie in the memory of its agent")),
        }
    }

    fn refused(&self, reason: String) -> Error {
        Error::Refused { peer: self.peer.to_string(), reason }
    }

    fn protocol(&self, reason: &str) -> Error {
        Error::Protocol { peer: self.peer.to_string(), reason: reason.to_owned() }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let withdraws = match mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Offered => true,
            // Of those that are under way the peer hears when they have ended (`Link::hear`).
            Phase::Writing(writes) => self.told < self.range.bytes && writes.have_ended_well(),
            Phase::Begun | Phase::Ended => false,
        };
        let mut state = self.link.lock();
        state.mail.is_offered(self.id, self.peer.name());
        state.mail.end_send(self.id);
        if withdraws {
            // A peer that cannot be reached waits until its deadline.
            let _ = state.agent.notify(self.peer.name(), &Message::Withdrawn { id: self.id }.to_bytes());
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let has_ended = || Ok(self.0.hear()?.is_nothing_late().then_some(()));
        // What is later still is looked after by whatever the agent does next.
        let _: Result<()> = Deadline::after(LINGERS).until("", has_ended);
    }
}
