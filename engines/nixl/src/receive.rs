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
            let range = offer.receive(self.deadline, |_, _| Ok(()))?;
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
        let manifest = offer.check().and_then(|manifest| {
            own.check_tensors(&manifest)?;
            Ok(manifest)
        });
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(error) => {
                let _: Result<()> = offer.end(Err(error.clone()));
                return unchanged(tensors, error);
            }
        };
        let mut unpack = Unpack::new(tensors, &manifest, self.link.device.clone());
        let received = offer.receive(self.deadline, |range, bytes| unpack.arrived(&manifest, range, bytes));
        // The peer hears that all is unpacked, or why not.
        let filled = unpack.finish(received.map(drop), self.deadline);
        let _: Result<()> = offer.end(filled.error.clone().map_or(Ok(()), Err));
        filled
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
