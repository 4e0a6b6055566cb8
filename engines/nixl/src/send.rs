//! Sending a tree: packed into the arena, part after part, and read from there by the peer.

use std::sync::Arc;

use transship::Manifest;

use crate::agent::Peer;
use crate::arena::Range;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::mail::Answer;
use crate::pack::{Part, pack};
use crate::wire::Message;

/// A tree that goes to a peer. Dropped before the peer has answered, it is withdrawn.
pub(crate) struct Sending {
    link: Arc<Link>,
    peer: Peer,
    id: u64,
    manifest: Manifest,
    range: Arc<Range>,
    is_offered: bool,
    is_answered: bool,
}

impl Sending {
    /// Gets memory for it, and its place behind those that were begun before.
    pub(crate) fn new(link: Arc<Link>, peer: Peer, manifest: Manifest) -> Result<Self> {
        let range = link.range(manifest.chunks().first().copied().unwrap_or(0))?;
        let id = link.next_id();
        link.lock().mail.begin_send(id, peer.name());
        Ok(Self { link, peer, id, manifest, range, is_offered: false, is_answered: false })
    }

    /// Returns once the peer has read all of it.
    pub(crate) fn run(&mut self, parts: &[Part], deadline: Deadline) -> Result<()> {
        let range = Arc::clone(&self.range);
        pack(parts, &range, |ready| self.tell(ready, deadline))?;
        // One without elements.
        if !self.is_offered {
            self.tell(0, deadline)?;
        }
        let answer = deadline.until("reading by the peer", || self.answer())?;
        self.is_answered = true;
        match answer {
            Answer::Done => Ok(()),
            Answer::Refused(reason) => Err(self.refused(reason)),
        }
    }

    /// So many bytes are packed.
    fn tell(&mut self, ready: usize, deadline: Deadline) -> Result<()> {
        if self.is_offered {
            return self.link.notify(self.peer.name(), &Message::Ready { id: self.id, ready });
        }
        let is_next = || Ok(self.link.lock().mail.may_offer(self.id, self.peer.name()).then_some(()));
        deadline.until("an earlier tree to the same peer", is_next)?;
        let (offset, bytes) = (self.range.offset, self.range.bytes);
        let manifest = self.manifest.to_bytes();
        let offer = Message::Offer { id: self.id, offset, bytes, ready, manifest };
        self.is_offered = true;
        let told = self.link.notify(self.peer.name(), &offer);
        self.link.lock().mail.is_offered(self.id, self.peer.name());
        told
    }

    fn answer(&self) -> Result<Option<Answer>> {
        Ok(self.link.hear()?.mail.answer_to(self.id))
    }

    fn refused(&self, reason: String) -> Error {
        Error::Refused { peer: self.peer.to_string(), reason }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        state.mail.is_offered(self.id, self.peer.name());
        let withdrawn = Message::Withdrawn { id: self.id }.to_bytes();
        let may_be_read = self.is_offered && !self.is_answered;
        // A peer that cannot be reached reads no more.
        let may_be_read = may_be_read && state.agent.notify(self.peer.name(), &withdrawn).is_ok();
        state.mail.end_send(self.id, may_be_read.then(|| Arc::clone(&self.range)));
    }
}
