//! Receiving a tree.

use std::sync::Arc;

use transship::{Manifest, Tensor};

use crate::agent::Peer;
use crate::deadline::Deadline;
use crate::error::Result;
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
        let mut offer = Offer::next(&self)?;
        let received = offer.check().and_then(|manifest| {
            let range = offer.accept(self.deadline)?;
            offer.receive(self.deadline, |_| Ok(()))?;
            Received::new(manifest, &range, &self.link.device)
        });
        offer.end(received)
    }

    /// Receives the tree into `tensors`, which are those of `own`.
    pub(crate) fn into(self, tensors: Vec<Tensor>, own: &Manifest) -> Filled {
        let unchanged = |tensors: Vec<Tensor>, error| Filled {
            tensors: tensors.into_iter().map(Some).collect(),
            error: Some(error),
        };
        let mut offer = match Offer::next(&self) {
            Ok(offer) => offer,
            Err(error) => return unchanged(tensors, error),
        };
        let accepted = offer.check_tensors(own).and_then(|manifest| {
            let range = offer.accept(self.deadline)?;
            Ok((manifest, range))
        });
        let (manifest, range) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let _: Result<()> = offer.end(Err(error.clone()));
                return unchanged(tensors, error);
            }
        };
        // The peer writes meanwhile.
        let mut unpack = Unpack::new(tensors, &manifest, range, self.link.device.clone());
        let received = offer.receive(self.deadline, |bytes| unpack.arrived(bytes));
        let (unpacked, held) = unpack.wait(self.deadline);
        // The peer hears that all is unpacked, or why not.
        let error = offer.end(received.and(unpacked)).err();
        Filled { tensors: held.into_tensors(), error }
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
