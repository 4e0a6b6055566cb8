//! A tree that a peer has offered, checked before any byte of it is read.

use std::sync::Arc;

use transship::Manifest;

use crate::agent::Peer;
use crate::arena::Range;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::mail::Offered;
use crate::pack::PIECE;
use crate::requests::Piece;
use crate::wire::Message;

/// A tree that a peer has offered. Dropped, it is refused.
pub(crate) struct Offer<'a> {
    link: &'a Arc<Link>,
    peer: &'a Peer,
    offered: Offered,
    /// What the peer hears, unless all was read.
    refusal: Option<String>,
}

impl<'a> Offer<'a> {
    /// The next one, once it is the turn of this receive.
    pub(crate) fn next(link: &'a Arc<Link>, peer: &'a Peer, turn: u64, deadline: Deadline) -> Result<Self> {
        let offered = deadline.until("a tree of the peer", || Ok(link.hear()?.mail.next(peer.name(), turn)));
        let refusal = Some("the receiver has stopped".to_owned());
        Ok(Self { link, peer, offered: offered?, refusal })
    }

    /// Its manifest, which lies in the arena of the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`]; [`InvalidManifest`](transship::Error::InvalidManifest).
    pub(crate) fn check(&mut self) -> Result<Manifest> {
        let manifest = Manifest::from_bytes(std::mem::take(&mut self.offered.manifest))?;
        let Offered { offset, bytes, .. } = self.offered;
        let reason = if !matches!(manifest.chunks(), [] | [_]) {
            "a tree lies in one chunk"
        } else if manifest.chunks().first().copied().unwrap_or(0) != bytes {
            "the chunk of the manifest has another size than the tree"
        } else if offset.checked_add(bytes).is_none_or(|end| end > self.peer.arena_bytes()) {
            "the tree does not lie in the memory of its agent"
        } else {
            return Ok(manifest);
        };
        Err(Error::Protocol { peer: self.peer.to_string(), reason: reason.to_owned() })
    }

    /// Reads all of it, piece after piece, as they are ready. `arrived` hears how many bytes are there.
    pub(crate) fn read(
        &mut self,
        deadline: Deadline,
        mut arrived: impl FnMut(&Arc<Range>, usize) -> Result<()>,
    ) -> Result<Arc<Range>> {
        let range = self.link.range(self.offered.bytes)?;
        for start in (0..self.offered.bytes).step_by(PIECE) {
            let end = (start + PIECE).min(self.offered.bytes);
            deadline.until("the next bytes of the peer", || self.is_ready(end))?;
            let piece = Piece {
                peer: self.peer.name().to_owned(),
                from: self.peer.arena_start() + self.offered.offset + start,
                to: range.address() + start,
                bytes: end - start,
            };
            // SAFETY: the range was made above and has all of the piece; nobody reads there before `arrived` hears of it.
            let mut posted = unsafe { self.link.post(piece, &range) }?;
            deadline.until("reading", || Ok(posted.is_done()?.then_some(())))?;
            arrived(&range, end)?;
        }
        Ok(range)
    }

    fn is_ready(&self, end: usize) -> Result<Option<()>> {
        let progress = self.link.hear()?.mail.progress(self.peer.name(), self.offered.id);
        match progress {
            Some(progress) if !progress.is_withdrawn => Ok((progress.ready >= end).then_some(())),
            _ => Err(Error::Refused {
                peer: self.peer.to_string(),
                reason: "it has withdrawn the tree".to_owned(),
            }),
        }
    }

    /// Answers: it was read, or why not.
    pub(crate) fn end<T>(mut self, result: Result<T>) -> Result<T> {
        self.refusal = result.as_ref().err().map(ToString::to_string);
        result
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        let id = self.offered.id;
        let message = match self.refusal.take() {
            None => Message::Done { id },
            Some(reason) => Message::Refused { id, reason },
        };
        let mut state = self.link.lock();
        state.mail.end_read(self.peer.name(), id);
        // A peer that has gone needs no answer.
        let _ = state.agent.notify(self.peer.name(), &message.to_bytes());
    }
}
