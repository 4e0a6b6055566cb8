//! Pools of other processes on a device, and the devices that they are opened to. Imported memory is the device's own at first: peers that its owner has opened it to
//! are peers of another process.

use std::sync::{Arc, Weak};

use crate::backend::stream_ordered::api::Api;
use crate::backend::stream_ordered::context::Context;
use crate::error::Result;
use crate::runtime::sync::Mutex;

/// The pools of a device that this process has imported, and the peers of this process that use its memory.
pub(crate) struct ImportedPools<A: Api>(Mutex<Known<A>>);

struct Known<A: Api> {
    pools: Vec<Weak<dyn OpenTo<A>>>,
    peers: Vec<Weak<Context<A>>>,
}

/// Memory that can be opened to peers.
pub(crate) trait OpenTo<A: Api>: Send + Sync {
    /// Lets `peer` read and write all of it, what is allocated later as well.
    fn open_to(&self, peer: &Context<A>) -> Result<()>;
}

impl<A: Api> ImportedPools<A> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Known { pools: Vec::new(), peers: Vec::new() }))
    }

    /// Opens a pool to all peers, and to those that come. Where a driver opens it to none, copies by the driver are left.
    #[cfg(unix)]
    pub(crate) fn add(&self, pool: &Arc<dyn OpenTo<A>>) {
        let mut known = self.0.lock();
        known.pools.retain(|pool| pool.strong_count() > 0);
        known.pools.push(Arc::downgrade(pool));
        for peer in known.peers.iter().filter_map(Weak::upgrade) {
            let _ = pool.open_to(&peer);
        }
    }

    /// Opens all pools to a new peer, and those that come.
    pub(crate) fn open_to(&self, peer: &Arc<Context<A>>) {
        let mut known = self.0.lock();
        known.peers.retain(|peer| peer.strong_count() > 0);
        known.peers.push(Arc::downgrade(peer));
        for pool in known.pools.iter().filter_map(Weak::upgrade) {
            let _ = pool.open_to(peer);
        }
    }
}
