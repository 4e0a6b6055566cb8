//! The bytes of a tree on their way to where the peer has room for them, a few pieces at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::agent::Peer;
use crate::arena::Range;
use crate::error::{Error, Result};
use crate::link::{Link, Posted};
use crate::pieces::Pieces;
use crate::requests::Piece;

/// How many pieces are under way at a time.
pub(crate) const MOST_UNDER_WAY: usize = 4;

/// Writes of one tree. Dropped, what is under way is set aside, all of it at once: who looked between two of them would find that the first is all that is left of
/// the tree, and tell the peer of its end.
pub(crate) struct Writes {
    link: Arc<Link>,
    peer: Peer,
    id: u64,
    range: Arc<Range>,
    pieces: Pieces,
    /// Where they go.
    to: usize,
    /// Bytes from the first one on that were posted, and that lie in the peer.
    posted: usize,
    written: usize,
    /// Each with its end.
    under_way: VecDeque<(usize, Posted)>,
    is_broken: bool,
}

impl Writes {
    /// `to` is an address in the peer, with room for all of `range`, where the tree `id` is packed.
    pub(crate) fn new(
        link: Arc<Link>,
        peer: Peer,
        id: u64,
        range: Arc<Range>,
        pieces: Pieces,
        to: usize,
    ) -> Self {
        let under_way = VecDeque::new();
        Self { link, peer, id, range, pieces, to, posted: 0, written: 0, under_way, is_broken: false }
    }

    /// How many bytes lie in the peer, from the first one on.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`]: what was on its way then may still arrive, and the peer never hears that it has ended. Others of the library.
    pub(crate) fn written(&mut self) -> Result<usize> {
        let collected = self.collect();
        self.note_if_broken(&collected);
        collected.map(|()| self.written)
    }

    /// Posts the next piece, if it lies among so many bytes that are packed, and not too many are under way. Whether it has. Where the library copies by itself, the piece is
    /// written when this returns.
    ///
    /// # Errors
    ///
    /// As [`written`](Self::written).
    pub(crate) fn post_next(&mut self, packed: usize) -> Result<bool> {
        let posted = self.post(packed);
        self.note_if_broken(&posted);
        posted
    }

    pub(crate) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether all that was begun lies in the peer.
    pub(crate) fn have_ended_well(&self) -> bool {
        !self.is_under_way() && !self.is_broken
    }

    fn collect(&mut self) -> Result<()> {
        while let Some((end, posted)) = self.under_way.front_mut() {
            if !posted.is_done()? {
                break;
            }
            self.written = *end;
            self.under_way.pop_front();
        }
        Ok(())
    }

    fn post(&mut self, packed: usize) -> Result<bool> {
        let (start, end) = (self.posted, self.pieces.end_at(self.posted));
        if end > packed || self.under_way.len() == MOST_UNDER_WAY {
            return Ok(false);
        }
        let piece = Piece {
            peer: self.peer.name().to_owned(),
            from: self.range.address() + start,
            to: self.to + start,
            place: self.peer.place(),
            bytes: end - start,
        };
        // SAFETY: the range has the piece, which is packed: nobody writes there any more.
        let posted = unsafe { self.link.post(self.id, piece, &self.range) }?;
        self.under_way.push_back((end, posted));
        self.posted = end;
        Ok(true)
    }

    fn note_if_broken<T>(&mut self, result: &Result<T>) {
        if matches!(result, Err(Error::Broken { .. })) {
            self.is_broken = true;
            self.under_way.iter_mut().for_each(|(_, posted)| posted.hush());
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.link.set_aside(self.under_way.drain(..).map(|(_, posted)| posted));
    }
}
