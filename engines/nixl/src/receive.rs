//! Receiving a tree.

use std::sync::Arc;

use transship::{Manifest, Tensor};

use crate::agent::Peer;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::offer::Offer;
use crate::received::Received;
use crate::transfer::Claim;
use crate::tree::Filled;
use crate::unpack::Unpack;

/// A receive that was begun: it has the next tree that nobody before it has.
pub(crate) struct Receive {
    pub(crate) link: Arc<Link>,
    pub(crate) peer: Peer,
    pub(crate) turn: u64,
    pub(crate) deadline: Deadline,
    /// On its tree.
    pub(crate) claim: Claim,
}

impl Receive {
    /// Receives the tree, whatever it has.
    pub(crate) fn fresh(self) -> Result<Received> {
        let mut before = None;
        loop {
            let mut offer = Offer::next(&self).map_err(|error| in_place_of(error, before))?;
            let received = offer.check().and_then(|manifest| {
                let range = offer.accept(self.deadline)?;
                offer.receive(self.deadline, |_| Ok(()))?;
                Received::new(manifest, &range, &self.link.device)
            });
            let is_none = received.is_err() && offer.never_came();
            match offer.end(received) {
                Err(withdrawn) if is_none => {
                    self.begin_again()?;
                    before = Some(withdrawn);
                }
                received => return received,
            }
        }
    }

    /// Receives the tree into `tensors`, which are those of `own`.
    pub(crate) fn into(self, mut tensors: Vec<Tensor>, own: &Manifest) -> Filled {
        let mut before = None;
        loop {
            let offer = match Offer::next(&self) {
                Ok(offer) => offer,
                Err(error) => return unchanged(tensors, Some(in_place_of(error, before))),
            };
            let (mut filled, is_none) = self.offered_into(offer, tensors, own);
            if !is_none || filled.tensors.iter().any(Option::is_none) {
                return filled;
            }
            if let Err(error) = self.begin_again() {
                filled.error = Some(error);
                return filled;
            }
            before = filled.error;
            tensors = filled.tensors.into_iter().flatten().collect();
        }
    }

    /// Receives the tree that is offered, and says whether it never came.
    fn offered_into(&self, mut offer: Offer<'_>, tensors: Vec<Tensor>, own: &Manifest) -> (Filled, bool) {
        let accepted = offer.check_tensors(own).and_then(|manifest| {
            let range = offer.accept(self.deadline)?;
            Ok((manifest, range))
        });
        let (manifest, range) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let is_none = offer.never_came();
                return (unchanged(tensors, offer.end::<()>(Err(error)).err()), is_none);
            }
        };
        // The peer writes meanwhile.
        let device = self.link.device.clone();
        let mut unpack = Unpack::new(tensors, &manifest, range, device, self.deadline);
        let received = offer.receive(self.deadline, |bytes| unpack.arrived(bytes));
        let is_none = received.is_err() && offer.never_came();
        let (unpacked, held) = unpack.wait();
        // The peer hears that all is unpacked, or why not, before tensors are joined.
        let error = offer.end(received.and(unpacked)).err();
        (Filled { tensors: held.into_tensors(), error }, is_none)
    }

    /// Waits for the next tree.
    fn begin_again(&self) -> Result<()> {
        self.claim.put_back();
        self.link.lock().mail.receive_again(self.turn, self.peer.name(), self.peer.added())
    }
}

fn unchanged(tensors: Vec<Tensor>, error: Option<Error>) -> Filled {
    Filled { tensors: tensors.into_iter().map(Some).collect(), error }
}

/// Where nothing came behind a tree that was withdrawn, that says more.
fn in_place_of(error: Error, withdrawn: Option<Error>) -> Error {
    match (error, withdrawn) {
        (Error::TimedOut { .. }, Some(withdrawn)) => withdrawn,
        (error, _) => error,
    }
}

/// Whoever comes behind it does not wait for it.
impl Drop for Receive {
    fn drop(&mut self) {
        if let Some(inbox) = self.link.lock().mail.inbox(self.peer.name()) {
            inbox.leave(self.turn);
        }
    }
}
