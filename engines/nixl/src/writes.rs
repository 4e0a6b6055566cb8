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
const MOST_UNDER_WAY: usize = 4;

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

    /// Goes on with what is packed, so many bytes from the first one on, as far as that is possible at once. How many lie in the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`]: what was on its way then may still arrive, and the peer never hears that it has ended. Others of the library.
    pub(crate) fn go_on(&mut self, packed: usize) -> Result<usize> {
        let went_on = self.collect().and_then(|()| self.post(packed));
        if matches!(went_on, Err(Error::Broken { .. })) {
            self.is_broken = true;
            self.under_way.iter_mut().for_each(|(_, posted)| posted.hush());
        }
        went_on.map(|()| self.written)
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

    fn post(&mut self, packed: usize) -> Result<()> {
        while self.posted < self.range.bytes && self.under_way.len() < MOST_UNDER_WAY {
            let (start, end) = (self.posted, self.pieces.end_at(self.posted));
            if end > packed {
                break;
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
        }
        Ok(())
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.link.set_aside(self.under_way.drain(..).map(|(_, posted)| posted));
    }
}
