//! The streams that copies of one kind run on: copies of one thread always on the same, in order; those of different
//! threads beside each other, on streams that they need not share, as long as there are enough.

use std::sync::Arc;

use crate::backend::{Backend, StreamPriority};
use crate::error::Result;
use crate::in_flight::queue::Lane;
use crate::runtime::sync::OnceLock;
use crate::runtime::thread_index;

/// Lanes of a device, of which all but the first are created when a thread first needs its own.
pub(crate) struct Lanes {
    first: Arc<Lane>,
    others: Box<[OnceLock<Arc<Lane>>]>,
}

impl Lanes {
    /// As many as the backend says.
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Result<Self> {
        let others = (1..backend.copy_streams()).map(|_| OnceLock::new()).collect();
        Ok(Self { first: create(backend)?, others })
    }

    /// A lane alone.
    pub(crate) fn single(lane: Arc<Lane>) -> Self {
        Self { first: lane, others: Box::default() }
    }

    /// The lane of this thread. `introduce` is shown a new one before anything runs on it.
    pub(crate) fn of_this_thread(
        &self,
        backend: &Arc<dyn Backend>,
        introduce: impl FnOnce(&Arc<Lane>),
    ) -> &Arc<Lane> {
        let index = thread_index::copying() % (self.others.len() + 1);
        let Some(lane) = index.checked_sub(1).and_then(|index| self.others.get(index)) else {
            return &self.first;
        };
        lane.get_or_init(|| match create(backend) {
            Ok(lane) => {
                introduce(&lane);
                lane
            }
            // Once and for all: the copies of a thread stay in order.
            Err(_) => self.first.clone(),
        })
    }

    /// Those that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Lane>> {
        std::iter::once(&self.first).chain(self.others.iter().filter_map(OnceLock::get))
    }
}

fn create(backend: &Arc<dyn Backend>) -> Result<Arc<Lane>> {
    let stream = backend.create_stream(StreamPriority::Normal)?;
    Ok(Lane::new(backend.clone(), stream))
}
